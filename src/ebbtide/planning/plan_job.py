"""A planner's job and its answer, as plain data that goes between processes. Imports no torch.

``carry_out`` does everything that takes memory: the trace, the search, the schedule. The training process holds the
recording's columns before it, and the schedule's after it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np

from ebbtide.capture.rates import rates
from ebbtide.capture.recording import Captured, capture
from ebbtide.capture.tick_times import TickTimes, typical_ns, with_times
from ebbtide.capture.timeline import timeline
from ebbtide.errors import EbbtideError, InfeasibleBudgetError
from ebbtide.ir.files import decode, encode
from ebbtide.ir.machine import Machine
from ebbtide.ir.native import NEVER
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.recording import Recording
from ebbtide.ir.run_report import LinkReport, PlanReport
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import Planner, page_size_of
from ebbtide.planning.load_schedule import ScheduleColumns, schedule_columns
from ebbtide.simulator import simulate_plan
from ebbtide.units import KIB, MIB, format_bytes

Forecast: TypeAlias = Callable[[Plan, Trace, Machine], tuple[LinkReport, ...]]

MARK = b"\0the answer of ebbtide's planning process\0"
"""Marks the answer on the planning process's standard output. Output of a ``sitecustomize`` comes before it."""

_SPARE = 48  # this part of the arena's budget stays free for what no trace shows: pages on their way, late evictions
_SHORT = 8  # a plan may need more than there is by this part: it still beats none, and the decider finds the rest
_WEAR = 0.05  # a training writes tens of TB a day, and disks last for some hundreds
_EFFORT = 8  # the effort of a planner beside steps that follow a plan already: nobody waits for it
_FASTER = 0.002  # a plan replaces another if it is predicted to be faster by this share
_NEWS = 0.1  # a copy's time this share off the probe's, or half of it as a slowdown, is worth another plan

_BASE_BYTES = 24 * MIB
"""The base cost of a planning process: Python, NumPy and the planners take 20 MiB of their own."""
_PER_ROW_BYTES = 4 * KIB
"""The cost of each tick and storage on top: 3.9 KiB was measured at 12,006 ticks and 7,502 storages."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A plan that is followed, from which another is planned.

    ``trace`` is the one that the plan was made from, as a file's bytes. ``times`` are of steps that followed the plan.
    ``measures``: moves show what the machine does, and news of it is worth another plan. ``anew``: another plan is made
    in any case. ``plan``, as a file's bytes, is the one to be replaced only by a faster one; else it is empty.
    """

    trace: bytes
    times: tuple[TickTimes, ...]
    measures: bool
    anew: bool
    plan: bytes = b""


