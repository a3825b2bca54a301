"""The other planners' plans as candidates, so that ``ebbtide`` is never worse than they are.

Slow planners are asked only where the step is small, or where operations use a slow tier in place. In the latter case a
placement may be better than any movement, and no bound tells how far a plan is from the best. Those that make contents
anew are asked about the step with its remakes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from time import process_time_ns

from ebbtide.errors import InfeasibleBudgetError, PlanError
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.remakes import remakes_of
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import Planner
from ebbtide.planners.published.ati_outliers import ati_outliers
from ebbtide.planners.published.autotm import TIME_LIMIT_S, autotm_async, autotm_static, autotm_sync
from ebbtide.planners.published.capuchin import capuchin
from ebbtide.planners.published.checkmate import checkmate
from ebbtide.planners.published.chen import chen
from ebbtide.planners.published.g10 import g10
from ebbtide.planners.published.sentinel import sentinel
from ebbtide.planners.published.ten_cache import ten_cache
from ebbtide.planners.published.tiertrain import tiertrain
from ebbtide.planners.published.tm_training import tm_training
from ebbtide.planners.published.zero_infinity import zero_infinity
from ebbtide.planners.search.make_plan import uses_in_place

_QUICKEST: tuple[Planner, ...] = (ati_outliers, g10)
_QUICK: tuple[Planner, ...] = (ten_cache, tiertrain, zero_infinity)
_SLOW: tuple[Planner, ...] = (sentinel, tm_training)
_SOLVERS: tuple[Callable[..., Plan], ...] = (autotm_static, autotm_sync, autotm_async)
_REMAKING: tuple[Planner, ...] = (capuchin, chen)

_QUICKEST_WORK, _QUICK_WORK, _SLOW_WORK, _SOLVER_WORK = 6_000, 3_000, 1_500, 100
"""The most accesses and ticks of a step at which these planners are asked, where nothing is used in place."""


def rival_plans(trace: Trace, machine: Machine, budget_bytes: int, deadline_ns: int) -> Iterator[Plan]:
    """Yield their plans that keep the budget, until the deadline (of ``process_time_ns``)."""
    solvers = [partial(_solver, solver, deadline_ns) for solver in _SOLVERS]
    asked = ((_QUICKEST_WORK, _QUICKEST), (_QUICK_WORK, _QUICK), (_SLOW_WORK, _SLOW), (_SOLVER_WORK, solvers))
    yield from _plans_of(asked, trace, machine, budget_bytes, deadline_ns)


def remaking_rivals(trace: Trace, machine: Machine, budget_bytes: int, deadline_ns: int) -> Iterator[Plan]:
    """Yield in the same way the plans of those that make contents anew, where something can be."""
    if len(remakes_of(trace)):
        asked = ((_QUICKEST_WORK, _REMAKING), (_SOLVER_WORK, [partial(_solver, checkmate, deadline_ns)]))
        yield from _plans_of(asked, trace, machine, budget_bytes, deadline_ns)


def _plans_of(
    asked: Iterable[tuple[int, Sequence[Planner]]],
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    deadline_ns: int,
) -> Iterator[Plan]:
    """Yield the plans of planners that are ``asked`` up to so much work."""
    work, in_place = len(trace.accesses) + len(trace.ticks), uses_in_place(machine)
    for planner in chain.from_iterable(planners for most, planners in asked if in_place or work <= most):
        if process_time_ns() > deadline_ns:
            return
        try:
            plan = planner(trace, machine, budget_bytes)
        except (InfeasibleBudgetError, PlanError):
            continue  # it has no plan for this step, which does not concern ours
        if plan.status is not PlanStatus.OVER_BUDGET:
            yield plan


def _solver(solver: Callable[..., Plan], deadline_ns: int, trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    left_s = (deadline_ns - process_time_ns()) / 1e9
    return solver(trace, machine, budget_bytes, time_limit_s=min(TIME_LIMIT_S, max(left_s / 2, 0.1)))
