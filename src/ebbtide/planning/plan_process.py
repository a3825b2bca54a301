"""The process that plans: it reads one job from standard input, answers on standard output, and ends.

It imports no torch. ``ebbtide.planning.plan_child`` starts it, and kills it where it is in the way. It does not outlive
the thread that started it. It has a process group of its own, so Ctrl-C does not reach it.
"""

import os
import pickle
import sys

from ebbtide.errors import EbbtideError
from ebbtide.host.process import end_with_parent
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan
from ebbtide.ir.run_report import LinkReport
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of
from ebbtide.planning.plan_job import MARK, carry_out, no_forecast
from ebbtide.planning.policies import NEXT_USE, planner_from, planner_named
from ebbtide.simulator import simulate_plan
from ebbtide.units import seconds


def _forecast(plan: Plan, trace: Trace, machine: Machine) -> tuple[LinkReport, ...]:
    """Forecast the links that copy something; none where the plan's schedule cannot be simulated."""
    try:
        kept = machine.with_budget(plan.budget_bytes)
        outcome = simulate_plan(plan, trace, kept, page_size_of(machine), record=True)
    except (EbbtideError, ValueError):
        return ()
    busy_ns = outcome.timeline(plan.planner).busy_ns()
    return tuple(
        LinkReport(link.name, outcome.moved_bytes.get(link.name, 0), seconds(busy_ns[link.name]))
        for link in machine.links
        if link.name in busy_ns
    )


def main() -> None:
    end_with_parent()
    answers = os.dup(1)
    os.dup2(2, 1)  # output of a print must not land in the answer
    job, policy, plan = pickle.load(sys.stdin.buffer)
    sys.stdin.close()  # a file in memory, which goes with it
    try:
        planner = planner_named(policy, job.effort, job.wear) if plan is None else planner_from(plan)
        answer = carry_out(job, planner, no_forecast if policy == NEXT_USE else _forecast)
        said = pickle.dumps(answer, protocol=5)
    except EbbtideError as error:
        said = pickle.dumps(error)
    except Exception as error:
        said = pickle.dumps(EbbtideError(f"{type(error).__name__}: {error}"))
    with os.fdopen(answers, "wb") as file:
        file.write(MARK + said)
