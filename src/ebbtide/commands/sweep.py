"""``ebbtide sweep``: which machine to buy. Capacity and bandwidth varied, cost against step time."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ebbtide.commands.inputs import machine_options, trace_argument
from ebbtide.errors import SettingError

if TYPE_CHECKING:
    from ebbtide.ir.machine import Machine
    from ebbtide.ir.trace import Trace


@dataclass(frozen=True, slots=True)
class Point:
    """A machine of the grid, with what it costs when each slower tier is as large as the step needs."""

    fast_bytes: int
    bandwidth: float
    step_ns: int | None
    memory_usd: float | None
    step_usd: float | None


@click.command()
@trace_argument
@machine_options
@click.option(
    "--fast",
    metavar="LIST",
    default="1:8,1:4,1:2,1:1,2:1,1:0",
    show_default=True,
    help="Sizes, shares of the peak, or ratios fast:slow as AutoTM has them.",
)
@click.option("--bandwidth", metavar="LIST", default="1", show_default=True, help="Factors for all links.")
@click.option("--policy", metavar="NAME", default="ebbtide", show_default=True, help="A planner or an online policy.")
@click.option("--target", metavar="X", type=click.FloatRange(1), help="Find the cheapest within X resident steps.")
@click.option("--json", "json_file", metavar="FILE", type=click.Path(path_type=Path), help="Write all figures.")
def sweep(
    trace: Path,
    machine: Path | None,
    changes: tuple[str, ...],
    fast: str,
    bandwidth: str,
    policy: str,
    target: float | None,
    json_file: Path | None,
) -> None:
    """Vary capacity and bandwidth: the frontier of cost against step time.

    A star marks machines than which none of the grid is both faster and cheaper, by the price of memory (m) and by the
    total cost of ownership of a step (t). The last columns say what one more GB of fast memory, or one more GB/s on all
    links together, would save: finite differences to the next machine of the grid.
    """
    from dataclasses import asdict

    from ebbtide.commands.inputs import read_step
    from ebbtide.commands.judged import named, write_json
    from ebbtide.commands.tables import show, table_of
    from ebbtide.units import format_bytes, format_time

    if len(named(policy)) != 1:
        raise SettingError("--policy takes one name here")
    step, its_machine = read_step(trace, machine, changes)
    budgets = sorted({_budget(text.strip(), step, its_machine) for text in fast.split(",")})
    factors = sorted({_factor(text) for text in bandwidth.split(",")})
    points = [_point(step, its_machine, policy, budget, factor) for budget in budgets for factor in factors]
    names = ("fast", "links", "step", "x resident", "memory $", "$/1000 steps", "", "ms per GB", "ms per GB/s")
    table = table_of(f"{its_machine.name}, {policy}; simulated", names)
    on_memory, on_tco = _frontier(points, "memory_usd"), _frontier(points, "step_usd")
    rows = []
    for point in points:
        gb, rate = _per_gb(point, points), _per_rate(point, points, its_machine)
        stars = ("m" if point in on_memory else "") + ("t" if point in on_tco else "")
        rows.append({**asdict(point), "frontier": stars, "ns_per_gb": gb, "ns_per_gb_per_s": rate})
        table.add_row(
            format_bytes(point.fast_bytes),
            f"x {point.bandwidth:g}",
            "infeasible" if point.step_ns is None else format_time(point.step_ns / 1e9),
            "" if point.step_ns is None else f"{point.step_ns / max(step.step_ns, 1):.3f}",
            "-" if point.memory_usd is None else f"{point.memory_usd:.0f}",
            "-" if point.step_usd is None else f"{1000 * point.step_usd:.4g}",
            f"* {stars}" if stars else "",
            "" if gb is None else f"{gb / 1e6:.3g}",
            "" if rate is None else f"{rate / 1e6:.3g}",
        )
    show(table)
    if target is not None:
        show(_cheapest(points, target * step.step_ns))
    if json_file is not None:
        write_json(rows, json_file)


def _budget(text: str, trace: "Trace", machine: "Machine") -> int:
    from ebbtide.commands.inputs import budget_of

    fast, colon, slow = text.partition(":")
    if not colon:
        return budget_of(text, trace, machine)
    try:
        parts = float(fast), float(slow)
        return budget_of(f"{100 * parts[0] / sum(parts):f}%", trace, machine)
    except (ValueError, ZeroDivisionError) as error:
        raise SettingError(f"--fast: {text!r} is not a ratio such as 1:8") from error


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1e-3 <= factor <= 1e3:
        raise SettingError(f"--bandwidth: {text!r} is not a factor from 0.001 to 1000")
    return factor


def _point(trace: "Trace", machine: "Machine", policy: str, budget_bytes: int, factor: float) -> Point:
    from ebbtide.commands.judged import judge
    from ebbtide.simulate.costs import costs_of

    faster = replace(
        machine,
        links=tuple(replace(row, bytes_per_s=max(round(row.bytes_per_s * factor), 1)) for row in machine.links),
        groups=tuple(replace(row, bytes_per_s=max(round(row.bytes_per_s * factor), 1)) for row in machine.groups),
    )
    row = judge(policy, trace, faster, budget_bytes)
    if row.outcome is None:
        return Point(budget_bytes, factor, None, None, None)
    fast, *slower = faster.with_budget(budget_bytes).tiers
    needed = replace(faster, tiers=(fast, *(replace(tier, capacity_bytes=None) for tier in slower)))
    costs = costs_of(row.outcome, needed)
    return Point(budget_bytes, factor, row.outcome.step_ns, costs.memory_usd, costs.step_usd)


def _frontier(points: list[Point], price: str) -> list[Point]:
    """Those than which no other is as fast and cheaper, or as cheap and faster."""
    known = [point for point in points if point.step_ns is not None and getattr(point, price) is not None]

    def beats(one: Point, other: Point) -> bool:
        mine, theirs = (one.step_ns or 0, getattr(one, price)), (other.step_ns or 0, getattr(other, price))
        return mine != theirs and mine[0] <= theirs[0] and mine[1] <= theirs[1]

    return [point for point in known if not any(beats(other, point) for other in known)]


def _per_gb(point: Point, points: list[Point]) -> float | None:
    """ns that one more GB saves, up to the next larger fast memory."""
    larger = [row for row in points if row.bandwidth == point.bandwidth and row.fast_bytes > point.fast_bytes]
    following = min(larger, key=lambda row: row.fast_bytes, default=None)
    if following is None or point.step_ns is None or following.step_ns is None:
        return None
    return (point.step_ns - following.step_ns) / (following.fast_bytes - point.fast_bytes) * 1e9


def _per_rate(point: Point, points: list[Point], machine: "Machine") -> float | None:
    """ns that one more GB/s saves, up to the next faster links."""
    faster = [row for row in points if row.fast_bytes == point.fast_bytes and row.bandwidth > point.bandwidth]
    following = min(faster, key=lambda row: row.bandwidth, default=None)
    rate = sum(link.bytes_per_s for link in machine.links) / 1e9
    if following is None or point.step_ns is None or following.step_ns is None or not rate:
        return None
    return (point.step_ns - following.step_ns) / ((following.bandwidth - point.bandwidth) * rate)


def _cheapest(points: list[Point], most_ns: float) -> str:
    from ebbtide.units import format_bytes, format_time

    lines = []
    for price, words in (("memory_usd", "by the price of memory"), ("step_usd", "by the total cost of a step")):
        known = [row for row in points if row.step_ns is not None and getattr(row, price) is not None]
        within = [row for row in known if row.step_ns is not None and row.step_ns <= most_ns]
        if not within:
            lines.append(f"within {format_time(most_ns / 1e9)}, {words}: none of the grid")
            continue
        best = min(within, key=lambda row: (getattr(row, price), row.step_ns))
        lines.append(
            f"within {format_time(most_ns / 1e9)}, {words}: {format_bytes(best.fast_bytes)} fast, links x "
            f"{best.bandwidth:g}"
        )
    return "\n".join(lines)
