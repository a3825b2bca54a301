"""The order of updates that a session chooses by itself."""

import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from torch import Tensor

import ebbtide
from ebbtide.update_order import automatic
from ebbtide.update_order.deferred import Deferred
from tests.training.cases_deferred import session
from tests.training.cases_in_backward import Training, adamw, plain_step, train

QUIET = {"EBBTIDE_PROGRESS": "off"}
pytestmark = pytest.mark.in_child(QUIET)


def moved(opened: ebbtide.Session) -> int:
    """Bytes that came back in the last half of the steps."""
    return sum(step.fetched_bytes.total for step in opened.report().steps[-20:])


def test_looked_at_by_what_was_taken_before() -> None:
    """A function that the script took while its own order held shows what is deferred later."""
    automatic._LEAST_STALL, automatic._LEAST_GAIN, automatic._STEPS = -1.0, -1e9, 2
    looks: list[list[bytes]] = []
    for ours in (False, True):
        with session(policy="ebbtide", wait_for_plan=True, optimizer="auto") if ours else nullcontext() as opened:
            address, storage = Tensor.data_ptr, Tensor.untyped_storage

            def step(net: Any, optimizer: Any, number: int, take: Any = (address, storage)) -> None:
                plain_step(net, optimizer, number)
                parameter = next(net.parameters())
                for address in (take[0](parameter), take[1](parameter).data_ptr()):
                    looks[-1].append(ctypes.string_at(address, parameter.nbytes))

            looks.append([])
            train(step, adamw, 40)
            assert opened is None or (opened.report().updates and moved(opened) > 0)
    assert looks[0] == looks[1]


@pytest.mark.parametrize("faster", [True, False])
def test_threads_that_step_while_the_order_changes_lose_no_update(faster: bool) -> None:
    """They train while updates become deferred, and while they are no more."""
    automatic._LEAST_STALL, automatic._LEAST_GAIN = -1.0, -1e9 if faster else 1e9
    plain = steps_of(Training(adamw))
    wishes = {"policy": "ebbtide", "wait_for_plan": True, "optimizer": "auto", "fast": "25%"}
    with session(**wishes) as opened, ThreadPoolExecutor(2) as pool:
        first, *others = [Training(adamw) for _ in range(3)]
        running = [pool.submit(steps_of, other) for other in others]
        bits = [steps_of(first), *(each.result() for each in running)]
    assert bits == [plain] * 3
    assert moved(opened) > 0


def steps_of(training: Training) -> dict[str, bytes]:
    for number in range(40):
        plain_step(training.net, training.optimizer, number)
    return training.bits()


def test_a_thread_notes_while_the_session_ends() -> None:
    """What it notes is carried out with the rest."""
    note, is_noting = Deferred._defer, threading.Event()

    def late(self: Deferred, optimizer: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            is_noting.set()
            while not self._has_ended:
                time.sleep(0.001)
        return note(self, optimizer)

    plain = train(plain_step, adamw, 6).bits()
    with ThreadPoolExecutor(1) as pool:
        with session() as opened:
            first, second = train(plain_step, adamw, 6), train(plain_step, adamw, 5)
            Deferred._defer = late  # type: ignore[method-assign]
            running = pool.submit(plain_step, second.net, second.optimizer, 5)
            assert is_noting.wait(60)
        running.result()
    assert [first.bits(), second.bits()] == [plain] * 2
    assert moved(opened) > 0


@pytest.mark.parametrize("faster", [True, False])
def test_what_is_tried_in_mid_training_ends_with_the_same_bits(faster: bool) -> None:
    """Deferred updates are tried, and found ``faster`` or not."""
    said: list[str] = []
    automatic._LEAST_STALL, automatic._LEAST_GAIN = -1.0, -1e9 if faster else 1e9
    steps = 40
    plain = train(plain_step, adamw, steps).bits()
    with session(policy="ebbtide", wait_for_plan=True, optimizer="auto") as ours:
        ours._engine._updates._say = said.append  # type: ignore[union-attr]
        bits = train(plain_step, adamw, steps).bits()
    assert bits == plain
    report = ours.report()
    assert [text.split(":")[0] for text in said] == [
        "updates are deferred from here, to see whether steps are faster",
        f"updates {'stay deferred' if faster else 'are made in the script' + chr(39) + 's order again'}",
    ]
    assert bool(report.updates) == faster
    assert sum(step.fetched_bytes.total for step in report.steps[-4:]) > 0
    assert str(report.steps[-1].mode) == "planned"
