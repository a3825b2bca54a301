"""Steps over a native module that only records: where they begin and end, and what is taken in besides."""

import os
import threading
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from ebbtide.errors import EbbtideWarning, SessionError
from ebbtide.session.session import Session
from ebbtide.settings import Remake
from tests.helpers.fake_native import QUIET, FakeNative


def model_and_optimizer() -> tuple[nn.Module, Optimizer]:
    model = nn.Linear(4, 3)
    return model, torch.optim.AdamW(model.parameters())


def train(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def test_storages_are_classified_and_steps_follow_the_optimizer(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET) as session:
        assert "begin_step" not in native.calls
        model, optimizer = model_and_optimizer()
        assert native.calls[-1] == "begin_step"
        for _ in range(3):
            train(model, optimizer)
        parameters = {id(parameter) for parameter in model.parameters()}
        assert set(native.classified[0]) == parameters
        assert set(native.classified[1]) >= {id(parameter.grad) for parameter in model.parameters()}
        states = {id(optimizer.state[p][name]) for p in model.parameters() for name in ("exp_avg", "exp_avg_sq")}
        assert set(native.classified[2]) >= states
        assert not set(native.classified[2]) & parameters
    assert len(session.report().steps) == 3
    assert native.calls.count("begin_step") == native.calls.count("end_step") == 4


def test_an_operator_that_nobody_has_is_warned_of(native: FakeNative) -> None:
    settings = replace(QUIET, remake=Remake.parse("-aten::sliu,-aten::silu,-aten::add.Tensor,+mine::later"))
    with pytest.warns(EbbtideWarning) as warned, Session("1GiB", settings=settings):
        pass
    assert [str(each.message) for each in warned if "REMAKE" in str(each.message)] == [
        "EBBTIDE_REMAKE names aten::sliu, and PyTorch has no such operator"
    ]


class Wrapping(Optimizer):
    """An optimizer around another, as sharding and averaging wrappers are; raises where a test says."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner
        self.fail = False

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.inner.step()
        if self.fail:
            raise LookupError("in the middle of a step")


def test_only_an_outermost_step_ends_one_also_after_one_that_raised(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET) as session:
        model, inner = model_and_optimizer()
        outer = Wrapping(inner)
        train(model, outer)
        assert len(session.report().steps) == 1
        outer.fail = True
        with pytest.raises(LookupError):
            train(model, outer)
        assert len(session.report().steps) == 1
        outer.fail = False
        train(model, outer)
        train(model, inner)  # by itself it is not in use: it stepped within another
        assert len(session.report().steps) == 2
        train(model, outer)
        assert len(session.report().steps) == 3


def test_an_optimizer_on_another_thread_ends_no_step(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET) as session:
        model, optimizer = model_and_optimizer()
        train(model, optimizer)
        thread = threading.Thread(target=train, args=model_and_optimizer())
        thread.start()
        thread.join()
        assert len(session.report().steps) == 1
        train(model, optimizer)
    assert len(session.report().steps) == 2


def test_within_a_users_step_the_optimizer_ends_nothing(native: FakeNative) -> None:
    model, optimizer = model_and_optimizer()
    with Session("1GiB", settings=QUIET) as session:
        for _ in range(2):
            with session.step():
                train(model, optimizer)
                train(model, optimizer)
    assert len(session.report().steps) == 2
    assert set(native.classified) == {0, 1, 2}


@pytest.mark.starts
def test_a_forked_child_has_no_session(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET) as session:
        model, optimizer = model_and_optimizer()
        child = os.fork()
        if child == 0:
            calls = len(native.calls)
            train(model, optimizer)
            session.__exit__(None, None, None)
            os._exit(len(native.calls) - calls)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_left_alone_is_reported_by_reason(native: FakeNative, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "adopt_all", lambda *_: (80_000, [(3, "one"), (4, "other"), (5, "one")]), raising=False)
    with Session("1GiB", settings=QUIET) as session:
        pass
    report = session.report()
    assert report.adopted_bytes == 80_000
    assert [(entry.reason, entry.count, entry.nbytes) for entry in report.outside] == [("one", 2, 8), ("other", 1, 4)]


def test_every_reference_of_a_running_function_is_told_once(
    native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[object]] = []
    monkeypatch.setattr(native, "adopt_all", lambda _, held, __: told.append(list(held)) or (0, []), raising=False)

    def body(argument: torch.Tensor, *rest: torch.Tensor) -> None:
        local, in_cell = torch.ones(1), torch.ones(1)
        both = local

        def inner() -> torch.Tensor:
            return in_cell

        with Session("1GiB", settings=QUIET):
            pass
        times = [sum(value is wanted for value in told[0]) for wanted in (argument, local, both, in_cell, rest[0])]
        assert times == [2, 2, 2, 0, 1]  # the test holds its arguments too; a cell and a tuple are the collector's
        assert inner() is in_cell

    argument, other = torch.ones(1), torch.ones(1)
    body(argument, other)


def test_looking_at_locals_keeps_no_local_alive(native: FakeNative) -> None:
    def body() -> None:
        scratch = torch.ones(20_000)
        gone = weakref.ref(scratch)
        with Session("1GiB", settings=QUIET):
            pass
        del scratch
        assert gone() is None

    body()


def test_looking_at_locals_leaves_a_held_locals_alone(native: FakeNative) -> None:
    def body() -> None:
        scratch = torch.ones(20_000)
        held = locals()
        with Session("1GiB", settings=QUIET):
            pass
        assert held["scratch"] is scratch

    body()


def test_calls_at_the_end_of_a_loop_body_end_steps(native: FakeNative) -> None:
    model, optimizer = model_and_optimizer()
    with Session("1GiB", settings=QUIET) as session:
        for _ in range(4):
            train(model, optimizer)
            session.step()
        assert len(session.report().steps) == 4  # the first ended with its optimizer
        with session.step():
            pass
        assert len(session.report().steps) == 6  # that of the last call, and the block
        with pytest.raises(LookupError), session.step():
            raise LookupError
    assert len(session.report().steps) == 6


def test_evaluation_is_no_part_of_a_step(native: FakeNative) -> None:
    model, optimizer = model_and_optimizer()
    with Session("1GiB", settings=QUIET) as session:
        train(model, optimizer)
        with session.evaluating():
            opened = native.calls.count("begin_step")
            train(model, optimizer)  # of another model, say
            assert native.calls.count("begin_step") == opened
            with pytest.raises(SessionError, match="within the block of `evaluating"):
                session.step()
        train(model, optimizer)
        assert len(session.report().steps) == 2
        with session.step(), pytest.raises(SessionError, match="within the block of a step"):
            session.evaluating()
    with pytest.raises(SessionError, match="has ended"):
        session.evaluating()


@pytest.mark.parametrize("call_first", [False, True])
def test_evaluation_before_or_after_a_call_costs_no_step(call_first: bool, native: FakeNative) -> None:
    model, optimizer = model_and_optimizer()
    with Session("1GiB", settings=QUIET) as session:
        session.step()
        for _ in range(3):
            train(model, optimizer)
            if call_first:
                session.step()
            with session.evaluating():
                pass
            if not call_first:
                session.step()
        assert len(session.report().steps) == 3


def test_memory_has_torchs_names(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET) as session:
        found = session.memory_stats()
    assert {"allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.peak"} <= found.keys()
