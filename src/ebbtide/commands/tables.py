"""How simulated results are shown: as a table on a terminal, wide enough to be read elsewhere."""

from typing import TYPE_CHECKING

from ebbtide.units import format_bytes, format_time, seconds

if TYPE_CHECKING:
    from rich.table import Table

    from ebbtide.trials import Trial

_WIDTH = 170
COLUMNS = (
    "policy", "step", "x resident", "gap", "exposed", "in place", "out", "in", "hits", "use of fast",
    "energy", "steps/J", "$/1000 steps", "wears out",
)  # fmt: skip


def show(*parts: "Table | str") -> None:
    """On standard output; a pipe gets the whole width."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    for part in parts:
        console.print(part, highlight=False)


def table_of(title: str, names: tuple[str, ...]) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    return table


def cells(row: "Trial", resident_ns: int, fast: str) -> list[str]:
    """Of one policy, for ``COLUMNS``."""
    if row.outcome is None or row.costs is None:
        return [row.policy, "infeasible", *[""] * (len(COLUMNS) - 2)]
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
        _percent(outcome.slower_ns / max(outcome.step_ns, 1)),
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
