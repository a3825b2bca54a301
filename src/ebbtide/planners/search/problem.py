"""What a search for a plan is given: the step's idle intervals, their costs, and what does not change in between."""

from dataclasses import dataclass

import numpy as np

from ebbtide.errors import InfeasibleBudgetError
from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Link, Machine
from ebbtide.ir.occupancy import PageSize, live_bytes, needed_bytes
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.schedule import Schedule, lower
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of
from ebbtide.planners.search.bound import lost_per_byte, never_used_bytes
from ebbtide.planners.search.idle_table import Floats, IdleTable, idle_table
from ebbtide.planners.search.slow_tiers import homeless_tier, reachable_tiers
from ebbtide.planners.search.timing import Clock, all_away, copy_ns, still_stays, without
from ebbtide.simulator import Simulator

_LOST = 0.1
"""The least share of a copy's time that counts as lost to compute."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What does not change during a search. ``live`` is without what is never used; costs are in ns.

    ``lost`` is the share of a fetch's and of a write's time that compute loses even if it does not wait for it.
    """

    trace: Trace
    machine: Machine
    idle: IdleTable
    page_bytes: PageSize
    live: Ints
    needed: Ints
    fetch_cost: Floats
    write_cost: Floats
    lost: tuple[float, float]
    clock: Clock
    simulator: Simulator
    still: tuple[Stay, ...]
    signature: str

    def schedule_of(self, moved: list[Stay]) -> Schedule:
        """Of the plan in which the others are ``still``. What is always in fast memory has no commands, so it is not
        looked at: a step has ten storages that stay for one that moves."""
        fast = self.machine.tiers[0].name
        elsewhere = without(tuple(stay for stay in self.still if stay.tier != fast), moved)
        stays = (*elsewhere, *moved)
        plan = Plan("ebbtide", PlanStatus.FEASIBLE, self.signature, 0, 0, 0, 0, stays)
        return lower(plan, self.trace, self.machine)


def problem_of(trace: Trace, machine: Machine) -> Problem:
    """Callers MUST have seen that the machine has a slow tier to move to."""
    page_bytes = page_size_of(machine)
    idle = idle_table(trace, machine.exclusive, page_bytes)
    fast, tier = machine.tiers[0].name, reachable_tiers(machine)[0]
    inward, outward = machine.link(tier, fast), machine.link(fast, tier)
    assert inward is not None
    assert outward is not None
    write_cost = np.zeros(len(idle.dirty))
    write_cost[idle.group] = copy_ns(outward, idle.nbytes, 1.0)
    return Problem(
        trace,
        machine,
        idle,
        page_bytes,
        live_bytes(trace, page_bytes) - never_used_bytes(trace, page_bytes),
        needed_bytes(trace, page_bytes),
        np.where(idle.returns, copy_ns(inward, idle.nbytes, 1.0), 0.0),
        np.where(idle.dirty, write_cost, 0.0),
        (_lost_share(machine, inward), _lost_share(machine, outward)),
        Clock(trace.start_ns(np.arange(len(trace.ticks) + 1))),
        Simulator(trace, machine, page_bytes),
        still_stays(trace, fast, homeless_tier(machine)),
        trace.signature(),
    )


def _lost_share(machine: Machine, link: Link) -> float:
    """At least _LOST: a copy that slows nothing still takes a link's time, room, and wear."""
    return max(lost_per_byte(machine, [link]) * link.bytes_per_s / 1e9, _LOST)


def require_feasible(problem: Problem, budget_bytes: int) -> None:
    """Raises InfeasibleBudgetError if the step does not fit even when all that may leave is away."""
    least = _least_levels(problem)
    tick = int(least.argmax())
    if int(least[tick]) > budget_bytes:
        raise InfeasibleBudgetError(int(least[tick]), problem.trace.ticks[tick].operator, tick, budget_bytes)


def lacks_bytes(problem: Problem, budget_bytes: int) -> int:
    """By how much the budget is too small when all that may leave is away; 0 or less if it is not."""
    return int(_least_levels(problem).max()) - budget_bytes


def _least_levels(problem: Problem) -> Ints:
    everything = np.ones(len(problem.idle), dtype=bool)
    least: Ints = -all_away(problem.idle, everything, problem.live, 0)
    return least
