"""The subject of a report: a step's trace and plan, its timelines, a run's figures, and the route to a slow tier."""

from dataclasses import dataclass
from math import inf

from ebbtide.analysis.swapping import Route
from ebbtide.errors import OTHER_STORAGES, ReportError
from ebbtide.ir.base import Origin
from ebbtide.ir.plan import Plan
from ebbtide.ir.run_report import RunReport, StepMode
from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Trace
from ebbtide.report.answers import TriedBudget
from ebbtide.units import seconds


@dataclass(frozen=True, slots=True)
class Subject:
    """The parts of a report, any of which may be missing.

    ``machine`` names the machine of ``route``, and ``origin`` says how its figures were obtained. ``times`` says whose
    times the operations have, where a reader could take them for the machine's. ``file`` is the trace's. Raises
    ReportError for parts of different steps, and if there is nothing to show.
    """

    trace: Trace | None = None
    plan: Plan | None = None
    timelines: tuple[Timeline, ...] = ()
    run: RunReport | None = None
    route: Route | None = None
    machine: str = ""
    origin: Origin = Origin.ASSUMED
    budgets: tuple[TriedBudget, ...] = ()
    times: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        if self.trace is None and not self.timelines:
            raise ReportError("there is nothing to draw: give a trace or a timeline as well")
        if self.trace is None:
            return
        if self.plan is not None and self.plan.signature != self.trace.signature():
            raise ReportError(f"the plan is not for the trace: {OTHER_STORAGES}")
        for timeline in self.timelines:
            if not timeline.fits(self.trace):
                raise ReportError(f"the timeline of {timeline.policy!r:.80} is of another step than the trace's")

    @property
    def bound_is_beaten(self) -> bool:
        """Say whether a measured step within the plan's budget took less time than the plan's bound."""
        plan, run = self.plan, self.run
        if plan is None:
            return False
        took_s = [
            seconds(timeline.step_ns)
            for timeline in self.timelines
            if timeline.origin is Origin.MEASURED
            and max((level.nbytes for level in timeline.levels), default=0) <= plan.budget_bytes
        ]
        followed = None if run is None else run.plan
        if run is not None and followed is not None and followed.plans == 1:  # several plans: several shapes of steps
            within = followed.budget_bytes <= plan.budget_bytes
            took_s += [step.wall_s for step in run.steps if within and step.mode is StepMode.PLANNED]
        return min(took_s, default=inf) < seconds(plan.lower_bound_ns)
