"""The page of a sweep: cost against step time on a grid of machines. Figures come from ``analysis.sweep``.

It answers four questions. Which machines are on the frontier? What does each ratio of fast to slow memory save, by the
price of memory and by the total cost of a step (AutoTM's, ASPLOS 2020)? Which machine is the cheapest for a step time?
What would more memory or faster links save?
"""

from dataclasses import asdict, dataclass
from typing import Any

from ebbtide.analysis.sweep import MEMORY, OWNERSHIP, Point, cheapest, frontier, ns_per_gb, ns_per_rate, priced
from ebbtide.report.page import fill_page
from ebbtide.units import format_bytes, format_time, seconds

_NAMES = {MEMORY: "the price of memory", OWNERSHIP: "the total cost of a step"}


@dataclass(frozen=True, slots=True)
class Sweep:
    """A grid of machines and the step that ran on it.

    ``peak_bytes`` is the step's peak. ``links_bytes_per_s`` is the rate of all links together at factor 1. ``target``
    is the wanted step time, in resident steps.
    """

    step: str
    machine: str
    policy: str
    is_modelled: bool
    resident_ns: int
    peak_bytes: int
    links_bytes_per_s: int
    target: float | None
    points: tuple[Point, ...]


def render_sweep(sweep: Sweep) -> str:
    """Return the page's text. Raises ReportError if plotly is not installed."""
    return fill_page("sweep", sweep_data(sweep))


def sweep_data(sweep: Sweep) -> dict[str, Any]:
    """Return the fields that the scripts in ``page/sweep`` read."""
    points = sweep.points
    per_gb = [ns_per_gb(point, points) for point in points]
    per_rate = [ns_per_rate(point, points, sweep.links_bytes_per_s) for point in points]
    on = {price: {at for at, point in enumerate(points) if point in frontier(points, price)} for price in _NAMES}
    times = "operations' times modelled" if sweep.is_modelled else "operations' times from the trace"
    return {
        "title": f"{sweep.step}: what memory to buy",
        "source": f"Step {sweep.step!r} on machines like {sweep.machine}, policy {sweep.policy}; simulated, {times}.",
        "facts": _facts(sweep),
        "resident_ns": sweep.resident_ns,
        "target_ns": None if sweep.target is None else round(sweep.target * sweep.resident_ns),
        "points": [
            {
                **asdict(point),
                "ratio": _ratio(point.fast_bytes, sweep.peak_bytes),
                "frontier": {price: at in on[price] for price in _NAMES},
                "ns_per_gb": per_gb[at],
                "ns_per_gb_per_s": per_rate[at],
            }
            for at, point in enumerate(points)
        ],
        "priced": [price for price in _NAMES if priced(points, price)],
        "gb_saves": [at for at, saved in enumerate(per_gb) if saved is not None],
        "rate_saves": [at for at, saved in enumerate(per_rate) if saved is not None],
        "stairs": {price: _stairs(sweep, price) for price in _NAMES},
        "ratios": _ratios(sweep),
    }


def _facts(sweep: Sweep) -> list[tuple[str, str]]:
    facts = [
        ("a step that never waits", format_time(seconds(sweep.resident_ns))),
        ("its peak", format_bytes(sweep.peak_bytes)),
        ("machines", f"{len(sweep.points)}"),
    ]
    for price, words in _NAMES.items():
        if sweep.target is not None and priced(sweep.points, price):
            best = cheapest(sweep.points, price, sweep.target * sweep.resident_ns)
            found = "none" if best is None else f"{format_bytes(best.fast_bytes)} fast, links x {best.bandwidth:g}"
            facts.append((f"cheapest within {sweep.target:g} resident steps, by {words}", found))
    return facts


def _ratio(fast_bytes: int, peak_bytes: int) -> str:
    """Return fast:slow as AutoTM writes it: the smaller one is 1."""
    slow = peak_bytes - fast_bytes
    if slow <= 0:
        return "1:0"
    return f"1:{slow / fast_bytes:.3g}" if fast_bytes and slow >= fast_bytes else f"{fast_bytes / slow:.3g}:1"


def _stairs(sweep: Sweep, price: str) -> list[int]:
    """Return the places of the points that are the cheapest for some step time, the fastest first."""
    best = frontier(sweep.points, price)
    places = [at for at, point in enumerate(sweep.points) if point in best]
    return sorted(places, key=lambda at: (sweep.points[at].step_ns or 0, at))


def _ratios(sweep: Sweep) -> dict[str, Any] | None:
    """Compare ratios at the links' factor nearest to 1. Times and costs are shares of those with the most fast
    memory."""
    factor = min((point.bandwidth for point in sweep.points), key=lambda value: (abs(value - 1), value), default=None)
    rows = [(at, point) for at, point in enumerate(sweep.points) if point.bandwidth == factor]
    rows = sorted((row for row in rows if row[1].step_ns is not None), key=lambda row: row[1].fast_bytes)
    if len(rows) < 2:
        return None  # one ratio has nothing to be compared with
    _, most = rows[-1]

    def share(value: float | None, of: float | None) -> float | None:
        return None if value is None or not of else value / of

    return {
        "bandwidth": factor,
        "of": _ratio(most.fast_bytes, sweep.peak_bytes),
        "places": [at for at, _ in rows],
        "step": [share(point.step_ns, most.step_ns) for _, point in rows],
        MEMORY: [share(point.memory_usd, most.memory_usd) for _, point in rows],
        OWNERSHIP: [share(point.step_usd, most.step_usd) for _, point in rows],
    }
