"""``ebbtide``, the default: it moves every kind of storage in both directions, within the budget at every tick.

It alternates three steps and keeps the best plan it has simulated:

1. *Choose* which idle intervals to take (``choice``), at the least transfer time, with a reserve for copies under way.
2. *Time* their copies (``timing``) by the ticks of the last simulation.
3. *Simulate* the schedule. Where it stalls, transfers are dear: their costs rise, and the choice is made anew.

A plan for less room is also a plan for more. So smaller budgets are tried as well where the bound says that they could
win. Clean storages leave without a write. Final contents may be written while they are still being read.

Where operations use a slow tier in place, the search is repeated for several sets of storages that stay there
(``in_place``). At last, the plans of other planners are candidates (``rivals``). Where a tier packs and some storage
shrinks, the search is made with it and without it, since its copies cost compute more than a disk's.

Where one of several slow tiers is full, contents are exchanged between them (``exchanges``).

Where operators repeat, and copies are waited for or files are to be spared, steps are searched in which some contents
are made anew instead of moved (``remaking``). The best plan without that tells what to hold them against, so no plan is
slower for it than ``wear`` allows.

Left out: several replicas in slow tiers, ways through a slow tier to another, and storages that outlive a step once
their successor is born. The number of simulations bounds the search and depends on the step's size alone. So plans are
deterministic unless the time limit strikes.
"""

from time import perf_counter_ns, process_time_ns

from ebbtide.errors import PlanError
from ebbtide.ir.base import LARGEST
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.remakes import without_remakes
from ebbtide.ir.stay_columns import StayColumns
from ebbtide.ir.trace import Trace
from ebbtide.planners.resident import resident
from ebbtide.planners.rivals import remaking_rivals, rival_plans
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.planners.search.in_place import placed_in_slow
from ebbtide.planners.search.move_search import GOOD_ENOUGH, Candidate, MoveSearch
from ebbtide.planners.search.problem import Problem, lacks_bytes, problem_of, require_feasible, with_packing
from ebbtide.planners.search.remake_search import RemakeSearch, written_bytes
from ebbtide.planners.search.remaking import Remaking
from ebbtide.planners.search.slow_tiers import reachable_tiers
from ebbtide.planners.search.timing import with_still
from ebbtide.simulator import Simulator

TIME_LIMIT_S = 30.0
"""Of CPU time: beside steps, the planning process gets a CPU for a small part of the time."""
_WORTH_REMAKING = 1.01
"""Where moving takes so many times the step that has all the memory, or less, nothing is made anew."""


def ebbtide(
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    time_limit_s: float = TIME_LIMIT_S,
    effort: int = 1,
    wear: float = 0.0,
) -> Plan:
    """Return the fastest plan found within the budget. ``effort`` multiplies the number of tries.

    With ``wear`` it may be another one: a plan that makes contents anew may take longer than one that moves alone, by
    that share of the step's compute for as many bytes spared to the slowest tier as the step's storages peak at.
    Half as many may cost half as much, and so on.

    Raises InfeasibleBudgetError if there is no plan, and PlanError if the slow tiers lack room for all that has to
    leave.
    """
    began = perf_counter_ns()
    machine, capacity = machine.with_budget(budget_bytes), machine.within(budget_bytes)
    if not reachable_tiers(machine):
        return resident(trace, machine, capacity)
    moving = without_remakes(trace)
    problem, deadline = problem_of(moving, machine), process_time_ns() + int(time_limit_s * 1e9)
    bound = lower_bound_ns(moving, machine, capacity)
    like, still, out_of_time = _moved_alone(problem, capacity, bound, deadline, effort)
    best = None if like is None else (like.step_ns, tuple(with_still(machine, still, like.moved)))
    fastest_rival = LARGEST
    if best is None or best[0] > bound:
        for rival in rival_plans(moving, machine, capacity, deadline):
            fastest_rival = min(step_ns := problem.simulator.run_plan(rival).step_ns, fastest_rival)
            if best is None or step_ns < best[0]:
                best = step_ns, rival.stays
    if best is None:
        require_feasible(problem, capacity)
        raise PlanError(("the slow tiers have no room for what has to leave the fast one",))
    wears = wear > 0 and like is not None and written_bytes(machine, like.outcome) > 0
    if best[0] <= moving.step_ns * _WORTH_REMAKING and not wears:
        bound = bound if moving is trace else min(bound, moving.step_ns)  # of plans that move alone
    else:
        moved_ns = best[0]
        if like is not None and (remaking := Remaking.of(problem, trace, capacity)) is not None:
            bound = lower_bound_ns(trace, machine, capacity)
            if moved_ns > bound * GOOD_ENOUGH or wears:
                with_remakes = RemakeSearch(remaking, like, bound, deadline, wear).run()
                best = best if with_remakes is None or with_remakes[0] > fastest_rival else with_remakes
        if min(moved_ns, best[0]) > bound * GOOD_ENOUGH:
            for rival in remaking_rivals(trace, machine, capacity, deadline):
                step_ns = Simulator(trace, machine, problem.page_bytes).run_plan(rival).step_ns
                best = best if step_ns >= min(moved_ns, best[0]) else (step_ns, rival.stays)
    step_ns, stays = best
    status = PlanStatus.STOPPED if out_of_time else PlanStatus.FEASIBLE
    status = PlanStatus.OPTIMAL if step_ns <= bound else status
    spent = perf_counter_ns() - began
    return Plan("ebbtide", status, trace.signature(), budget_bytes, max(step_ns, bound), bound, spent, stays)


def _moved_alone(
    problem: Problem, capacity: int, bound: int, deadline: int, effort: int
) -> tuple[Candidate | None, StayColumns, bool]:
    """Search plans in which contents are moved alone. Return the fastest, the stays of what does not move in it, and
    whether time was up."""
    best, still, out_of_time = None, problem.still, False
    for one in (problem, *with_packing(problem), *placed_in_slow(problem, capacity)):
        if lacks_bytes(one, capacity) > 0:
            continue
        for tries in dict.fromkeys((1, effort)):  # more tries take other ways, which may end worse
            search = MoveSearch(one, capacity, bound, deadline, tries)
            try:
                found = search.run()
            except PlanError:  # slow tiers lack room beside what lies there for good: other ways may fit
                if one is problem and best is None:
                    raise
                continue
            out_of_time = out_of_time or search.out_of_time
            if best is None or found.step_ns < best.step_ns:
                best, still = found, one.still
            if best.step_ns <= bound or out_of_time:
                return best, still, out_of_time
    return best, still, out_of_time
