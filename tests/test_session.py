"""The session and its steps over a native module that only records: order, budgets, errors, and nothing left behind."""

import importlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_native import FakeNative
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import ebbtide
from ebbtide.errors import BudgetError, EbbtideWarning, PlatformError, SessionError, SettingError, SpillError
from ebbtide.report.run_report import RunReport, StepMode
from ebbtide.runtime import process
from ebbtide.session import Session
from ebbtide.settings import Settings
from ebbtide.units import GIB, MIB, Budget

QUIET = Settings(progress=ebbtide.settings.ProgressMode.OFF, spill=("/var/tmp",), policy="demand")  # type: ignore[attr-defined]
OVER_NATIVE = ["ebbtide.runtime." + name for name in ("engine", "adopt", "faults", "steps")]


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNative]:
    """The fake in the place of the real one, for the modules that are above it; and what must be gone afterwards."""
    fake = FakeNative()
    monkeypatch.setitem(sys.modules, "ebbtide._torch", fake)
    monkeypatch.setattr(ebbtide, "_torch", fake, raising=False)
    monkeypatch.setattr("faulthandler.enable", importlib.import_module("faulthandler").enable)
    for name in OVER_NATIVE:
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = (Optimizer.add_param_group, dict(_global_optimizer_pre_hooks), dict(_global_optimizer_post_hooks))
    yield fake
    assert (Optimizer.add_param_group, _global_optimizer_pre_hooks, _global_optimizer_post_hooks) == before
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("ebbtide")] == []
    for name in OVER_NATIVE:
        sys.modules.pop(name, None)


def model_and_optimizer() -> tuple[nn.Module, Optimizer]:
    model = nn.Linear(4, 3)
    return model, torch.optim.AdamW(model.parameters())


