"""What a session does around a planner: when it tries again, what it lets go of, and what it says where none was made.

Native code and the planner are stood in for; ``test_plans.py`` has real ones.
"""

import signal
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from subprocess import check_output
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401 (loads the libraries that native code needs)

import ebbtide
from ebbtide.capture.recording import likeness
from ebbtide.errors import EbbtideError
from ebbtide.ir.occupancy import arena_pages, needed_bytes
from ebbtide.ir.recording import Recording
from ebbtide.ir.run_report import LinkReport, PlanReport
from ebbtide.ir.schedule import no_commands
from ebbtide.planning import plan_child, planning
from ebbtide.planning.load_schedule import ScheduleColumns
from ebbtide.planning.plan_job import Answer, Job, PlanningKilledError, _made_for
from ebbtide.planning.planning import Planning, Wanted
from ebbtide.planning.policies import planner_named
from tests.helpers.ask_here import ask_here
from tests.helpers.make_recording import recording
from tests.helpers.make_steps import disk, network

SCHEDULE = ScheduleColumns(*[np.zeros(0, dtype=np.int64)] * 10, commands=no_commands())
REPORT = PlanReport("ebbtide", "feasible", 100, 1.0, 1.0, 1.0, 0.0, 1)


class Native:
    """Stands for native code: hands out recordings, and notes what becomes of them."""

    def __init__(self) -> None:
        self.handed: list[weakref.ref[Recording]] = []
        self.remeasured = 0

    def followed(self) -> None:
        return None

    def gone(self) -> int:
        return 0

    def take_recording(self) -> Recording:
        made = recording()
        self.handed.append(weakref.ref(made))
        return made

    def standing(self) -> int:
        return 100

    def load_schedule(self, columns: object) -> int:
        return 0

    def unload_schedule(self, number: int) -> None:
        pass

    def remeasure_unmanaged(self) -> None:
        self.remeasured += 1


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Native:
    found = Native()
    monkeypatch.setattr(planning, "_torch", found)
    monkeypatch.setattr(planning, "likeness", lambda recording: "alike")
    monkeypatch.setattr(planning, "flop_table", lambda recording, count: {})
    return found


def killed(job: Job) -> Answer:
    raise PlanningKilledError("the planning process ended with exit status -9: it said nothing")


def planned(job: Job) -> Answer:
    return Answer(SCHEDULE, job.machine, REPORT)


def after_steps(
    steps: int, work: Callable[[Job], Answer], say: Callable[[str], None] = lambda text: None, **more: Any
) -> tuple[Planning, list[str]]:
    said: list[str] = []
    made = Planning(ask_here(work), disk(), Wanted(**more), warn=said.append, say=say)
    for _ in range(steps):
        made.ended(1.0, moved=True)
        made.learn(100)
    return made, said


def test_a_step_whose_planning_was_killed_is_planned_when_it_comes_again(native: Native) -> None:
    asked: list[Job] = []

    def once_killed(job: Job) -> Answer:
        asked.append(job)
        return killed(job) if len(asked) == 1 else planned(job)

    made, said = after_steps(3, once_killed)
    assert made.report() is not None
    assert len(said) == 1
    assert "the next one like it will be" in said[0]


def test_planning_that_is_always_killed_is_given_up(native: Native) -> None:
    made, said = after_steps(9, killed)
    assert len(said) == 3
    assert "steps like it run in demand mode" in said[-1]
    assert not made.wants_recordings


def test_steps_in_which_nothing_moves_are_recorded_no_more_until_something_does(native: Native) -> None:
    """In small nets a recording takes as long as the step."""
    made, _ = after_steps(1, planned)
    for _ in range(planning._AT_REST):
        assert made.wants_recordings
        made.ended(1.0, moved=False)
        made.learn(100)
    handed = len(native.handed)
    assert not made.wants_recordings
    assert not made.wants_modules
    made.learn(100)
    assert len(native.handed) == handed
    made.ended(1.0, moved=True)
    assert made.wants_recordings
    made.learn(100)
    assert len(native.handed) == handed + 1


