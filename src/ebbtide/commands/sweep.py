"""``ebbtide sweep``: which machine to buy? It varies capacity and bandwidth, and compares cost with step time."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ebbtide.commands.completion import policies
from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import Number, json_option, machine_options, trace_argument
from ebbtide.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbtide.analysis.sweep import Point
    from ebbtide.ir.machine import Machine
    from ebbtide.ir.trace import Trace

_COLUMNS = ("fast", "links", "step", "x resident", "memory $", "$/1000 steps", "best", "ms per GB", "ms per GB/s")
_LEAST_WANTED_FIRST = ("ms per GB/s", "ms per GB", "$/1000 steps", "memory $", "links")


@click.command(
    epilog=examples(
        "ebbtide sweep step.trace --machine dram-optane --fast 1:8,1:1",
        "ebbtide sweep step.trace --machine dram-optane --links 1,2 --target 1.2",
    ),
)
@trace_argument
@machine_options
@click.option(
    "--fast",
    metavar="LIST",
    default="1:8,1:4,1:2,1:1,2:1,1:0",
    show_default=True,
    help="Sizes, shares of the peak, or ratios fast:slow as in AutoTM.",
)
@click.option("--links", metavar="LIST", default="1", show_default=True, help="Factors for all links.")
@click.option(
    "--policy",
    metavar="NAME",
    shell_complete=policies,
    default="ebbtide",
    show_default=True,
    help="A planner or an online policy.",
)
@click.option("--target", metavar="X", type=Number(1, 1e6), help="Find the cheapest within X resident steps.")
@json_option
def sweep(
    trace: Path,
    machine: Path | None,
    changes: tuple[str, ...],
    fast: str,
    links: str,
    policy: str,
    target: float | None,
    as_json: bool,
) -> None:
    """Vary a machine, and show what each step time costs to buy.

    A star marks a machine if no other in the grid is both faster and cheaper: by the price of memory (m), or by the
    total cost of ownership of a step (t). The last columns say what one more GB of fast memory, or one more GB/s on all
    links together, would save. These are finite differences to the next machine of the grid.
    """
    from ebbtide.analysis import sweep as grid
    from ebbtide.commands.inputs import read_step
    from ebbtide.commands.tables import show, show_fitting, whose_times
    from ebbtide.commands.trial_json import print_json
    from ebbtide.commands.working import working
    from ebbtide.pipeline.trials import named
    from ebbtide.units import format_bytes, format_time, seconds

    if len(named(policy)) != 1:
        raise SettingError("--policy takes one name here")
    step, its_machine = read_step(trace, machine, changes)
    budgets = sorted({_budget(text.strip(), step, its_machine) for text in fast.split(",")})
    factors = sorted({_factor(text) for text in links.split(",")})
    points = []
    with working(len(budgets) * len(factors)) as begin, begin.leaving_nothing():
        for budget in budgets:
            for factor in factors:
                begin(f"{format_bytes(budget)}, links x {factor:g}")
                points.append(_point(step, its_machine, policy, budget, factor))
    lines = []
    on_memory, on_tco = grid.frontier(points, grid.MEMORY), grid.frontier(points, grid.OWNERSHIP)
    links_bytes_per_s = sum(link.bytes_per_s for link in its_machine.links)
    rows = []
    for point in points:
        gb, rate = grid.ns_per_gb(point, points), grid.ns_per_rate(point, points, links_bytes_per_s)
        stars = ("m" if point in on_memory else "") + ("t" if point in on_tco else "")
        rows.append({**asdict(point), "frontier": stars, "ns_per_gb": gb, "ns_per_gb_per_s": rate})
        lines.append(
            (
                format_bytes(point.fast_bytes),
                f"x {point.bandwidth:g}",
                "infeasible" if point.step_ns is None else format_time(seconds(point.step_ns)),
                "" if point.step_ns is None else f"{point.step_ns / max(step.step_ns, 1):.3f}",
                "-" if point.memory_usd is None else f"{point.memory_usd:.0f}",
                "-" if point.step_usd is None else digits(1000 * point.step_usd),
                f"* {stars}" if stars else "",
                "" if gb is None else digits(gb / 1e6),
                "" if rate is None else digits(rate / 1e6),
            )
        )
    if as_json:
        print_json(rows)
    else:
        title = f"{its_machine.name}, {policy}; simulated{whose_times(its_machine, machine, step)}"
        show_fitting(title, _COLUMNS, _LEAST_WANTED_FIRST, lines)
        if target is not None:
            show(_cheapest(points, target * step.step_ns))


def digits(value: float) -> str:
    """Return four significant digits without an exponent."""
    rounded = round(float(f"{value:.4g}"), 9) + 0.0  # not -0
    return f"{rounded:.9f}".rstrip("0").rstrip(".")


def _budget(text: str, trace: "Trace", machine: "Machine") -> int:
    from ebbtide.planners.base import budget_of

    fast, colon, slow = text.partition(":")
    if not colon:
        return budget_of(text, trace, machine)
    try:
        parts = float(fast), float(slow)
        if min(parts) < 0:
            raise ValueError
        return budget_of(f"{100 * parts[0] / sum(parts):f}%", trace, machine)
    except (ValueError, ZeroDivisionError) as error:
        raise SettingError(f"--fast: {text!r} is not a ratio such as 1:8") from error


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1e-3 <= factor <= 1e3:
        raise SettingError(f"--links: {text!r} is not a factor from 0.001 to 1000")
    return factor


def _point(trace: "Trace", machine: "Machine", policy: str, budget_bytes: int, factor: float) -> "Point":
    from ebbtide.analysis.sweep import Point
    from ebbtide.commands.machine_changes import with_links
    from ebbtide.pipeline.trials import try_policy
    from ebbtide.simulator.costs import costs_of

    faster = with_links(machine, factor)
    row = try_policy(policy, trace, faster, budget_bytes)
    if row.outcome is None:
        return Point(budget_bytes, factor, None, None, None)
    fast, *slower = faster.with_budget(budget_bytes).tiers
    needed = replace(faster, tiers=(fast, *(replace(tier, capacity_bytes=None) for tier in slower)))
    costs = costs_of(row.outcome, needed)
    return Point(budget_bytes, factor, row.outcome.step_ns, costs.memory_usd, costs.step_usd)


def _cheapest(points: "Sequence[Point]", most_ns: float) -> str:
    from ebbtide.analysis.sweep import MEMORY, OWNERSHIP, cheapest
    from ebbtide.units import format_bytes, format_time, seconds

    if all(point.memory_usd is None for point in points):
        best = min(
            (point for point in points if point.step_ns is not None and point.step_ns <= most_ns),
            key=lambda point: point.fast_bytes,
            default=None,
        )
        found = "none of the grid" if best is None else f"at least {format_bytes(best.fast_bytes)} fast"
        return f"within {format_time(seconds(most_ns))}: {found}; the machine has no prices, so nothing is the cheapest"
    lines = []
    for price, words in ((MEMORY, "by the price of memory"), (OWNERSHIP, "by the total cost of a step")):
        best = cheapest(points, price, most_ns)
        found = (
            "none of the grid" if best is None else f"{format_bytes(best.fast_bytes)} fast, links x {best.bandwidth:g}"
        )
        lines.append(f"within {format_time(seconds(most_ns))}, {words}: {found}")
    return "\n".join(lines)
