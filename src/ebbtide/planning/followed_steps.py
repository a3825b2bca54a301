"""What the steps that follow one plan show of their times, and when those are worth another plan.

The recorded step alone says too little: it touches memory for the first time. Of the steps that follow its plan two are
looked at, and five each twice later on. Kept are columns of a few steps, not recordings, since what a training process
keeps counts against its budget.
"""

from collections import deque
from dataclasses import dataclass, replace
from math import inf

from ebbtide.capture.tick_times import TickTimes, typical_ns
from ebbtide.capture.timeline import Traffic
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import PlanStatus
from ebbtide.ir.recording import Recording
from ebbtide.ir.run_report import LinkReport, PlanReport
from ebbtide.units import seconds

_KEPT = 5
_LOOKS = ((0, 2), (3, 5), (27, 5))  # once so many steps have followed, the times of so many more, and a look at them
_NEWS = 0.1  # a step that takes so much more or less (as a share) is worth another plan


class FollowedSteps:
    """Steps of one shape; plans that are made anew for it share this. ``looks``: they may be planned anew.

    ``trace`` is that of the plan they follow, as a file's bytes, while it may be needed, and ``plan`` the plan itself,
    while a faster one may be looked for. ``fastest_s`` is what the fastest step took that followed a plan. ``gone``:
    of the plan's storages, how many were known to have gone.
    """

    def __init__(self, recorded: Recording, looks: bool) -> None:
        self.trace = self.plan = b""
        self.fastest_s = inf
        self.gone = 0
        self.traffic: Traffic | None = None  # of the last step looked at that followed the plan
        self._times = deque([TickTimes.of(recorded)] if looks else [], maxlen=_KEPT)
        self._followed = self._noted = 0
        self._looks = list(_LOOKS) if looks else []

    @property
    def looked_at(self) -> bool:
        """Whether what the step that just ended took is wanted."""
        return bool(self._looks) and self._followed > self._looks[0][0]

    def ended(self, wall_s: float) -> None:
        self._followed += 1
        self.fastest_s = min(self.fastest_s, wall_s)

    def note(self, recording: Recording) -> bool:
        """Whether enough of them are known. Callers MUST have found that the step is alike."""
        self._times.append(TickTimes.of(recording))
        self._noted += 1
        if self._noted < self._looks[0][1]:
            return False
        self._noted = 0
        del self._looks[0]
        return True

    def are_news(self, planned: PlanReport, machine: Machine) -> bool:
        """Whether they differ from what their plan was made for, or one was faster than it takes for possible."""
        typical_s = seconds(int(typical_ns(self._times, machine).sum()))
        return self.bound_s(planned) is None or abs(typical_s / max(planned.step_s, 1e-9) - 1) > _NEWS

    def times(self) -> tuple[TickTimes, ...]:
        return tuple(self._times)

    def follow(self, trace: bytes, plan: bytes) -> None:
        """A plan made from ``trace`` from now on. ``plan`` is empty where no faster one is to be looked for."""
        self.traffic, self.gone = None, 0
        self.trace, self.plan = (trace, plan) if self._looks else (b"", b"")
        if not self._looks:
            self._times.clear()

    def bound_s(self, planned: PlanReport) -> float | None:
        """None where a step was faster."""
        bound_s = planned.lower_bound_s
        return None if bound_s is None or self.fastest_s < bound_s else bound_s


def with_measured(report: PlanReport, traffic: Traffic | None) -> PlanReport:
    """The forecast of each link, and beside it what such a step came to."""
    if traffic is None:
        return report
    foreseen = {link.name: link for link in report.links}
    named = [*foreseen, *sorted(traffic.links.keys() - foreseen.keys())]
    links = []
    for name in named:
        nbytes, busy_ns = traffic.links.get(name, (0, 0))
        link = foreseen.get(name) or LinkReport(name, 0, 0.0)
        links.append(replace(link, measured_bytes=nbytes, measured_busy_s=seconds(busy_ns)))
    return replace(report, links=tuple(links), measured_s=seconds(traffic.step_ns))


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known of a plan that is followed: what steps it is for, and what they showed."""

    report: PlanReport
    like: str
    steps: FollowedSteps

    def told(self) -> PlanReport:
        """The plan, with what was measured of it; proved to be optimal only where no step was faster than its bound."""
        report = with_measured(self.report, self.steps.traffic)
        bound_s = self.steps.bound_s(report)
        refuted = bound_s is None and report.lower_bound_s is not None and report.status == PlanStatus.OPTIMAL
        return replace(report, lower_bound_s=bound_s, status=PlanStatus.FEASIBLE if refuted else report.status)
