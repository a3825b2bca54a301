"""Forecasts each link's copies in a step under a plan."""

from ebbtide.errors import EbbtideError
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import PageSize
from ebbtide.ir.plan import Plan
from ebbtide.ir.run_report import LinkReport
from ebbtide.ir.trace import Trace
from ebbtide.simulator import simulate_plan
from ebbtide.units import seconds


def forecast_links(plan: Plan, trace: Trace, machine: Machine, page_bytes: PageSize) -> tuple[LinkReport, ...]:
    """Forecast the links that copy something; none where the plan's schedule cannot be simulated."""
    kept = machine.with_budget(plan.budget_bytes)
    try:
        outcome = simulate_plan(plan, trace, kept, page_bytes, record=True)
    except (EbbtideError, ValueError):
        return ()
    busy = outcome.timeline(plan.planner).busy_ns()
    return tuple(
        LinkReport(link.name, outcome.moved_bytes.get(link.name, 0), seconds(busy[link.name]))
        for link in machine.links
        if link.name in busy
    )
