"""What planners share: their signature, the check of the budget, and a plan's figures."""

from collections.abc import Callable
from typing import TypeAlias

from ebbtide.errors import InfeasibleBudgetError
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import PageSize, arena_pages, needed_bytes, pages_of
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace

Planner: TypeAlias = Callable[[Trace, Machine, int], Plan]
"""(step, machine, bytes of the fastest tier that may be used) -> plan. Pure: the same plan for the same arguments."""

PAGES = arena_pages
"""How planners count room unless the machine says otherwise: as the runtime's arena does."""


def page_size_of(machine: Machine) -> PageSize:
    """How room is counted in the machine's fastest tier, and so everywhere. At most what PAGES counts."""
    page_bytes = machine.tiers[0].page_bytes
    return PAGES if page_bytes is None else pages_of(page_bytes)


def require_budget(trace: Trace, budget_bytes: int, page_bytes: PageSize = PAGES) -> None:
    """Raises InfeasibleBudgetError for a budget that no plan can keep."""
    needed = needed_bytes(trace, page_bytes)
    tick = int(needed.argmax())
    if int(needed[tick]) > budget_bytes:
        raise InfeasibleBudgetError(int(needed[tick]), trace.ticks[tick].operator, tick, budget_bytes)
