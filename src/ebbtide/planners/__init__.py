"""Planners: (Trace, Machine, budget) -> Plan, by name. Who calls ``plan`` gets one that keeps its promises.

A planner is a pure function in a file of its own; ``resident`` is the smallest. None imports torch.
"""

from collections.abc import Mapping
from dataclasses import replace

from ebbtide.errors import SettingError
from ebbtide.ir.check import require_valid
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import Planner, page_size_of
from ebbtide.planners.ebbtide import ebbtide
from ebbtide.planners.resident import resident
from ebbtide.planners.tiertrain import tiertrain

PLANNERS: Mapping[str, Planner] = {"ebbtide": ebbtide, "resident": resident, "tiertrain": tiertrain}


def plan(name: str, trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """The plan of the planner ``name``, checked.

    Raises SettingError for an unknown name, InfeasibleBudgetError for a budget that no plan can keep, and PlanError
    for a plan that breaks a promise, which is a bug of the planner's.
    """
    if name not in PLANNERS:
        raise SettingError(f"there is no planner {name!r:.80}; there are {', '.join(PLANNERS)}")
    found = PLANNERS[name](trace, machine, budget_bytes)
    kept = machine.with_budget(budget_bytes)
    if found.status is PlanStatus.OVER_BUDGET:
        kept = replace(machine, tiers=(replace(machine.tiers[0], capacity_bytes=None), *machine.tiers[1:]))
    require_valid(found, trace, kept, page_size_of(machine))
    return found
