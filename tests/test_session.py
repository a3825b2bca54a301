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
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import ebbtide
from ebbtide import session as session_module
from ebbtide.errors import BudgetError, EbbtideWarning, PlatformError, SessionError, SettingError, SpillError
from ebbtide.host import process
from ebbtide.ir.run_report import RunReport, StepMode
from ebbtide.session import Session
from ebbtide.settings import Settings
from ebbtide.units import GIB, MIB, Budget
from tests.helpers.fake_native import FakeNative

QUIET = Settings(progress=ebbtide.settings.ProgressMode.OFF, spill=("/var/tmp",), policy="demand")  # type: ignore[attr-defined]
OVER_NATIVE = [
    "ebbtide.capture.optimizer_hooks",
    *(f"ebbtide.runtime.{name}" for name in ("adopt", "budget_in_force", "engine", "faults", "limits")),
]


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


def test_a_percentage_is_of_the_highest_peak_of_the_steps_before_the_budget(native: FakeNative) -> None:
    with Session("25%", settings=QUIET) as session:
        assert native.started["arena_bytes"] == 0
        for peak in (100 * MIB, 400 * MIB, 90 * MIB):
            with session.step():
                native.level["live_peak_bytes"] = peak
                native.level["unmanaged_bytes"] = 7 * MIB
    assert native.limits["arena_bytes"] == 100 * MIB
    assert [step.mode for step in session.report().steps] == ["recorded", "recorded", "demand"]
    assert session.report().unbounded_peak_bytes == 400 * MIB
    assert session.report().arena_budget_bytes == 100 * MIB
    assert session.report().fast_bytes is None  # a percentage bounds the arena, and not the process
    ends = ["begin_step", "end_step"]
    recorded = ["reset_peaks", *ends] * 2
    assert native.calls == ["start", "reset_peaks", *recorded, "set_limits", "reset_peaks", *ends, "stop"]


def test_a_percentage_that_no_step_could_apply_is_told(native: FakeNative) -> None:
    session = Session("25%", settings=QUIET)
    with pytest.warns(EbbtideWarning, match="1 steps were seen and 2 are needed"), session, session.step():
        pass
    assert not session.report().bounded_as_asked
    assert (session.report().fast_bytes, session.report().arena_budget_bytes) == (None, None)
    assert "NOT BOUNDED as asked" in session.summary()
    assert "was bounded by what there is, and not by the percentage" in session.report().trouble


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


def test_what_ran_once_before_the_recorded_step_does_not_refuse_a_percentage(native: FakeNative) -> None:
    with Session("5%", settings=QUIET) as session:
        for largest in (120 * MIB, 0, 0):
            with session.step():
                native.level["live_peak_bytes"] = 1000 * MIB
                if largest:
                    native.level |= {"largest_operator_bytes": largest, "largest_operator": "aten::cat"}
    assert session.report().arena_budget_bytes == 50 * MIB


def test_an_impossible_operation_ends_the_step_with_the_smallest_budget(native: FakeNative) -> None:
    session = Session("1GiB", settings=QUIET)

    def step() -> None:
        with session.step():
            native.level |= {"arena_limit_bytes": 700 * MIB, "unmanaged_bytes": 300 * MIB, "over_budget": True}
            native.level |= {"largest_operator": "aten::mm", "largest_operator_bytes": 900 * MIB}

    with pytest.raises(BudgetError, match="aten::mm needs 900 MiB") as caught, session:
        step()
    assert caught.value.minimum_fast == "1230MiB"  # (900 + 300 + 4 + 16) MiB, which are 127 of 128 parts
    assert session.report().budget_violated


def test_a_process_that_outgrows_its_budget_outside_the_arena_is_told_the_smallest(native: FakeNative) -> None:
    session = Session("1GiB", settings=QUIET)

    def step() -> None:
        with session.step():
            native.level |= {"unmanaged_bytes": 1100 * MIB}

    with pytest.raises(BudgetError, match=r"outside the tensors.*A budget that works is 1\.10 GiB") as caught, session:
        step()
    assert caught.value.minimum_fast == "1129MiB"  # (1100 + 4 + 16) MiB, which are 127 of 128 parts


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


