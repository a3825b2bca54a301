"""From recorded steps to schedules that native code follows. Knows no planner: it is handed one.

Every step is recorded as long as another may be planned. A step that follows no schedule (the
first ones, or another sequence length, another branch) shows its signature; the second time it is seen, it is planned.
The first step after the warm-up is taken to be steady, and planned at once. Where the machine came from a probe, the
second step that follows a schedule shows what its moves really cost; if that is news, the step is planned once more.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from ebbtide import _torch
from ebbtide.capture.flops import count_flops
from ebbtide.capture.rates import rates
from ebbtide.capture.recording import Captured, captured
from ebbtide.capture.timeline import timeline
from ebbtide.errors import InfeasibleBudgetError
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import arena_pages, live_bytes, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.timeline import Timeline
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
_SETTLED = 2  # steps after which one that follows a schedule shows what it will go on to do
_NEWS = 0.1  # a bandwidth this much off the probe's (as a share), or a slowdown, is worth another plan


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that is followed, with the trace it was made from."""

    plan: Plan
    trace: Trace


class Planning:
    """One session's plans. Callers MUST call ``ended`` after every step that ran to its end.

    ``measures``: the machine is a probe's, so what the steps themselves show goes before it. ``save_timeline`` is given
    the last step that followed a schedule, once, at the end.
    """

    def __init__(
        self,
        planner: Planner,
        machine: Machine,
        save: Callable[[Trace, Plan], None],
        warn: Callable[[str], None],
        measures: bool = False,
        save_timeline: Callable[[Timeline], None] | None = None,
    ) -> None:
        self._planner = planner
        self._machine = machine
        self._save = save
        self._warn = warn
        self._measures = measures
        self._save_timeline = save_timeline
        self._last: tuple[_torch.Recording, Planned] | None = None
        self._times_followed: Counter[int] = Counter()
        self._seen: set[str] = set()
        self._tried: set[str] = set()
        self._plans: dict[int, Planned] = {}
        self._steps = 0
        self._followed: int | None = None  # by the last step: a schedule's number
        self._gave_up = False
        self._modules = ModuleNames()

    def begins(self) -> None:
        """Before a step. Module names are looked up only where the step before followed no schedule."""
        if self._steps >= _WARM_UP_STEPS and self._followed is None and not self._gave_up:
            self._modules.install()

    def close(self) -> None:
        """Before the end, and after a step that raised."""
        self._modules.remove()

    def finish(self) -> None:
        """At the end: saves the timeline, where one is asked for. A failure is a warning."""
        self.close()
        if self._save_timeline is None:
            return
        if self._last is None:
            self._warn("no step followed a plan to its end, so there is no timeline to save")
            return
        recording, planned = self._last
        try:
            step = captured(recording, "measured", count_flops)
            self._save_timeline(timeline(recording, step.trace, step.numbers, self._machine, planned.plan.planner))
        except (OSError, ValueError) as error:
            self._warn(f"the timeline could not be saved: {error}")

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
        self._followed = _torch.followed()
        return self._followed is not None

    @property
    def wants_recordings(self) -> bool:
        """Whether another step may still be planned, or is to be shown."""
        more = not self._gave_up and len(self._plans) < _MOST_PLANS and len(self._seen) < _MOST_SHAPES
        return more or self._save_timeline is not None

    def learn(self, budget_bytes: int) -> None:
        """Plans the step that just ended, if it is worth it; ``budget_bytes`` is the arena's, 0 for none.

        Whatever goes wrong here is a warning: the run goes on, as it would without a plan.
        """
        if not self.wants_recordings or self._steps <= _WARM_UP_STEPS or not budget_bytes:
            return
        if self._followed is not None and not self._measures and self._save_timeline is None:
            return
        recording = _torch.take_recording()
        if not len(recording["tick_name"]):
            return  # the step was too long to be recorded
        try:
            if self._followed is None:
                self._learn(captured(recording, "recorded", count_flops), budget_bytes)
            elif self._followed in self._plans:
                self._learn_from(recording, self._plans[self._followed], budget_bytes)
        except Exception as error:
            self._gave_up = not self._plans
            found = "no plan was found for a step, so steps like it run in demand mode"
            kept = "a step could not be planned anew from what its moves showed, so its plan stays"
            self._warn(f"{found if self._followed is None else kept}: {error}")

    def _learn(self, recorded: Captured, budget_bytes: int) -> None:
        signature = recorded.trace.signature()
        recurs = signature in self._seen or not self._plans
        self._seen.add(signature)
        if not recurs or signature in self._tried:
            return
        self._tried.add(signature)
        first = not self._plans
        number = self._plan(recorded.trace, recorded, budget_bytes)
        if first:
            self._keep(recorded.trace, self._plans[number].plan)

    def _learn_from(self, recording: "_torch.Recording", planned: Planned, budget_bytes: int) -> None:
        """A step that followed a schedule shows what its moves cost."""
        assert self._followed is not None
        if self._save_timeline is not None:
            self._last = (recording, planned)
        self._times_followed[self._followed] += 1
        if not self._measures or self._times_followed[self._followed] != _SETTLED:
            return
        self._measures = False
        measured = rates(recording, planned.trace).applied_to(self._machine)
        if not _is_news(self._machine, measured):
            return
        self._machine = measured
        step = captured(recording, "recorded", count_flops)
        if step.trace.signature() == planned.trace.signature():
            is_first = next(iter(self._plans)) == self._followed
            number = self._plan(planned.trace, step, budget_bytes)
            del self._plans[self._followed]
            if is_first:
                self._keep(planned.trace, self._plans[number].plan)

    def _plan(self, trace: Trace, step: Captured, budget_bytes: int) -> int:
        """The number of the schedule for steps like ``step``; the times are those of ``trace``."""
        fits = peak(live_bytes(trace, arena_pages)) <= budget_bytes
        began = time.perf_counter_ns()
        try:
            plan = self._planner(trace, self._machine, budget_bytes if fits else budget_bytes - budget_bytes // _SPARE)
        except InfeasibleBudgetError:
            plan = self._planner(trace, self._machine, budget_bytes)
        plan = replace(plan, plan_ns=time.perf_counter_ns() - began)
        number = load_plan(plan, trace, self._machine, step.serials)
        self._plans[number] = Planned(plan, trace)
        give_back_freed_memory()
        _torch.remeasure_rest()  # planning took memory, and is over
        return number

    def _keep(self, trace: Trace, plan: Plan) -> None:
        try:
            self._save(trace, plan)
        except OSError as error:
            self._warn(f"the trace or the plan could not be saved: {error}")


def _is_news(before: Machine, after: Machine) -> bool:
    """Whether what was measured differs enough to change a plan."""
    speeds = [(link.bytes_per_s, now.bytes_per_s) for link, now in zip(before.links, after.links, strict=True)]
    speeds += [(group.bytes_per_s, now.bytes_per_s) for group, now in zip(before.groups, after.groups, strict=True)]
    slower = [abs(link.slows_compute - now.slows_compute) for link, now in zip(before.links, after.links, strict=True)]
    return any(abs(now / was - 1) > _NEWS for was, now in speeds) or any(change > _NEWS / 2 for change in slower)
