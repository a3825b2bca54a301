"""From recorded steps to schedules that native code follows. Knows no planner: it is handed one.

Every step is recorded as long as another may be planned. A step that follows no schedule (the
first ones, or another sequence length, another branch) shows its signature; the second time it is seen, it is planned.
The first step after the warm-up is taken to be steady, and planned at once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from ebbtide import _torch
from ebbtide.capture.flops import count_flops
from ebbtide.capture.recording import Captured, captured
from ebbtide.errors import InfeasibleBudgetError
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace
from ebbtide.report.run_report import PlanReport
from ebbtide.runtime.modules import ModuleNames
from ebbtide.runtime.process import give_back_freed_memory
from ebbtide.runtime.replay import load_plan

Planner: TypeAlias = Callable[[Trace, Machine, int], Plan]

_WARM_UP_STEPS = 1  # optimizer state is born in the first step
_MOST_PLANS = 16
_MOST_SHAPES = 64  # steps whose shapes never settle stay in demand mode
_SPARE = 48  # of the arena's budget, this part is left to what no trace shows: pages on their way, late evictions


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that is followed, with the trace it was made from."""

    plan: Plan
    trace: Trace


class Planning:
    """One session's plans. Callers MUST call ``ended`` after every step that ran to its end."""

    def __init__(
        self,
        planner: Planner,
        machine: Machine,
        save: Callable[[Trace, Plan], None],
        warn: Callable[[str], None],
    ) -> None:
        self._planner = planner
        self._machine = machine
        self._save = save
        self._warn = warn
        self._seen: set[str] = set()
        self._tried: set[str] = set()
        self._plans: dict[int, Planned] = {}
        self._steps = 0
        self._followed = False
        self._gave_up = False
        self._modules = ModuleNames()

    def begins(self) -> None:
        """Before a step. Module names are looked up only where the step before followed no schedule."""
        if self._steps >= _WARM_UP_STEPS and not self._followed and not self._gave_up:
            self._modules.install()

    def close(self) -> None:
        self._modules.remove()

    def report(self) -> PlanReport | None:
        """Of the plan that was made last."""
        if not self._plans:
            return None
        planned = next(reversed(self._plans.values()))
        plan = planned.plan
        return PlanReport(
            planner=plan.planner,
            status=str(plan.status),
            budget_bytes=plan.budget_bytes,
            step_s=planned.trace.step_ns / 1e9,
            predicted_s=plan.predicted_ns / 1e9,
            lower_bound_s=plan.lower_bound_ns / 1e9,
            plan_s=plan.plan_ns / 1e9,
            plans=len(self._plans),
        )

    def ended(self) -> bool:
        """Whether the step that just ended followed a schedule."""
        self._steps += 1
        self._modules.remove()
        self._followed = _torch.followed() is not None
        return self._followed

    @property
    def wants_recordings(self) -> bool:
        """Whether another step may still be planned."""
        return not self._gave_up and len(self._plans) < _MOST_PLANS and len(self._seen) < _MOST_SHAPES

    def learn(self, budget_bytes: int) -> None:
        """Plans the step that just ended, if it is worth it; ``budget_bytes`` is the arena's, 0 for none.

        Whatever goes wrong here is a warning: the run goes on, as it would without a plan.
        """
        if not self.wants_recordings or self._steps <= _WARM_UP_STEPS or not budget_bytes:
            return
        recording = _torch.take_recording()
        if not len(recording["tick_name"]):
            return  # the step was too long to be recorded
        try:
            self._learn(captured(recording, "recorded", count_flops), budget_bytes)
        except Exception as error:
            self._gave_up = not self._plans
            self._warn(f"no plan was found for a step, so steps like it run in demand mode: {error}")
        give_back_freed_memory()

    def _learn(self, recorded: Captured, budget_bytes: int) -> None:
        signature = recorded.trace.signature()
        recurs = signature in self._seen or not self._plans
        self._seen.add(signature)
        if not recurs or signature in self._tried:
            return
        self._tried.add(signature)
        machine = self._machine
        began = time.perf_counter_ns()
        try:
            plan = self._planner(recorded.trace, machine, budget_bytes - budget_bytes // _SPARE)
        except InfeasibleBudgetError:
            plan = self._planner(recorded.trace, machine, budget_bytes)
        plan = replace(plan, plan_ns=time.perf_counter_ns() - began)
        number = load_plan(plan, recorded.trace, machine, recorded.serials)
        if not self._plans:
            self._keep(recorded.trace, plan)
        self._plans[number] = Planned(plan, recorded.trace)

    def _keep(self, trace: Trace, plan: Plan) -> None:
        try:
            self._save(trace, plan)
        except OSError as error:
            self._warn(f"the trace or the plan could not be saved: {error}")
