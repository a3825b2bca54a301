"""Forecasts that hold: times come from steps that follow a plan too, and no bound is told that such a step has beaten.

Native code is stood in for; planning is real, and is done at once. A made step has four ticks and one parameter.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401 (loads the libraries that native code needs)

from ebbtide.capture.timeline import Traffic, traffic
from ebbtide.ir.files import decode
from ebbtide.ir.native import Lane
from ebbtide.ir.recording import Recording
from ebbtide.ir.run_report import LinkReport, PlanReport
from ebbtide.ir.trace import Trace
from ebbtide.planning import planning
from ebbtide.planning.followed_steps import FollowedSteps, with_measured
from ebbtide.planning.plan_job import Answer, Job, carry_out
from ebbtide.planning.planning import Planning, Wanted
from ebbtide.planning.policies import planner_named
from ebbtide.units import MIB
from tests.helpers.ask_here import ask_here
from tests.helpers.make_recording import recording
from tests.helpers.make_steps import disk

MS = 1_000_000
N_TICKS = 4
COLD, WARM = 100, 60  # ms a tick


def made_step(tick_ms: int, spans: Sequence[tuple[Lane, int, int]] = ()) -> Recording:
    begins = [tick * tick_ms * MS for tick in range(N_TICKS)]
    return recording(
        time_ns=N_TICKS * tick_ms * MS,
        tick_begin_ns=begins,
        nbytes=[MIB],
        birth=[-1],
        death=[-1],
        serial=[1],
        use_storage=[0],
        use_first=[1],
        use_last=[2],
        span_storage=[0] * len(spans),
        span_lane=[lane for lane, _, _ in spans],
        span_begin_ns=[begin * MS for _, begin, _ in spans],
        span_end_ns=[end * MS for _, _, end in spans],
    )


class Native:
    """Stands for native code: each step follows the schedule that was loaded last, if there is one."""

    def __init__(self) -> None:
        self.step = made_step(COLD)
        self.schedules = self.taken = self.lost = 0
        self.left = 100
        self.unloaded: list[int] = []

    def followed(self) -> int | None:
        return self.schedules - 1 if self.schedules else None

    def gone(self) -> int:
        return self.lost

    def take_recording(self) -> Recording:
        self.taken += 1
        return self.step

    def load_schedule(self, columns: object) -> int:
        self.schedules += 1
        self.lost = 0
        return self.schedules - 1

    def standing(self) -> int:
        return self.left

    def unload_schedule(self, number: int) -> None:
        self.unloaded.append(number)

    def remeasure_unmanaged(self) -> None:
        pass


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Native:
    found = Native()
    monkeypatch.setattr(planning, "_torch", found)
    return found


class Run:
    """A run of made steps."""

    def __init__(self, native: Native, work: Callable[[Job], Answer] | None = None, **more: Any) -> None:
        self.native = native
        self.jobs: list[Job] = []
        self.saved: list[Trace] = []
        self.warned: list[str] = []
        self._work = work or (lambda job: carry_out(job, planner_named("ebbtide")))
        save = lambda trace, plan: self.saved.append(decode(trace, Trace))  # noqa: E731
        wanted = Wanted(save=save, **more)
        self.planning = Planning(ask_here(self._carry_out), disk(), wanted, warn=self.warned.append)

    def _carry_out(self, job: Job) -> Answer:
        self.jobs.append(job)
        return self._work(job)

    def steps(self, number: int, step: Recording) -> None:
        self.native.step = step
        for _ in range(number):
            self.planning.ended(step.time_ns / 1e9, moved=True)
            self.planning.learn(100 * MIB)

    @property
    def plan(self) -> PlanReport:
        report = self.planning.report()
        assert report is not None
        return report


class Shapes(Native):
    """Steps that follow the schedule of their shape, if there is one. A shape is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = 0
        self.loaded: dict[int, int] = {}  # shapes by schedule

    def followed(self) -> int | None:
        return next((number for number, shape in self.loaded.items() if shape == self.shape), None)

    def load_schedule(self, columns: object) -> int:
        number = next(number for number in range(100) if number not in self.loaded)
        self.loaded[number] = self.shape
        self.schedules += 1
        return number

    def unload_schedule(self, number: int) -> None:
        del self.loaded[number]


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Shapes:
    found = Shapes()
    monkeypatch.setattr(planning, "_torch", found)
    monkeypatch.setattr(planning, "likeness", lambda recording: f"shape {found.shape}")
    return found