def test_what_the_recording_took_is_given_back_when_nobody_holds_it(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    living: list[int] = []
    monkeypatch.setattr(
        planning,
        "give_back_freed_memory",
        lambda: living.append(sum(recording() is not None for recording in native.handed)),
    )
    after_steps(2, planned)
    assert (living, native.remeasured) == ([0], 1)


def test_a_recording_that_cannot_be_taken_costs_the_plan_and_not_the_run(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory() -> Recording:
        raise MemoryError("on purpose")

    monkeypatch.setattr(native, "take_recording", no_memory)
    made, said = after_steps(2, planned)
    assert (len(said), "on purpose" in said[0]) == (1, True)
    assert made.activity() is None


def test_a_step_that_ends_what_it_does_not_leave_is_not_taken_to_be_steady(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that the last step of another order left, say: the step after it shows what steps are like."""
    once = recording(nbytes=[4 << 20, 8 << 20], birth=[-1, -1], death=[0, -1])
    steady = recording(nbytes=[8 << 20], birth=[-1], death=[-1])
    steps = iter([once, steady, steady])
    monkeypatch.setattr(native, "take_recording", lambda: next(steps))
    monkeypatch.setattr(planning, "likeness", likeness)
    asked: list[Job] = []

    def noted(job: Job) -> Answer:
        asked.append(job)
        return planned(job)

    after_steps(3, noted)
    assert [job.recording for job in asked] == [steady]


def test_after_a_refusal_another_step_is_planned_when_it_recurs(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = iter("aabbb")
    monkeypatch.setattr(planning, "likeness", lambda recording: next(alike))
    asked: list[Job] = []

    def once_refused(job: Job) -> Answer:
        asked.append(job)
        return refused(job) if len(asked) == 1 else planned(job)

    made, said = after_steps(5, once_refused)
    assert (len(asked), len(said)) == (2, 1)
    assert made.report() is not None


def test_planning_that_is_always_refused_is_given_up(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    alike = iter("abbccdd")
    monkeypatch.setattr(planning, "likeness", lambda recording: next(alike))
    made, said = after_steps(7, refused)
    assert len(said) == 3
    assert not made.wants_recordings


def refused(job: Job) -> Answer:
    raise EbbtideError("no plan keeps this budget")


@pytest.mark.parametrize(
    ("steps", "work", "why"),
    [
        (1, planned, "1 steps were made, and 2 are needed"),
        (3, refused, "no plan keeps this budget"),
    ],
)
def test_a_plan_that_was_to_be_saved_and_was_not_made_is_told(
    steps: int, work: Callable[[Job], Answer], why: str, native: Native
) -> None:
    made, said = after_steps(steps, work, saved="plan")
    made.finish()
    assert made.unsaved.startswith(f"no step was planned, so there is no plan to save: {why}")
    assert not any("to save" in text for text in said)  # whoever ends the run tells it


def test_where_a_plan_was_made_or_none_was_to_be_saved_nothing_is_told(native: Native) -> None:
    for made, said in (after_steps(2, planned, saved="plan"), after_steps(1, planned)):
        made.finish()
        assert (said, made.unsaved) == ([], "")


def test_an_error_of_planning_is_a_warning_and_what_a_handler_raises_is_the_scripts(native: Native) -> None:
    def handler(*_: object) -> None:
        raise TimeoutError("the script's")

    def fails(job: Job) -> Answer:
        raise TimeoutError("of planning")

    def interrupted(job: Job) -> Answer:
        signal.raise_signal(signal.SIGUSR1)
        return planned(job)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        _, said = after_steps(2, fails)
        assert "of planning" in said[0]
        with pytest.raises(TimeoutError, match="the script's"):
            after_steps(2, interrupted)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_cannot_be_written_is_told_at_once_and_known_at_the_end(native: Native) -> None:
    def on_a_full_disk(trace: bytes, plan: bytes) -> None:
        raise OSError(ENOSPC, "No space left on device")

    said: list[str] = []
    made = Planning(ask_here(planned), disk(), Wanted(save=on_a_full_disk, saved="plan"), warn=said.append)
    steps(made, 2)
    made.finish()
    assert said == [made.unsaved] == ["the trace or the plan could not be saved: [Errno 28] No space left on device"]


def test_a_plan_that_needs_more_than_there_is_names_no_budget_to_ask_for() -> None:
    """What a plan counts at once is more than a run without one needs, so it is no smallest budget."""
    trace = network()
    least = int(needed_bytes(trace, arena_pages).max())
    with pytest.raises(EbbtideError, match="without a plan less is enough") as caught:
        _made_for(trace, disk(), least // 2, planner_named("ebbtide"))
    assert "--fast" not in str(caught.value)


# ---- beside the steps ---------------------------------------------------------------------------------------------


class Beside:
    """Stands for a planning process: ends when it is told to."""

    def __init__(self, room: bool = True) -> None:
        self.jobs: list[Job] = []
        self.waited: list[float | None] = []
        self.ended = self.stopped = False
        self.room = room

    def __call__(self, job: Job) -> "Beside":
        self.jobs.append(job)
        return self

    def wait(self, most_s: float | None) -> bool:
        self.waited.append(most_s)
        return self.ended or most_s is None

    def steps_go_on(self) -> bool:
        return self.room

    def answer(self) -> Answer:
        return planned(self.jobs[-1])

    def stop(self) -> None:
        self.stopped = True


def beside(room: bool = True, **more: Any) -> tuple[Planning, Beside, list[str], list[str]]:
    process, warned, said = Beside(room), list[str](), list[str]()
    made = Planning(process, disk(), Wanted(**more), warn=warned.append, say=said.append)
    return made, process, warned, said


def steps(made: Planning, number: int) -> None:
    for _ in range(number):
        made.ended(1.0, moved=True)
        made.learn(100)


def test_training_waits_for_a_plan_as_long_as_the_step_took_and_then_goes_on_unrecorded(native: Native) -> None:
    made, process, warned, _ = beside()
    steps(made, 2)
    recorded_s = recording().time_ns / 1e9
    assert process.waited == [recorded_s]
    assert not made.wants_recordings
    activity = made.activity()
    assert activity is not None
    assert activity.beside
    handed = len(native.handed)
    steps(made, 5)
    assert (len(process.jobs), len(native.handed), made.report()) == (1, handed, None)
    assert process.waited == [recorded_s] + [0] * 5
    process.ended = True
    steps(made, 1)
    report = made.report()
    assert report is not None
    assert (report.taken_up_after, report.plans, warned) == (8, 1, [])
    assert made.wants_recordings
    assert made.activity() is None


def test_of_a_better_plan_that_no_step_was_left_for_nothing_is_reported(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter((0, 1))
    monkeypatch.setattr(native, "load_schedule", lambda columns: next(numbers))
    links = (LinkReport("dram->file", 3 << 20, 0.1), LinkReport("file->dram", 5 << 20, 0.1))
    said: list[str] = []
    made, _ = after_steps(
        2, lambda job: replace(planned(job), report=replace(REPORT, links=links)), measures=True, say=said.append
    )
    monkeypatch.setattr(native, "followed", lambda: 0)
    steps(made, 2)
    report = made.report()
    assert report is not None
    assert report.taken_up_after == 2
    monkeypatch.setattr(native, "followed", lambda: 1)
    made.ended(1.0, moved=True)
    report = made.report()
    assert report is not None
    assert (report.taken_up_after, report.plans) == (4, 1)
    assert said == [
        "from step 3 on steps follow a plan; its forecast: 1.00 s a step, and 3.00 MiB written",
        "from step 5 on steps follow a new plan; its forecast: 1.00 s a step, and 3.00 MiB written",
    ]


def test_a_new_plan_that_is_forecast_slower_than_the_last_says_why(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, forecasts = iter((0, 1)), iter((0.1, 0.5))
    monkeypatch.setattr(native, "load_schedule", lambda columns: next(numbers))
    links = (LinkReport("dram->file", 3 << 20, 0.1), LinkReport("file->dram", 5 << 20, 0.1))
    said: list[str] = []

    def slower(job: Job) -> Answer:
        return replace(planned(job), report=replace(REPORT, links=links, predicted_s=next(forecasts)))

    made, _ = after_steps(2, slower, measures=True, say=said.append)
    monkeypatch.setattr(native, "followed", lambda: 0)
    steps(made, 2)
    assert [text.partition("written")[2] for text in said if "steps follow" in text] == [
        "",
        "; the old plan's forecast of 100 ms was too low",
    ]


def test_what_the_recording_took_is_given_back_when_the_plan_comes_later(native: Native) -> None:
    made, process, _, _ = beside()
    steps(made, 2)
    process.jobs.clear()
    assert [found() for found in native.handed] == [None]


def test_where_there_is_no_room_for_both_training_waits_and_says_so(native: Native) -> None:
    made, process, warned, said = beside(room=False)
    steps(made, 2)
    assert process.waited[-1] is None
    assert made.report() is not None
    assert (warned, len(said)) == ([], 2)
    assert "do not fit side by side" in said[0]
    assert said[1] == "from step 3 on steps follow a plan; its forecast: 1.00 s a step, and 0 B written"


@pytest.mark.parametrize("more", [{"waits": True}, {"save_timeline": lambda timeline: None}])
def test_training_waits_where_that_is_asked_for(more: dict[str, Any], native: Native) -> None:
    made, process, _, said = beside(**more)
    steps(made, 2)
    assert process.waited == [None]
    assert said == ["from step 3 on steps follow a plan; its forecast: 1.00 s a step, and 0 B written"]
    assert made.report() is not None


def test_the_end_stops_a_planner_and_says_so(native: Native) -> None:
    made, process, warned, said = beside()
    steps(made, 3)
    made.finish()
    assert (process.stopped, warned, len(said)) == (True, [], 1)
    assert "EBBTIDE_WAIT_FOR_PLAN=1" in said[0]


@pytest.mark.starts
def test_the_planning_process_imports_no_file_of_the_script_that_is_named_like_one_of_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("html", "resource", "ebbtide"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the script has it')")
    monkeypatch.syspath_prepend(tmp_path)
    start = plan_child._START.format(paths=plan_child._import_path())
    code = start.replace("; from", "; import ebbtide, html; from").replace("; main()", "; print(ebbtide.__file__)")
    assert "html" in code
    assert "main()" not in code
    assert check_output([sys.executable, "-P", "-c", code], text=True).strip() == ebbtide.__file__