def train(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def test_a_size_bounds_the_process_from_the_start(native: FakeNative) -> None:
    with Session(1 * GIB, settings=QUIET) as session:
        assert native.started["process_bytes"] == GIB
        assert native.started["arena_bytes"] == 0
        assert native.started["min_bytes"] == 65_536
        assert native.started["watchdog_ns"] == 30 * 10**9
        assert native.started["spill_dirs"] == ["/var/tmp"]
        with session.step():
            native.level["evicted_bytes"] = (1, 2, 3, 4, 5)
            native.level["stall_fetch_ns"] = 1_500_000_000
    report = session.report()
    assert (report.fast_bytes, report.arena_budget_bytes) == (GIB, GIB)
    (step,) = report.steps
    assert step.mode is StepMode.DEMAND
    assert (step.evicted_bytes.total, step.evicted_bytes.other) == (15, 5)
    assert step.stall_s.demand_fetch == 1.5
    assert step.wall_s > 0
    assert native.calls == ["start", "reset_peaks", "begin_step", "end_step", "stop"]
    assert "1 steps" in session.summary()


def test_a_size_above_what_there_is_becomes_what_there_is(native: FakeNative, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "memory_limit", lambda: process.MemoryLimit(2 * GIB, "this container"))
    with (
        pytest.warns(EbbtideWarning, match=r"8.00 GiB exceeds what this container allows \(2.00 GiB\)"),
        Session("8GiB", settings=QUIET) as session,
    ):
        usable = 2 * GIB - 2 * GIB * 2 // 100 - 32 * MIB
        assert native.started["process_bytes"] == usable
    assert session.report().fast_bytes == usable


def test_a_percentage_is_of_the_peak_of_the_second_step(native: FakeNative) -> None:
    with Session("25%", settings=QUIET) as session:
        assert native.started["arena_bytes"] == 0
        for peak in (100 * MIB, 400 * MIB, 90 * MIB):
            with session.step():
                native.level["live_peak_bytes"] = peak
                native.level["rest_bytes"] = 7 * MIB
    assert native.limits["arena_bytes"] == 100 * MIB
    assert [step.mode for step in session.report().steps] == ["recorded", "recorded", "demand"]
    assert session.report().unbounded_peak_bytes == 400 * MIB
    assert session.report().arena_budget_bytes == 100 * MIB
    assert session.report().fast_bytes == 107 * MIB
    ends = ["begin_step", "end_step"]
    assert native.calls == [
        *["start", "reset_peaks", *ends, "reset_peaks", *ends, "set_limits", "reset_peaks", *ends, "stop"]
    ]


def test_a_percentage_that_no_step_could_apply_is_told(native: FakeNative) -> None:
    session = Session("25%", settings=QUIET)
    with pytest.warns(EbbtideWarning, match="1 steps were seen and 2 are needed"), session, session.step():
        pass
    assert (session.report().fast_bytes, session.report().arena_budget_bytes) == (None, None)
    assert "NO BUDGET" in session.summary()


def test_a_percentage_below_the_largest_operation_names_the_smallest(native: FakeNative) -> None:
    session = Session("5%", settings=QUIET)

    def steps() -> None:
        for _ in range(2):
            with session.step():
                native.level |= {"live_peak_bytes": 1000 * MIB, "largest_operator_bytes": 120 * MIB}
                native.level["largest_operator"] = "aten::mm"

    with pytest.raises(BudgetError, match=r"aten::mm needs 120 MiB.*--fast 12% or more") as caught, session:
        steps()
    assert caught.value.minimum_bytes == 120 * MIB
    assert caught.value.budget_bytes == 50 * MIB
    assert native.calls[-1] == "stop"


def test_an_impossible_operation_ends_the_step_with_the_smallest_budget(native: FakeNative) -> None:
    session = Session("1GiB", settings=QUIET)

    def step() -> None:
        with session.step():
            native.level |= {"arena_limit_bytes": 700 * MIB, "rest_bytes": 300 * MIB, "over_budget": True}
            native.level |= {"largest_operator": "aten::mm", "largest_operator_bytes": 900 * MIB}

    with pytest.raises(BudgetError, match="aten::mm needs 900 MiB") as caught, session:
        step()
    assert caught.value.minimum_fast == "1240MiB"  # (900 + 300) MiB, 2 % and 16 MiB
    assert session.report().budget_violated


def test_a_process_that_outgrows_its_budget_outside_the_arena_is_told_the_smallest(native: FakeNative) -> None:
    session = Session("1GiB", settings=QUIET)

    def step() -> None:
        with session.step():
            native.level |= {"rest_bytes": 1100 * MIB}

    with pytest.raises(BudgetError, match=r"outside the tensors.*At least 1\.11 GiB") as caught, session:
        step()
    assert caught.value.minimum_fast == "1138MiB"  # 1100 MiB, 2 % and 16 MiB


def test_what_the_watchdog_did_is_a_warning_and_a_violation(native: FakeNative) -> None:
    with pytest.warns(EbbtideWarning, match="waited too long"), Session("1GiB", settings=QUIET) as session:
        for _ in range(2):
            with session.step():
                native.level |= {"over_budget": True, "message": "waited too long"}
    assert session.report().budget_violated
    assert session.report().trouble == "waited too long"
    assert "OVER BUDGET" in session.summary()


def test_trouble_of_an_earlier_session_is_not_this_ones(native: FakeNative) -> None:
    native.level["over_budget"] = True
    with Session("1GiB", settings=QUIET) as session, session.step():
        pass
    assert not session.report().budget_violated


def test_a_process_that_is_too_large_already_is_refused(native: FakeNative) -> None:
    with pytest.raises(BudgetError, match="outside the tensors"), Session("1MiB", settings=QUIET):
        pass
    assert native.calls == ["start", "stop"]
    with Session("1GiB", settings=QUIET):
        pass


def test_the_arena_can_be_bounded_directly(native: FakeNative, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_ARENA", "16MiB")
    monkeypatch.setenv("EBBTIDE_PROGRESS", "off")
    monkeypatch.setenv("EBBTIDE_CHAOS_RATE", "0.5")
    with Session() as session:
        assert native.started["arena_bytes"] == 16 * MIB
        assert native.started["process_bytes"] == 0
        assert native.started["chaos_rate"] == 0.5
    assert session.report().arena_budget_bytes == 16 * MIB
    with pytest.raises(SettingError, match="both set the arena's budget"), Session("25%"):
        pass


def test_storages_are_classified_and_steps_follow_the_optimizer(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET) as session:
        session.step_with_optimizer()
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
        session.step_with_optimizer()
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
        train(model, inner)
        assert len(session.report().steps) == 3


def test_an_optimizer_on_another_thread_ends_no_step(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET) as session:
        session.step_with_optimizer()
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


def test_a_body_that_raises_ends_its_step_and_the_session(native: FakeNative, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    session = Session("1GiB", report=out, settings=QUIET)

    def body() -> None:
        with session.step():
            pass
        with session.step():
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"), session:
        body()
    assert native.calls[-3:] == ["begin_step", "end_step", "stop"]
    assert RunReport.from_json(out.read_text()) == session.report()
    assert len(session.report().steps) == 1


def test_sessions_do_not_nest_and_are_used_once(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET) as session:
        with pytest.raises(SessionError, match="already active"), Session("1GiB", settings=QUIET):
            pass
        with session.step(), pytest.raises(SessionError, match="not inside another step"), session.step():
            pass
    with pytest.raises(SessionError, match="used once"), session:
        pass
    with pytest.raises(SessionError, match="inside its session"), session.step():
        pass
    with Session("1GiB", settings=QUIET):
        pass
    with pytest.raises(SessionError, match="nothing to report"):
        Session("1GiB", settings=QUIET).report()


def test_disabled_nothing_is_loaded_and_it_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.session._told_disabled", False)
    monkeypatch.setenv("EBBTIDE_DISABLE", "1")
    with pytest.warns(EbbtideWarning, match="nothing is managed") as told:
        for _ in range(2):
            with Session("25%") as session, session.step():
                session.step_with_optimizer()
    assert len(told) == 1
    assert session.report().policy == "disabled"
    assert session.summary().startswith("Ebbtide was disabled")


def test_what_cannot_be_understood_is_a_setting_error(native: FakeNative, tmp_path: Path) -> None:
    for arguments in ({"fast": "lots"}, {"fast": "1GiB", "progress": "loud"}):
        with pytest.raises(SettingError, match=r"accepted|valid"):
            Session(**arguments)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="no budget"), Session(settings=QUIET):
        pass
    with (
        pytest.raises(SettingError, match="report cannot be written"),
        Session("1GiB", report=tmp_path, settings=QUIET),
    ):
        pass
    with pytest.raises(SpillError, match="does not exist"), Session("1GiB", spill="/missing", settings=QUIET):
        pass
    assert native.calls == []


def test_several_spill_directories_reach_native_code_in_their_order(native: FakeNative, tmp_path: Path) -> None:
    with Session("1GiB", spill=[tmp_path, "/var/tmp"], settings=QUIET):
        assert native.started["spill_dirs"] == [str(tmp_path.resolve()), "/var/tmp"]


def test_the_natives_refusal_of_a_directory_is_a_spill_error(
    native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**settings: object) -> None:
        raise RuntimeError("O_TMPFILE is refused")

    monkeypatch.setattr(native, "start", refuse, raising=False)
    with pytest.raises(SpillError, match="O_TMPFILE is refused"), Session(Budget(nbytes=GIB), settings=QUIET):
        pass


def test_a_torch_of_another_version_is_told(native: FakeNative, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1")
    with pytest.raises(PlatformError, match=r"found torch 2.12.1.*pip install"), Session("1GiB", settings=QUIET):
        pass


def test_a_forked_child_has_no_session(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET) as session:
        session.step_with_optimizer()
        model, optimizer = model_and_optimizer()
        child = os.fork()
        if child == 0:
            calls = len(native.calls)
            train(model, optimizer)
            session.__exit__(None, None, None)
            os._exit(len(native.calls) - calls)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_storages_that_numpy_shares_are_left_alone(native: FakeNative, monkeypatch: pytest.MonkeyPatch) -> None:
    own, shared, hidden = torch.ones(20_000), torch.ones(30_000), torch.ones(40_000)
    array, keeper = shared.numpy(), {"only": (hidden.numpy()[5:],)}
    adopted: list[int] = []

    def adopt(tensor: torch.Tensor) -> tuple[int, str]:
        adopted.append(tensor.data_ptr())
        return (80_000, "") if tensor.data_ptr() == own.data_ptr() else (0, "")

    monkeypatch.setattr(native, "adopt", adopt, raising=False)
    with Session("1GiB", settings=QUIET) as session:
        pass
    assert own.data_ptr() in adopted
    assert shared.data_ptr() not in adopted
    assert hidden.data_ptr() not in adopted
    report = session.report()
    assert report.adopted_bytes == 80_000
    (entry,) = [entry for entry in report.outside if "NumPy" in entry.reason]
    assert entry.nbytes >= array.nbytes + 4 * 40_000
    assert keeper


def test_looking_for_arrays_keeps_no_local_alive(native: FakeNative) -> None:
    def body() -> None:
        scratch = torch.ones(20_000)
        gone = weakref.ref(scratch)
        with Session("1GiB", settings=QUIET):
            pass
        del scratch
        assert gone() is None

    body()


def test_looking_for_arrays_leaves_a_held_locals_alone(native: FakeNative) -> None:
    def body() -> None:
        scratch = torch.ones(20_000)
        held = locals()
        with Session("1GiB", settings=QUIET):
            pass
        assert held["scratch"] is scratch

    body()