def test_a_first_step_that_was_slower_than_the_later_ones_is_planned_anew_with_their_times(native: Native) -> None:
    run = Run(native)
    run.steps(2, made_step(COLD))
    assert (run.plan.step_s, run.plan.lower_bound_s, run.plan.predicted_s) == (0.4, 0.4, 0.4)
    run.steps(1, made_step(WARM))
    assert run.plan.lower_bound_s is None  # the step took 0.24 s
    run.steps(2, made_step(WARM))
    assert (run.plan.step_s, run.plan.lower_bound_s, run.plan.predicted_s) == (0.24, 0.24, 0.24)
    assert [trace.step_ns for trace in run.saved] == [400 * MS, 240 * MS]  # what is saved is what is reported
    assert (native.schedules, run.plan.plans, run.warned) == (2, 1, [])


def test_a_bound_that_a_later_step_beats_is_no_bound(native: Native) -> None:
    run = Run(native)
    run.steps(6, made_step(WARM))
    assert (run.plan.lower_bound_s, run.plan.status) == (0.24, "optimal")
    run.planning.ended(0.23, moved=True)
    assert (run.plan.lower_bound_s, run.plan.status) == (None, "feasible")
    assert run.plan.predicted_s == 0.24


@pytest.mark.parametrize("named", [False, True])
def test_what_has_gone_of_a_plan_has_the_step_planned_anew_once(native: Native, named: bool) -> None:
    """With the times that are known, and however many looks there were; a named plan is only told of what is there."""
    run = Run(native, fixed=named)
    run.steps(50, made_step(WARM))
    for round in range(1, 3):
        native.lost = 3
        run.steps(10, made_step(WARM))
        assert (len(run.jobs), native.schedules, run.plan.plans, run.warned) == (round + 1, round + 1, 1, [])
        assert run.plan.step_s == 0.24
    native.lost = 1
    run.steps(1, made_step(WARM))
    assert len(run.jobs) == 4


def test_a_step_that_cannot_be_planned_anew_for_what_has_gone_is_not_asked_for_again(native: Native) -> None:
    run = Run(native)
    run.steps(4, made_step(WARM))
    run._work = lambda job: Answer(None, disk())
    native.lost = 2
    run.steps(10, made_step(WARM))
    assert (len(run.jobs), native.schedules) == (2, 1)
    native.lost = 3
    run.steps(10, made_step(WARM))
    assert len(run.jobs) == 3


def test_once_all_plans_are_made_what_has_gone_is_looked_at_no_more(native: Native) -> None:
    run = Run(native)
    for _ in range(20):
        native.lost = 1
        run.steps(2, made_step(WARM))
    native.lost = 1
    run.steps(2, made_step(WARM))
    assert native.schedules == planning._MOST_PLANS
    taken = native.taken
    run.steps(50, made_step(WARM))
    assert native.taken <= taken + 20  # what the looks at typical times take


def test_a_model_that_is_gone_gives_back_the_plans_that_were_made_for_it(native: Native) -> None:
    """The twentieth of the same shapes is planned as the first."""
    run = Run(native)
    native.left = 3
    for _ in range(2 * planning._MOST_PLANS):
        native.lost = 4
        run.steps(2, made_step(WARM))
    assert native.schedules > 1.5 * planning._MOST_PLANS
    assert native.unloaded == [*range(native.schedules - 1)]  # each that was replaced


def test_times_that_are_no_news_cost_no_plan_and_soon_no_recordings(native: Native) -> None:
    run = Run(native)
    run.steps(50, made_step(WARM))
    assert (len(run.jobs), native.schedules, run.plan.plans) == (1, 1, 1)
    taken = native.taken
    run.steps(50, made_step(WARM))
    assert native.taken == taken


def test_a_faster_plan_is_looked_for_once_and_only_where_there_is_something_to_gain(native: Native) -> None:
    run = Run(native, improves=True)
    run.steps(50, made_step(WARM))
    assert len(run.jobs) == 1  # the first plan was optimal

    def slow(job: Job) -> Answer:
        answer = carry_out(job, planner_named("ebbtide"))
        report = None if answer.report is None else replace(answer.report, lower_bound_s=answer.report.predicted_s / 2)
        return replace(answer, report=report)

    run = Run(native, slow, improves=True)
    native.schedules = 0
    run.steps(50, made_step(WARM))
    assert [(job.effort, job.followed is not None and bool(job.followed.plan)) for job in run.jobs] == [
        (1, False),
        (8, True),
    ]
    assert native.schedules == 1  # what was found was no faster


def test_a_machine_that_grows_faster_later_is_noticed(native: Native) -> None:
    run = Run(native)
    run.steps(4, made_step(COLD))
    run.steps(7, made_step(WARM))
    assert (native.schedules, run.plan.step_s, run.plan.lower_bound_s) == (2, 0.24, 0.24)


