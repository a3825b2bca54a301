"""What a session does around a planner: when it tries again, what it lets go of, and what it says where none was made.

Native code and the planner are stood in for; ``test_plans.py`` has real ones.
"""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401 (loads the libraries that native code needs)

from ebbtide.errors import EbbtideError
from ebbtide.ir.occupancy import arena_pages, needed_bytes
from ebbtide.ir.recording import Recording
from ebbtide.ir.run_report import PlanReport
from ebbtide.policies import planner_named
from ebbtide.runtime import planning
from ebbtide.runtime.load_schedule import ScheduleColumns
from ebbtide.runtime.plan_job import Answer, Job, PlanningKilledError, _made_for
from ebbtide.runtime.planning import Planning
from tests.helpers.ask_here import ask_here
from tests.helpers.make_recording import recording
from tests.helpers.make_steps import disk, network

SCHEDULE = ScheduleColumns(*[np.zeros(0, dtype=np.int64)] * 12)
REPORT = PlanReport("ebbtide", "feasible", 100, 1.0, 1.0, 1.0, 0.0, 1)


class Native:
    """Stands for native code: hands out recordings, and notes what becomes of them."""

    def __init__(self) -> None:
        self.handed: list[weakref.ref[Recording]] = []
        self.remeasured = 0

    def followed(self) -> None:
        return None

    def take_recording(self) -> Recording:
        made = recording()
        self.handed.append(weakref.ref(made))
        return made

    def load_schedule(self, **columns: object) -> int:
        return 0

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


def after_steps(steps: int, work: Callable[[Job], Answer], **more: Any) -> tuple[Planning, list[str]]:
    said: list[str] = []
    made = Planning(ask_here(work), None, lambda trace, plan: None, said.append, **more)  # type: ignore[arg-type]
    for _ in range(steps):
        made.ended()
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
    assert f"no step was planned, so there is no plan to save: {why}" in said[-1]


def test_where_a_plan_was_made_or_none_was_to_be_saved_nothing_is_told(native: Native) -> None:
    for made, said in (after_steps(2, planned, saved="plan"), after_steps(1, planned)):
        made.finish()
        assert said == []


def test_a_plan_that_needs_more_than_there_is_names_no_budget_to_ask_for() -> None:
    """What a plan counts at once is more than a run without one needs, so it is no smallest budget."""
    trace = network()
    least = int(needed_bytes(trace, arena_pages).max())
    with pytest.raises(EbbtideError, match="without a plan less is enough") as caught:
        _made_for(trace, disk(), least // 2, planner_named("ebbtide"))
    assert "--fast" not in str(caught.value)