@dataclass(frozen=True, slots=True)
class Job:
    """A recorded step to be planned.

    ``flops`` are those of its operators (``flop_table``). ``followed``: the step followed a plan, and is planned anew
    with the typical times of steps like it. ``shown`` is a planner's name: the step is wanted as a timeline with this
    name, and not planned. ``shared_bytes`` is how much of the budget tiers that pack take when they fill up. Their
    memory is the process's own, so where the process is bounded the arena loses it. ``name`` and ``device`` are the
    trace's. ``repeating`` has its operators that repeat, with their overloads.
    """

    recording: Recording
    flops: Mapping[tuple[str, str], int]
    machine: Machine
    budget_bytes: int
    followed: Followed | None = None
    shown: str | None = None
    shared_bytes: int = 0
    name: str = ""
    repeating: frozenset[tuple[str, str]] = frozenset()
    device: str | None = None

    @property
    def effort(self) -> int:
        """The planner's effort, as a multiple of what it spends where somebody waits for the plan."""
        return 1 if self.followed is None else _EFFORT

    @property
    def wear(self) -> float:
        """The share that a step may take longer to write its peak less. An accelerator's slow tier does not wear."""
        return _WEAR if self.device is None else 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A job's result. ``schedule`` is for native code to follow, None where nothing new was planned.

    ``machine`` is the one that was planned for. ``trace``, ``plan`` and ``timeline`` are files' bytes, empty where not
    made. ``report`` counts one plan.
    """

    schedule: ScheduleColumns | None
    machine: Machine
    report: PlanReport | None = None
    trace: bytes = b""
    plan: bytes = b""
    timeline: bytes = b""


class Asked(Protocol):
    """A job that is being carried out."""

    def wait(self, most_s: float | None) -> bool:
        """Wait at most this long (None: without end) and returns whether it has ended."""

    def steps_go_on(self) -> bool:
        """Let steps go on meanwhile. Return False where there is no room for both: then callers MUST wait for it."""

    def answer(self) -> Answer:
        """Return the answer of a job that has ended. Raises what the planner raised."""

    def stop(self) -> None:
        """End it without an answer, if it has not ended."""


Ask: TypeAlias = Callable[[Job], Asked]
"""A function that has a job carried out. It raises EbbtideError where that cannot even begin."""


class PlanningKilledError(EbbtideError):
    """Raised where a signal ended the planning process. This says nothing of the step: another try may work."""


def planning_bytes(recording: Recording) -> int:
    """Estimate the bytes that a process takes to plan a recorded step."""
    return planning_bytes_for(recording.n_ticks + recording.n_storages)


def planning_bytes_for(rows: int) -> int:
    """Estimate the same for so many ticks and storages together."""
    return _BASE_BYTES + rows * _PER_ROW_BYTES


def no_forecast(plan: Plan, trace: Trace, machine: Machine) -> tuple[LinkReport, ...]:
    """Forecast nothing, for no link."""
    return ()


def carry_out(job: Job, planner: Planner, forecast: Forecast = no_forecast) -> Answer:
    """Plan the job's step. ``forecast`` says of a plan what each link copies. Raises whatever the planner raises, and
    ValueError for a recording that is none."""
    step = capture(
        job.recording,
        job.name,
        lambda *operator: job.flops.get(operator, 0),
        repeats=lambda *operator: operator in job.repeating,
        device=job.device,
    )
    if job.shown is not None:
        shown = timeline(job.recording, step.trace, step.numbers, job.machine, job.shown)
        return Answer(None, job.machine, timeline=encode(shown))
    if job.followed is None:
        return _planned(step.trace, step, job.machine, job, planner, forecast)
    followed, machine = job.followed, job.machine
    trace = decode(followed.trace, Trace)
    if step.trace.signature() != trace.signature():
        return Answer(None, machine)
    if followed.measures:
        machine = rates(job.recording, trace).applied_to(machine)
    typical = with_times(trace, typical_ns(followed.times, machine))
    if followed.anew or _is_news(job.machine, machine):
        return _planned(typical, step, machine, job, planner, forecast)
    if not followed.plan:
        return Answer(None, job.machine)
    answer = _planned(typical, step, job.machine, job, planner, forecast)
    made, now = decode(answer.plan, Plan), decode(followed.plan, Plan)
    kept = job.machine.with_budget(made.budget_bytes)
    now_ns = simulate_plan(now, typical, kept, page_size_of(kept)).step_ns
    return answer if made.predicted_ns < now_ns * (1 - _FASTER) else Answer(None, job.machine)


def _planned(trace: Trace, step: Captured, machine: Machine, job: Job, planner: Planner, forecast: Forecast) -> Answer:
    """Answer with a schedule for steps like ``step``; the times are those of ``trace``."""
    plan = _decided(trace, machine, job, planner)
    report = PlanReport(
        planner=plan.planner,
        status=str(plan.status),
        budget_bytes=plan.budget_bytes,
        step_s=trace.step_ns / 1e9,
        predicted_s=plan.predicted_ns / 1e9,
        lower_bound_s=plan.lower_bound_ns / 1e9,
        plan_s=plan.plan_ns / 1e9,
        plans=1,
        links=forecast(plan, trace, machine),
    )
    schedule = schedule_columns(plan, trace, machine, step.serials, job.budget_bytes)
    return Answer(schedule, machine, report, encode(trace), encode(plan))


def _decided(trace: Trace, machine: Machine, job: Job, planner: Planner) -> Plan:
    """Make a plan. Where tiers that pack take of the budget, it makes two: one without them, and one with them for the
    rest of the budget. It returns the faster one."""
    shrinks = bool(machine.packing) and bool((trace.storages.packed_bytes != NEVER).any())
    if not job.shared_bytes or not shrinks:
        return _made_for(trace, machine, job.budget_bytes, planner)
    unpacked = replace(trace, storages=replace(trace.storages, packed_bytes=np.full(len(trace.storages), NEVER)))
    made: list[Plan] = []
    trouble: EbbtideError | None = None
    for seen, budget_bytes in ((unpacked, job.budget_bytes), (trace, job.budget_bytes - job.shared_bytes)):
        try:
            made.append(_made_for(seen, machine, budget_bytes, planner))
        except EbbtideError as error:
            trouble = trouble or error
    if not made:
        assert trouble is not None
        raise trouble
    return min(made, key=lambda plan: plan.predicted_ns)


def _made_for(trace: Trace, machine: Machine, budget_bytes: int, planner: Planner) -> Plan:
    """Make a plan with a reserve if anything has to move. If no plan keeps that, it plans without a reserve, or for a
    little more than there is."""
    fits = peak(live_bytes(trace, page_size_of(machine))) <= budget_bytes
    try:
        return planner(trace, machine, budget_bytes if fits else budget_bytes - budget_bytes // _SPARE)
    except InfeasibleBudgetError as error:
        if error.minimum_bytes > budget_bytes + budget_bytes // _SHORT:
            raise EbbtideError(
                f"a plan counts {format_bytes(error.minimum_bytes)} of tensors at once at {error.operation}, and there "
                f"are {format_bytes(budget_bytes)}; without a plan less is enough"
            ) from error
        return planner(trace, machine, max(budget_bytes, error.minimum_bytes))


def _is_news(before: Machine, after: Machine) -> bool:
    """Tell whether the measurements differ enough to change a plan."""
    # A copy of this size shows both a link's latency and its rate.
    costs = [(link.copy_ns(MIB), now.copy_ns(MIB)) for link, now in zip(before.links, after.links, strict=True)]
    costs += [(group.bytes_per_s, now.bytes_per_s) for group, now in zip(before.groups, after.groups, strict=True)]
    slower = [abs(link.slows_compute - now.slows_compute) for link, now in zip(before.links, after.links, strict=True)]
    return any(abs(now / was - 1) > _NEWS for was, now in costs) or any(change > _NEWS / 2 for change in slower)


def with_seconds(answer: Answer, seconds: float) -> Answer:
    """Return the answer with the time that planning took in all."""
    report = None if answer.report is None else replace(answer.report, plan_s=seconds)
    return replace(answer, report=report)
