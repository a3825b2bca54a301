"""``resident``: keeps everything in the fastest tier all the time. It moves nothing, so its time is the trace's."""

from time import perf_counter_ns

from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of, require_levels


def resident(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Make the plan. Raises InfeasibleBudgetError if the step's peak of live bytes is above the budget."""
    began = perf_counter_ns()
    require_levels(live_bytes(trace, page_size_of(machine)), trace, budget_bytes)
    fast = machine.tiers[0].name
    rows = trace.storages
    stays = tuple(
        Stay(number, fast, birth, birth, death)
        for number, (birth, death) in enumerate(zip(rows.birth.tolist(), rows.death.tolist(), strict=True))
    )
    spent = perf_counter_ns() - began
    status = PlanStatus.OPTIMAL
    return Plan("resident", status, trace.signature(), budget_bytes, trace.step_ns, trace.step_ns, spent, stays)
