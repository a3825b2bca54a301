"""Makes a plan of stays: its time, its bound and its status. It has other parts that the published planners share."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from ebbtide.ir.machine import Link, Machine, Tier
from ebbtide.ir.occupancy import occupancy, peak
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.remakes import Split
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.planners.search.slow_tiers import reachable_tiers
from ebbtide.simulator import Outcome, simulate_plan


@dataclass(frozen=True, slots=True)
class Pair:
    """The fast tier and the slow one that a method for two tiers uses, with the links between them."""

    fast: Tier
    slow: Tier
    inward: Link
    outward: Link


def pair_of(machine: Machine, live_bytes: int) -> Pair | None:
    """Pair the fast tier with the fastest reachable slow tier that has room for everything, or else the largest.

    Returns None without a slow tier.
    """
    tiers = [machine.tier(name) for name in reachable_tiers(machine)]
    if not tiers:
        return None
    roomy = [tier for tier in tiers if tier.capacity_bytes is None or tier.capacity_bytes >= live_bytes]
    slow = roomy[0] if roomy else max(tiers, key=lambda tier: tier.capacity_bytes or 0)
    return Pair(machine.tiers[0], slow, *machine.ways(slow.name))


def uses_in_place(machine: Machine) -> bool:
    """Say whether operations may use a slow tier in place."""
    return any(tier.in_place.reads for tier in machine.tiers[1:])


def outcome_of(trace: Trace, machine: Machine, budget_bytes: int, stays: list[Stay]) -> Outcome:
    """Simulate the step. If the stays need more fast memory than the budget, they get it."""
    held = max(held_bytes(trace, machine, stays), budget_bytes)
    plan = Plan("", PlanStatus.FEASIBLE, trace.signature(), held, 0, 0, 0, tuple(stays))
    return simulate_plan(plan, trace, machine.with_fast(held), page_size_of(machine))


def fastest_of(trace: Trace, machine: Machine, budget_bytes: int, tried: list[list[Stay]]) -> tuple[int, list[Stay]]:
    """Return the shortest simulated step of several ways, and its stays. Of equals, the first wins."""
    timed = [(outcome_of(trace, machine, budget_bytes, stays).step_ns, stays) for stays in tried]
    return min(timed, key=lambda way: way[0])


def make_plan(
    name: str,
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    stays: list[Stay],
    began_ns: int,
    out_of_time: bool = False,
    step_ns: int | None = None,
    made: Split | None = None,
) -> Plan:
    """Make the plan of these stays: its simulated time, a bound, and whether it keeps the budget.

    ``step_ns`` is the time of ``outcome_of``, if known. The stays are of the split step ``made``, if there is one.
    """
    step = trace if made is None else made.trace
    level = held_bytes(step, machine, stays)
    status = PlanStatus.STOPPED if out_of_time else PlanStatus.FEASIBLE
    if level > budget_bytes:
        status = PlanStatus.OVER_BUDGET
    if step_ns is None:
        step_ns = outcome_of(step, machine, budget_bytes, stays).step_ns
    bound = lower_bound_ns(trace, machine, max(level, budget_bytes))
    if step_ns <= bound and status is not PlanStatus.OVER_BUDGET:
        status = PlanStatus.OPTIMAL
    predicted, spent = max(step_ns, bound), perf_counter_ns() - began_ns
    joined = tuple(stays) if made is None else made.joined_stays(stays)
    return Plan(name, status, trace.signature(), budget_bytes, predicted, bound, spent, joined)


def held_bytes(trace: Trace, machine: Machine, stays: Sequence[Stay]) -> int:
    """Return the most bytes of the fastest tier that these stays take at once."""
    fast = machine.tiers[0].name
    return peak(occupancy(trace, stays, [fast], page_size_of(machine))[fast]) if stays else 0
