"""What the scripts of ``bench/papers`` share: a table, what a plan comes to in the simulator, and machines changed."""

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace
from ebbtide.simulator import Outcome, simulate
from ebbtide.simulator.lowering import lower

GB = 10**9
BLOCKS = 1e6
"""``slows_compute`` of a link for whose copies compute waits."""


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *notes: str) -> None:
    table = Table(title=f"{title} (simulated)", title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console = Console(width=160)
    console.print(table)
    for note in notes:
        console.print(note, soft_wrap=True)
    console.print()


def outcome_of(plan: Plan, trace: Trace, machine: Machine) -> Outcome:
    bounded = machine.with_budget(plan.budget_bytes)
    return simulate(lower(plan, trace, bounded), trace, bounded, arena_pages)


def with_links(machine: Machine, **changes: object) -> Machine:
    links = tuple(replace(link, **changes) for link in machine.links)  # type: ignore[arg-type]
    return replace(machine, links=links)
