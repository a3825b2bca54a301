"""Times of the steps that follow one plan, and whether they are worth another plan.

The recorded step alone shows too little: it touches memory for the first time. So two of the steps that follow its plan
are measured, and five each twice later on. Three more are measured where steps come to take another time: the script
does more (an average of its weights, say), or the machine does less. Only columns of a few steps are kept, not
recordings: a training process keeps them within its budget.
"""

from collections import deque
from dataclasses import dataclass, replace
from math import inf
from statistics import median

from ebbtide.capture.tick_times import TickTimes, typical_ns
from ebbtide.capture.timeline import Traffic
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import PlanStatus
from ebbtide.ir.recording import Recording
from ebbtide.ir.run_report import LinkReport, PlanReport
from ebbtide.units import seconds

_KEPT = 5
_LOOKS = ((0, 2), (3, 5), (27, 5))  # (followed, n): after more than this many steps that followed, n are measured
_LOOK_AGAIN = (0, 3)  # most of the steps that are kept are then of now
_JUDGED = 5  # steps that follow a plan, after which its forecast is judged
_NEWS = 0.1  # a step whose time differs by this share is worth another plan
_DRIFT, _DRIFTED = 0.15, 3  # where the time of so many steps in a row differs by that share, it is another


class FollowedSteps:
    """Steps of one shape. Plans that are made anew for it share this. ``looks``: they may be planned anew.

    ``trace`` is the trace of the plan that they follow, as a file's bytes. ``plan`` is the plan itself, while a faster
    one may be wanted. ``fastest_s`` is the time of the fastest step that followed a plan. ``gone`` is how many of the
    plan's storages were known to be freed. ``budget_bytes`` is what there was when a plan was asked for last.
    ``unlike`` counts the measured steps since the last one that was as planned.
    """

    def __init__(self, recorded: Recording, looks: bool) -> None:
        self.trace = self.plan = b""
        self.fastest_s = inf
        self.gone = self.budget_bytes = self.unlike = 0
        self.made = 0  # plans for them, the replaced ones too, since most of their storages were new
        self.last = 0  # the run's last step that followed one
        self.traffic: Traffic | None = None  # of the last measured step that followed the plan
        self._times = deque([TickTimes.of(recorded)], maxlen=_KEPT)
        self._followed = self._noted = 0
        self._walls_s: list[float] = []  # of the first steps that followed the present plan
        self._usual_s = 0.0
        self._last_s: deque[float] = deque(maxlen=_DRIFTED)
        self._drifts_from = 0 if looks else inf  # so many steps must have followed
        self._looks = list(_LOOKS) if looks else []

    @property
    def looked_at(self) -> bool:
        """True where the step that just ended is to be measured."""
        return bool(self._looks) and self._followed > self._looks[0][0]

    def ended(self, wall_s: float) -> None:
        self._followed += 1
        self.fastest_s = min(self.fastest_s, wall_s)
        if len(self._walls_s) <= _JUDGED:
            self._walls_s.append(wall_s)
            self._usual_s = median(self._walls_s)
            return
        self._last_s.append(wall_s)
        off = [abs(last_s - self._usual_s) > _DRIFT * self._usual_s for last_s in self._last_s]
        if len(off) == _DRIFTED and all(off) and not self._looks and self._followed >= self._drifts_from:
            self._usual_s = median(self._last_s)
            self._drifts_from = 2 * self._followed  # a machine whose steps vary is not looked at all the time
            self._looks.append(_LOOK_AGAIN)

    def missed(self, planned: PlanReport) -> tuple[float, float] | None:
        """Return how many times as long as forecast the plan's first steps took, and their median, if it was missed:
        once, after the step that tells."""
        typical_s = median(self._walls_s)
        times = planned.missed_by(typical_s) if len(self._walls_s) == _JUDGED else None
        return None if times is None else (times, typical_s)

    def note(self, recording: Recording) -> bool:
        """Add a step's times and return whether there are enough. Callers MUST have found that the step is alike."""
        self._times.append(TickTimes.of(recording))
        self.unlike = 0
        self._noted += 1
        if self._noted < self._looks[0][1]:
            return False
        self._noted = 0
        del self._looks[0]
        return True

    def are_news(self, planned: PlanReport, machine: Machine) -> bool:
        """Tell whether the steps differ from what their plan assumed, or one beat its bound."""
        typical_s = seconds(int(typical_ns(self._times, machine).sum()))
        return self.bound_s(planned) is None or abs(typical_s / max(planned.step_s, 1e-9) - 1) > _NEWS

    def times(self) -> tuple[TickTimes, ...]:
        return tuple(self._times)

    def follow(self, trace: bytes, plan: bytes) -> None:
        """Note that steps follow a plan made from ``trace``. ``plan`` is empty where no faster one is wanted."""
        self.traffic, self.gone = None, 0
        self._walls_s.clear()
        self._last_s.clear()
        self.trace, self.plan = trace, plan if self._looks else b""

    def bound_s(self, planned: PlanReport) -> float | None:
        """Return the plan's bound; None where a step was faster."""
        bound_s = planned.lower_bound_s
        return None if bound_s is None or self.fastest_s < bound_s else bound_s


def with_measured(report: PlanReport, traffic: Traffic | None) -> PlanReport:
    """Add to the forecast of each link what a measured step copied."""
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
    """A plan that is followed: the steps that it is for, and what they showed."""

    report: PlanReport
    like: str
    steps: FollowedSteps

    def told(self) -> PlanReport:
        """Return the plan's report with what was measured. OPTIMAL stays if no step was faster than the bound."""
        report = with_measured(self.report, self.steps.traffic)
        bound_s = self.steps.bound_s(report)
        refuted = bound_s is None and report.lower_bound_s is not None and report.status == PlanStatus.OPTIMAL
        return replace(report, lower_bound_s=bound_s, status=PlanStatus.FEASIBLE if refuted else report.status)
