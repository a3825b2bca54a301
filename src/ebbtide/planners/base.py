"""The parts that planners share: their signature, the check of the budget, and a plan's figures."""

from collections.abc import Callable
from typing import TypeAlias

from ebbtide.errors import InfeasibleBudgetError, SettingError, TiersTooSmallError, written_size
from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import PageSize, arena_pages, live_bytes, needed_bytes, pages_of, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace
from ebbtide.units import Budget, format_bytes, option, parse_budget

Planner: TypeAlias = Callable[[Trace, Machine, int], Plan]
"""A function of a step, a machine, and the bytes of the fastest tier that may be used, to a plan. It is pure: the same
arguments give the same plan."""

PAGES = arena_pages
"""The planners' count of room unless the machine says otherwise: that of the runtime's arena."""


def page_size_of(machine: Machine) -> PageSize:
    """Return the unit in which the machine's fastest tier counts room. All tiers are counted in it; PAGES is the
    most."""
    page_bytes = machine.tiers[0].page_bytes
    return PAGES if page_bytes is None else pages_of(page_bytes)


def budget_of(fast: str | int | Budget | None, trace: Trace, machine: Machine) -> int:
    """Return the bytes of the fastest tier that ``fast`` names: a size, a share of the step's peak, or None for all.

    As in a run, shares are of the peak of live bytes. 100 % also includes what pages add, so that nothing moves.
    """
    capacity = machine.tiers[0].capacity_bytes
    paged = peak(live_bytes(trace, page_size_of(machine)))
    if fast is None:
        return paged if capacity is None else capacity
    try:
        asked = parse_budget(fast)
    except ValueError as error:
        raise SettingError(f"{option('fast')}: {error}") from error
    share = asked.fraction or 0
    wanted = asked.nbytes or (paged if share >= 1 else int(share * peak(live_bytes(trace))))
    return wanted if capacity is None else min(wanted, capacity)


def require_levels(level: Ints, trace: Trace, budget_bytes: int) -> None:
    """Raise InfeasibleBudgetError if the least that a method can hold at some tick is above the budget."""
    tick = int(level.argmax())
    if (minimum_bytes := int(level[tick])) > budget_bytes:
        operator = trace.tick(tick).operator
        raise InfeasibleBudgetError(minimum_bytes, operator, tick, budget_bytes, trace.operation(tick))


def require_budget(trace: Trace, budget_bytes: int, page_bytes: PageSize = PAGES) -> None:
    """Raise InfeasibleBudgetError for a budget that no plan can keep."""
    require_levels(needed_bytes(trace, page_bytes), trace, budget_bytes)


def require_tiers(trace: Trace, machine: Machine, budget_bytes: int) -> None:
    """Raise TiersTooSmallError where all tiers together have less room than the step takes at its peak."""
    most = peak(live_bytes(trace, page_size_of(machine)))
    first, *slower = machine.tiers
    rooms = [(f"in {first.name}", budget_bytes)]
    for tier in slower:
        if tier.capacity_bytes is None:
            return
        rooms.append((f"in {tier.name}", tier.capacity_bytes))
    if (missing := most - sum(nbytes for _, nbytes in rooms)) > 0:
        fast = written_size(budget_bytes + missing)
        works = f"One of them needs {format_bytes(missing)} more, so use {option('fast', fast)} or more, a larger tier"
        raise TiersTooSmallError(most, tuple(rooms), fast, works, in_pages=True)