def test_what_copies_cost_beside_them_is_no_part_of_the_operations_times(native: Native) -> None:
    machine = disk()
    slowing = replace(machine, links=tuple(replace(link, slows_compute=0.5) for link in machine.links))
    run = Run(native)
    run.planning._machine = slowing
    run.steps(2, made_step(COLD))
    run.steps(3, made_step(90, [(Lane.OUT, 0, 360)]))
    assert run.plan.step_s == pytest.approx(0.24)


def test_a_plan_that_was_named_stays(native: Native) -> None:
    run = Run(native, fixed=True)
    run.steps(2, made_step(COLD))
    run.steps(50, made_step(WARM))
    assert (len(run.jobs), native.schedules) == (1, 1)
    assert run.plan.lower_bound_s is None


def test_steps_that_do_more_than_was_planned_are_planned_once_three_come_in_a_row(native: Native) -> None:
    """They allocate alike, so they follow the plan."""
    run = Run(native)
    run.steps(2, made_step(COLD))
    longer = replace(made_step(WARM), nbytes=made_step(WARM).nbytes + 1)
    run.steps(2, longer)
    run.steps(1, made_step(COLD))
    run.steps(2, longer)
    assert (len(run.jobs), native.unloaded) == (1, [])
    run.steps(1, longer)
    assert (len(run.jobs), native.unloaded) == (2, [0])
    run.steps(50, longer)
    assert (native.schedules, run.plan.step_s) == (2, 0.24)
    for _ in range(40):
        run.steps(3, made_step(COLD))
        run.steps(3, longer)
    assert 16 <= native.schedules <= 2 * planning._MOST_PLANS


@pytest.mark.parametrize("named", [False, True])
def test_steps_that_come_to_take_another_time_are_measured_again(native: Native, named: bool) -> None:
    run = Run(native, fixed=named)
    run.steps(60, made_step(WARM))
    for tick_ms in (COLD, WARM):
        run.steps(70, made_step(tick_ms))
        assert run.plan.step_s == (0.24 if named else N_TICKS * tick_ms / 1e3)
        run.steps(70, made_step(tick_ms))
    assert native.schedules == (1 if named else 3)


def test_a_machine_whose_steps_vary_is_not_measured_all_the_time(native: Native) -> None:
    run = Run(native)
    run.steps(50, made_step(WARM))
    jobs, taken = len(run.jobs), native.taken
    for _ in range(100):
        run.steps(3, made_step(WARM))
        run.steps(3, made_step(COLD))
    assert len(run.jobs) <= jobs + 5
    assert native.taken <= taken + 15


def test_another_budget_is_planned_for_once(native: Native) -> None:
    run = Run(native)
    run.steps(50, made_step(WARM))
    for budget_bytes, jobs in ((95, 1), (80, 2), (75, 2), (100, 3), (0, 3)):
        for _ in range(10):
            run.planning.ended(0.24, moved=True)
            run.planning.learn(budget_bytes * MIB)
        assert len(run.jobs) == native.schedules == jobs
        assert run.jobs[-1].budget_bytes == {1: 100, 2: 80, 3: 100}[jobs] * MIB
    run = Run(native, fixed=True)
    native.schedules = 0
    run.steps(10, made_step(WARM))
    run.planning.learn(50 * MIB)
    assert len(run.jobs) == 1


def test_a_timeline_is_of_a_step_like_the_saved_one(shapes: Shapes) -> None:
    shown: list[bytes] = []
    run = Run(shapes, save_timeline=shown.append)
    for shapes.shape, tick_ms in ((0, WARM), (1, COLD)):
        run.steps(5, made_step(tick_ms))
    run.planning.finish()
    assert run.jobs[-1].recording.time_ns == N_TICKS * WARM * MS
    assert len(shown) == 1


def test_a_saved_trace_has_the_names_of_the_first(native: Native) -> None:
    """They are noted before there is a plan, and not again."""
    run = Run(native)
    run.steps(50, replace(made_step(WARM), names=["", "net.0"], tick_module=np.ones(N_TICKS, dtype=np.int64)))
    for _ in range(2):
        native.lost = 1
        run.steps(2, made_step(WARM))
    assert ["net.0" in trace.operation(0) for trace in run.saved] == [True] * 3


def test_a_run_that_ends_as_it_starts_over_has_saved_a_plan_and_tells_of_it(native: Native) -> None:
    """``--optimizer auto`` tries another order."""
    run = Run(native, saved="plan")
    run.steps(4, made_step(WARM))
    run.planning.start_over()
    native.schedules = 0
    assert run.plan.step_s == 0.24
    run.steps(1, made_step(COLD))
    assert (native.schedules, run.plan.step_s) == (1, 0.24)  # no step has followed the new one
    run.planning.finish()
    assert run.planning.unsaved == ""
    assert len(run.saved) == 1


