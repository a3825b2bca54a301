"""Shows simulated results as a table that fits the terminal. Without a terminal, it is shown whole."""

from typing import TYPE_CHECKING

from ebbtide.terminal import piped_columns
from ebbtide.units import format_bytes, format_time, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from ebbtide.analysis.standings import Standing
    from ebbtide.ir.machine import Machine
    from ebbtide.ir.trace import Trace
    from ebbtide.pipeline.trials import Trial

_WIDTH = 170
COLUMNS = (
    "policy", "step", "x resident", "gap", "exposed", "in place", "out", "in", "hits", "use of fast",
    "energy", "steps/J", "$/1000 steps", "wears out",
)  # fmt: skip
_LEAST_WANTED_FIRST = (
    "use of fast", "in place", "hits", "wears out", "steps/J", "energy", "$/1000 steps", "exposed", "gap", "in", "out",
)  # fmt: skip
_NOTHING = ("", "-")


def show(*parts: "Table | str") -> None:
    """Print on standard output. A pipe gets the whole width."""
    console = _console()
    for part in parts:
        console.print(part, highlight=False)


def _console() -> "Console":
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=piped_columns(_WIDTH))


def whose_times(machine: "Machine", named: "Path | None", step: "Trace") -> str:
    """Say whose times the operations have, where a reader could take them for the machine's.

    That is so if the machine was ``named`` or has a rule for times, or if nobody measured the times.
    """
    from ebbtide.ir.base import Origin
    from ebbtide.simulator import is_modelled

    if is_modelled(machine):
        return ", operations' times modelled"
    if step.origin is Origin.MODELLED:
        return ", with operations' times as they were modelled"
    return ", with operations' times as they were recorded" if named is not None else ""


def show_trials(title: str, rows: "Sequence[Trial]", resident_ns: int, fast: str) -> None:
    """Show a line for each policy that has a plan, with the useful columns that fit, and name the other policies."""
    lines = [cells(row, resident_ns, fast) for row in rows if row.outcome is not None]
    show_fitting(title, COLUMNS, _LEAST_WANTED_FIRST, lines)
    if missing := [row for row in rows if row.outcome is None]:
        known = (row.least_bytes for row in missing if row.least_bytes is not None)
        least = None if lines else min(known, default=None)
        works = "" if least is None else f"; the smallest budget that can work is {format_bytes(least)}"
        show(f"no plan within it: {', '.join(row.policy for row in missing)}{works}")


def show_remaking(rows: "Sequence[Trial]", trace: "Trace") -> None:
    """Say of each plan what it makes anew."""
    from ebbtide.analysis.explain_plan import remaking_text

    for row in rows:
        if row.planned is not None and (anew := remaking_text(row.planned, trace)):
            show(f"{row.policy}: {anew}")


def show_standings(found: "Sequence[Standing]", counted: int, left_out: int) -> None:
    """Show a line for each policy: its mean place, and by budget the median of step over bound."""
    if not found:
        show(f"none of {left_out} cells counts: each budget holds everything, or nobody has a plan")
        return
    budgets = tuple(found[0].over_bound)
    columns = ("policy", "place", "plans", *budgets, "noisy place", "noisy")
    lines = [
        (
            one.policy,
            f"{one.place:.1f}",
            f"{one.plans} of {counted}",
            *(_times(over) for over in one.over_bound.values()),
            "" if one.noisy_place is None else f"{one.noisy_place:.1f}",
            _times(one.noisy_over_bound),
        )
        for one in found
    ]
    title = "mean place, and medians of step over bound; simulated"
    show_fitting(title, columns, ("plans", "noisy place", "noisy"), lines)
    if left_out:
        show(f"left out: {left_out} cells whose budget holds everything, or in which nobody has a plan")


def _times(over: float | None) -> str:
    return "-" if over is None else f"{over:.3f}"


def show_fitting(
    title: str, columns: "Sequence[str]", least_wanted_first: "Sequence[str]", lines: "Sequence[Sequence[str]]"
) -> None:
    """Show the lines, or the title alone without any. A column that is empty in all lines is left out."""
    if not lines:
        show(title)
        return
    kept = [name for place, name in enumerate(columns) if any(line[place] not in _NOTHING for line in lines)]
    hidden: list[str] = []
    width = _console().width
    for name in (*least_wanted_first, ""):
        table = table_of(tuple(kept))
        for line in lines:
            table.add_row(*(line[columns.index(name)] for name in kept))
        if not name or _width_of(table) <= width:
            break
        if name in kept:
            kept.remove(name)
            hidden.append(name)
    show(title, table)  # the table's own title would be broken at its width
    if hidden:
        show(f"(no room here for: {', '.join(hidden)}; a wider terminal, a pipe and --json have them)")


def _width_of(table: "Table") -> int:
    from rich.console import Console

    console = Console(width=10 * _WIDTH)
    return max(console.measure(table).maximum, 0)


def table_of(names: tuple[str, ...]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    return table


def cells(row: "Trial", resident_ns: int, fast: str) -> list[str]:
    """Return the ``COLUMNS`` of one policy that has a plan."""
    assert row.outcome is not None
    assert row.costs is not None
    outcome, costs = row.outcome, row.costs
    moved = {"out": 0, "in": 0}
    for name, nbytes in outcome.moved_bytes.items():
        moved["in" if name.endswith(f"->{fast}") else "out"] += nbytes
    years = min(costs.years.values(), default=None)
    return [
        row.policy,
        format_time(seconds(outcome.step_ns)),
        f"{outcome.step_ns / max(resident_ns, 1):.3f}",
        _percent(row.gap),
        _percent(outcome.exposed_ns / max(outcome.step_ns, 1)),
        "-" if outcome.slower_ns == 0 else _percent(outcome.slower_ns / max(outcome.step_ns, 1)),
        format_bytes(moved["out"]),
        format_bytes(moved["in"]),
        _percent(outcome.hit_rate),
        _percent(costs.tier_utilisation.get(fast)),
        "-" if costs.energy_j is None else f"{costs.energy_j:.3g} J",
        "-" if costs.steps_per_j is None else f"{costs.steps_per_j:.3g}",
        "-" if costs.step_usd is None else f"{1000 * costs.step_usd:.3g}",
        "-" if years is None else f"{years:.2g} y",
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