def test_a_process_that_is_too_large_already_is_refused_when_a_step_has_shown_what_works(native: FakeNative) -> None:
    session = Session("1MiB", settings=QUIET)

    def step() -> None:
        with session.step():
            assert native.limits["process_bytes"] > GIB // 4  # what there is, and not what was asked for
            assert session._engine is not None
            assert session._engine.observe().budget_bytes == native.limits["process_bytes"]
            native.level |= {"unmanaged_bytes": 300 * MIB, "largest_operator_bytes": 100 * MIB}
            native.level |= {"largest_operator": "aten::mm", "largest_operator_used": 100 * MIB, "over_budget": True}

    with pytest.raises(BudgetError, match=r"aten::mm needs 100 MiB.*use --fast 424MiB") as caught, session:
        step()
    assert caught.value.budget_bytes == MIB
    report = session.report()
    assert (report.bounded_as_asked, report.budget_violated) == (False, False)
    assert (report.fast_bytes, report.arena_budget_bytes) == (None, None)
    assert report.trouble.startswith("the budget was refused")
    assert "NOT BOUNDED as asked" in session.summary()


def test_a_size_that_cannot_work_and_no_step_that_shows_which_does_is_told(native: FakeNative) -> None:
    session = Session("1MiB", settings=QUIET)
    with pytest.warns(EbbtideWarning, match="no step ended that would show which one works"), session:
        pass
    assert not session.report().bounded_as_asked