def test_the_plan_that_was_followed_last_is_told(shapes: Shapes) -> None:
    run = Run(shapes)
    run.steps(4, made_step(WARM))
    shapes.shape = 1
    run.steps(2, made_step(COLD))  # planned, and followed by none
    assert len(shapes.loaded) == 2
    shapes.shape = 0
    run.steps(1, made_step(WARM))
    assert run.plan.step_s == 0.24


def test_a_training_process_keeps_columns_of_a_few_steps(native: Native) -> None:
    run = Run(native)
    run.steps(2, made_step(COLD))
    (planned,) = run.planning._plans.values()
    assert [len(kept.took_ns) for kept in planned.steps.times()] == [N_TICKS]
    run.steps(8, made_step(WARM))
    (planned,) = run.planning._plans.values()
    assert len(planned.steps.times()) == 5
    assert planned.steps.times()[0].took_ns.itemsize == 4


def test_plans_of_one_shape_are_bounded(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_MOST_PLANS", 1)
    run = Run(native)
    run.steps(2, made_step(COLD))
    run.steps(50, made_step(WARM))
    assert native.schedules == 1


def test_the_hundredth_shape_is_planned_as_the_first(shapes: Shapes) -> None:
    run = Run(shapes)
    for shapes.shape in range(100):
        run.steps(3, made_step(WARM))
        assert shapes.followed() is not None
    assert len(shapes.loaded) == run.planning.plans == planning._MOST_PLANS
    assert len(run.saved) == 1  # the first plan is what is saved
    for shapes.shape in (*range(99, 99 - planning._MOST_PLANS, -1), 0):
        assert (shapes.followed() is None) == (shapes.shape == 0)  # the last ones are kept


def test_a_shape_that_comes_back_after_a_hundred_others_is_planned(shapes: Shapes) -> None:
    run = Run(shapes)
    for shapes.shape in (*range(100), 500, 500):
        run.steps(1, made_step(WARM))
    assert shapes.followed() is not None
    assert len(run.planning._shapes) <= planning._MOST_SHAPES


def test_shapes_that_take_turns_do_not_drive_out_each_others_plans(shapes: Shapes) -> None:
    run = Run(shapes)
    for _ in range(5):
        for shapes.shape in range(2 * planning._MOST_PLANS):
            run.steps(1, made_step(WARM))
    assert shapes.schedules == planning._MOST_PLANS


def test_each_links_forecast_stands_beside_what_a_step_came_to() -> None:
    ways = {"span_source": [0, 0, 1, 0], "span_target": [1, 1, 0, 0]}
    times = {"span_begin_ns": [0, 3, 5, 0], "span_end_ns": [4, 6, 9, 9]}
    lanes = [Lane.OUT, Lane.OUT, Lane.BACK, Lane.STALL_ROOM]
    step = recording(time_ns=10, nbytes=[100], span_lane=lanes, span_storage=[0] * 4, **ways, **times)
    machine = disk()
    fast, slow = (tier.name for tier in machine.tiers)
    shown = traffic(step, machine)
    assert shown == Traffic(10, {f"{fast}->{slow}": (200, 6), f"{slow}->{fast}": (100, 4)})
    foreseen = LinkReport(f"{fast}->{slow}", 300, 1.0), LinkReport("elsewhere", 1, 1.0)
    report = with_measured(PlanReport("ebbtide", "feasible", 1, 1.0, 1.0, 1.0, 0.0, 1, links=foreseen), shown)
    assert report.measured_s == 1e-8
    assert report.links == (
        replace(foreseen[0], measured_bytes=200, measured_busy_s=6e-9),
        replace(foreseen[1], measured_bytes=0, measured_busy_s=0.0),
        LinkReport(f"{slow}->{fast}", 0, 0.0, 100, 4e-9),
    )
    assert with_measured(report, None) is report


@pytest.mark.parametrize(("step_s", "times"), [(1.4, None), (1.5, 1.5), (0.6, None), (0.5, 0.5)])
def test_a_forecast_that_is_missed_by_half_is_told_once(step_s: float, times: float | None) -> None:
    steps, planned = FollowedSteps(made_step(COLD), looks=False), PlanReport("", "", 1, 1.0, 1.0, None, 0.0, 1)
    told = []
    for wall_s in (9.0, *[step_s] * 9):
        steps.ended(wall_s)
        told.append(steps.missed(planned))
    assert told == [None] * 4 + [None if times is None else (times, step_s)] + [None] * 5
    steps.follow(b"", b"")  # another plan
    for _ in range(5):
        steps.ended(step_s)
    assert steps.missed(planned) == (None if times is None else (times, step_s))
