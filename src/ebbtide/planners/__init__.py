"""Planners by name: each makes a Plan of a Trace, a Machine and a budget. ``plan`` returns only plans that keep their
promises.

A planner is a pure function in a file of its own; ``resident`` is the smallest. None imports torch. Another package
adds one by an entry point in the group ``ebbtide.planners``; ``docs/planners.md`` shows how.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ebbtide.errors import PlanError, unknown_name
from ebbtide.ir.check import require_valid
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import Planner, page_size_of, require_tiers
from ebbtide.planners.ebbtide import ebbtide
from ebbtide.planners.published.ati_outliers import ati_outliers
from ebbtide.planners.published.autotm import autotm_async, autotm_static, autotm_sync
from ebbtide.planners.published.capuchin import capuchin
from ebbtide.planners.published.checkmate import checkmate
from ebbtide.planners.published.chen import chen
from ebbtide.planners.published.g10 import g10
from ebbtide.planners.published.sentinel import sentinel
from ebbtide.planners.published.ten_cache import ten_cache
from ebbtide.planners.published.tiertrain import tiertrain
from ebbtide.planners.published.tm_training import tm_training
from ebbtide.planners.published.zero_infinity import zero_infinity
from ebbtide.planners.resident import resident
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.planners.search.make_plan import held_bytes
from ebbtide.simulator import simulate_plan
from ebbtide.simulator.registry import Registry

GROUP = "ebbtide.planners"

DEFAULT = "ebbtide"
"""Our own planner. The gap of another planner is due first of all to its method."""

BUILT_IN: Mapping[str, Planner] = {
    "10cache": ten_cache,
    "ati-outliers": ati_outliers,
    "autotm-async": autotm_async,
    "autotm-static": autotm_static,
    "autotm-sync": autotm_sync,
    "capuchin": capuchin,
    "checkmate": checkmate,
    "chen": chen,
    "ebbtide": ebbtide,
    "g10": g10,
    "resident": resident,
    "sentinel": sentinel,
    "tiertrain": tiertrain,
    "tm-training": tm_training,
    "zero-infinity": zero_infinity,
}


PLANNERS: Mapping[str, Planner] = Registry(GROUP, "planner", BUILT_IN)


def plan(name: str, trace: Trace, machine: Machine, budget_bytes: int, effort: int = 1, wear: float = 0.0) -> Plan:
    """Return the checked plan of the planner ``name``, with our bound if it has none (0). ``effort`` and ``wear`` are
    our own planner's.

    Raises SettingError for an unknown name, and InfeasibleBudgetError for a budget that no plan can keep. Raises
    TiersTooSmallError where all tiers together have too little room. Raises PlanError for a plan that breaks a promise,
    which is a bug of the planner.
    """
    if name not in PLANNERS:
        raise unknown_name("planner", name, [*PLANNERS])
    budget_bytes = machine.within(budget_bytes)
    try:
        planner = partial(ebbtide, effort=effort, wear=wear) if name == DEFAULT else PLANNERS[name]
        found = planner(trace, machine, budget_bytes)
    except PlanError:
        require_tiers(trace, machine, budget_bytes)
        raise
    if not isinstance(found, Plan):
        raise PlanError((f"the planner {name} returned {type(found).__name__} instead of a Plan",))
    is_over = found.status is PlanStatus.OVER_BUDGET
    kept = machine.with_fast(None) if is_over else machine.with_budget(budget_bytes)
    require_valid(found, trace, kept, page_size_of(machine))
    return found if found.lower_bound_ns else _bounded(found, trace, machine)


def _bounded(found: Plan, trace: Trace, machine: Machine) -> Plan:
    """Give a plan without a bound ours, and one that predicts less than that its simulated time."""
    capacity_bytes = max(held_bytes(trace, machine, found.stays), found.budget_bytes)
    bound_ns, predicted_ns = lower_bound_ns(trace, machine, capacity_bytes), found.predicted_ns
    if predicted_ns < bound_ns:
        outcome = simulate_plan(found, trace, machine.with_fast(capacity_bytes), page_size_of(machine))
        predicted_ns = max(outcome.step_ns, bound_ns)
    return replace(found, predicted_ns=predicted_ns, lower_bound_ns=bound_ns)