def machine_with(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(session_module, "free_memory", lambda: process.MemoryLimit(nbytes, "this machine"))


def misfit(native: FakeNative, arena_limit: int, need: int) -> None:
    native.level |= {"arena_limit_bytes": arena_limit, "unmanaged_bytes": 300 * MIB, "over_budget": True}
    native.level |= {"largest_operator": "aten::mm", "largest_operator_bytes": need}


def test_a_limit_that_falls_below_what_an_operation_needs_does_not_end_the_training(
    native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_with(monkeypatch, 2 * GIB)
    with (
        pytest.warns(EbbtideWarning, match=r"this process can have 1\.00 GiB.* aten::mm needs 900 MiB") as warned,
        Session(settings=QUIET) as session,
    ):
        assert session._engine is not None
        session._engine.limit_changed(GIB)
        for _ in range(2):
            with session.step():
                misfit(native, 700 * MIB, 900 * MIB)
    assert len(warned) == 1
    assert session.report().budget_violated
    assert session.report().trouble == str(warned[0].message)


def test_a_fallen_limit_does_not_speak_for_a_size_that_was_too_small_before(native: FakeNative) -> None:
    session = Session("1100MiB", settings=QUIET)

    def step() -> None:
        with session.step():
            assert session._engine is not None
            session._engine.limit_changed(GIB)
            misfit(native, 700 * MIB, 900 * MIB)

    with pytest.raises(BudgetError, match="aten::mm needs 900 MiB"), session:
        step()


@pytest.mark.parametrize("need", [450 * MIB, 600 * MIB])
def test_a_percentage_is_refused_only_where_its_own_share_is_too_small(native: FakeNative, need: int) -> None:
    """It has 500 MiB; a limit that fell leaves 90 of them."""
    session = Session("50%", settings=QUIET)

    def steps() -> None:
        for _ in range(2):
            with session.step():
                native.level["live_peak_bytes"] = 1000 * MIB
        assert session._engine is not None
        session._engine.limit_changed(GIB)
        assert native.limits == {"arena_bytes": 500 * MIB, "process_bytes": GIB}
        with session.step():
            misfit(native, 90 * MIB, need)

    if need > 500 * MIB:
        with pytest.raises(BudgetError, match="--fast 60%") as caught, session:
            steps()
        assert caught.value.budget_bytes == 500 * MIB
    else:
        with pytest.warns(EbbtideWarning, match="aten::mm needs 450 MiB. Training goes on"), session:
            steps()


def test_a_limit_that_changes_while_a_percentage_is_set_does_not_lift_it(
    native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session("25%", settings=QUIET)

    def step() -> None:
        with session.step():
            native.level["live_peak_bytes"] = 400 * MIB

    second = threading.Thread(target=step)

    def set_limits(*, arena_bytes: int, process_bytes: int) -> None:
        if not arena_bytes:  # the follower's call; meanwhile the second step ends, and the budget is set
            second.start()
            second.join(0.5)
        FakeNative.set_limits(native, arena_bytes=arena_bytes, process_bytes=process_bytes)

    monkeypatch.setattr(native, "set_limits", set_limits)
    with session:
        step()
        assert session._engine is not None
        session._engine.limit_changed(GIB)
        second.join()
        assert native.limits == {"arena_bytes": 100 * MIB, "process_bytes": GIB}


def test_a_size_above_its_container_follows_the_containers_limit_up(
    native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "memory_limit", lambda: process.MemoryLimit(2 * GIB, "this container"))
    with pytest.warns(EbbtideWarning, match="exceeds what this container allows"), Session("8GiB", settings=QUIET) as s:
        assert s._engine is not None
        for there, taken in ((4 * GIB, 4 * GIB), (12 * GIB, 8 * GIB), (3 * GIB, 3 * GIB)):
            s._engine.limit_changed(there)
            assert native.limits["process_bytes"] == taken
    assert s.report().fast_bytes == 8 * GIB


def test_where_there_is_no_more_memory_it_is_refused_at_once(
    native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "free_memory", lambda: process.MemoryLimit(2 * MIB, "this container"))
    with pytest.raises(BudgetError, match=r"outside the tensors.*At least"), Session("1MiB", settings=QUIET):
        pytest.fail("the session began")


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
    monkeypatch.setattr("ebbtide.driven._told_disabled", False)
    monkeypatch.setenv("EBBTIDE_DISABLE", "1")
    with pytest.warns(EbbtideWarning, match="nothing is managed") as told:
        for _ in range(2):
            with Session("25%") as session, session.step():
                pass
    assert len(told) == 1
    assert session.report().policy == "disabled"
    assert session.summary().startswith("Ebbtide was disabled")


def test_what_cannot_be_understood_is_a_setting_error(native: FakeNative, tmp_path: Path) -> None:
    for arguments in ({"fast": "lots"}, {"fast": "1GiB", "progress": "loud"}):
        with pytest.raises(SettingError, match=r"accepted|valid"):
            Session(**arguments)  # type: ignore[arg-type]
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
    monkeypatch.setattr(native, "adopt_all", lambda _, __, held: told.append(list(held)) or (0, []), raising=False)

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


@pytest.mark.filterwarnings("error::ebbtide.errors.EbbtideWarning")
def test_warnings_that_are_errors_end_neither_the_training_nor_the_report(
    native: FakeNative, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    with Session("25%", report=report, settings=QUIET) as session, session.step():
        pass
    assert "stop" in native.calls
    assert RunReport.from_json(report.read_text()).trouble in capsys.readouterr().err


def test_the_report_is_written_also_where_the_end_raises(
    native: FakeNative, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.json"

    def fails(self: Session) -> None:
        close(self)
        raise OSError("on purpose")

    close = Session._close
    monkeypatch.setattr(Session, "_close", fails)
    with pytest.raises(OSError, match="on purpose"), Session(1 * GIB, report=report, settings=QUIET):
        pass
    assert RunReport.from_json(report.read_text()).fast_bytes == GIB


def test_a_trace_is_saved_by_its_old_name_too_and_recording_alone_has_a_name_of_its_own(
    native: FakeNative, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "_planning", lambda self, spill: None)
    with pytest.warns(EbbtideWarning, match="save_trace"), Session("1GiB", settings=QUIET, trace=tmp_path / "a"):
        assert native.started["process_bytes"] > 0
    with pytest.raises(SettingError, match=r"ebbtide\.record"):
        Session(settings=QUIET, trace=tmp_path / "a")


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
            with pytest.raises(SessionError, match="inside"):
                session.step()
        train(model, optimizer)
        assert len(session.report().steps) == 2
        with session.step(), pytest.raises(SessionError, match="inside a step"):
            session.evaluating()
    with pytest.raises(SessionError, match="inside"):
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


@pytest.mark.parametrize(("name", "value"), [("first", -1), ("count", 0), ("count", 1001), ("first", "soon")])
def test_a_recording_of_no_steps_is_refused(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=name):
        ebbtide.record(tmp_path / "step.trace", **{name: value})  # type: ignore[arg-type]
