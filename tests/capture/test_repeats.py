"""Which ticks of a recorded step repeat, here and in the process that plans."""

import json

import pytest

from ebbtide.capture.recording import capture, repeating
from ebbtide.ir.files import decode
from ebbtide.ir.plan import Plan
from ebbtide.ir.recording import Recording
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import budget_of
from ebbtide.planners.resident import resident
from ebbtide.planning.plan_job import Job, carry_out
from tests.helpers.make_recording import recording
from tests.helpers.make_steps import disk


def call(overload: str) -> str:
    return json.dumps({"overload": overload, "args": [], "kwargs": {}}, separators=(",", ":"))


def recorded() -> Recording:
    """Everything before; mul by a tensor, by a number, by a tensor again; and a group of a list operator's."""
    names = ["", "aten::mul", call("Tensor"), call("Scalar")]
    return recording(
        tick_name=[0, 1, 1, 1, 1], tick_arguments=[0, 2, 3, 2, 0], names=names, tick_begin_ns=[0, 1, 2, 3, 4], time_ns=5
    )


def of_tensors(operator: str, overload: str) -> bool:
    return (operator, overload) == ("aten::mul", "Tensor")


def test_the_overload_says_which_ticks_repeat() -> None:
    made = capture(recorded(), "by hand", lambda *_: 0, repeats=of_tensors).trace
    assert made.ticks.repeats.tolist() == [False, True, False, True, False]
    assert not capture(recorded(), "by hand", lambda *_: 0).trace.ticks.repeats.any()


@pytest.mark.parametrize("asked", [True, False])
def test_a_planning_process_has_the_same_ticks_without_asking(asked: bool) -> None:
    machine = disk()
    found = repeating(recorded(), of_tensors if asked else lambda *_: False)
    assert found == ({("aten::mul", "Tensor")} if asked else frozenset())

    def planner(trace: Trace, machine: object, budget_bytes: int) -> Plan:
        return resident(trace, disk(), budget_of(None, trace, disk()))

    made = carry_out(Job(recorded(), {}, machine, 1, repeating=found), planner)
    assert decode(made.trace, Trace).ticks.repeats.tolist() == [False, asked, False, asked, False]


def test_the_maker_is_the_operator_that_the_allocation_was_in() -> None:
    """Tick 1 runs 2, which runs 3, and then it allocates. 4 runs 5, on whose tick it, 4 and nobody allocate."""
    born = [0, 2, 3, 3, 5, 5, 5, -1, 1]
    made = recording(
        tick_depth=[0, 0, 1, 2, 0, 1],
        tick_begin_ns=range(6),
        time_ns=6,
        serial=range(1, 10),
        birth=born,
        allocation=[0, 0, 0, 1, 0, 1, 2, -1, -1],  # the last by another thread
        depth=[0, 2, 3, 1, 2, 1, 0, 0, 1],
        death=[6] * 7 + [-1, 6],
        use_storage=range(9),
        use_first=[5] * 9,
        use_last=[5] * 9,
    )
    storages = capture(made, "by hand", lambda *_: 0).trace.storages
    found = {
        (birth, place): maker
        for birth, place, maker in zip(
            storages.birth.tolist(), storages.allocation.tolist(), storages.maker.tolist(), strict=True
        )
    }
    assert found == {
        (0, 0): -1,
        (2, 0): 2,
        (3, 0): 3,
        (3, 1): 1,
        (5, 0): 5,
        (5, 1): 4,
        (5, 2): -1,
        (0, -1): -1,
        (1, -1): -1,
    }
