"""A session's budgets over a native module that only records: what is set, what is refused and what is told."""

import signal
import threading
from collections.abc import Mapping

import pytest
import torch

from ebbtide.budget import shortfalls
from ebbtide.errors import BudgetError, EbbtideWarning, SettingError
from ebbtide.host import process
from ebbtide.ir.run_report import StepMode
from ebbtide.session import session as session_module
from ebbtide.session.session import Session
from ebbtide.units import GIB, MIB
from tests.helpers.fake_native import QUIET, FakeNative


@pytest.fixture(autouse=True)
def _small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest's own holds more with every test."""
    monkeypatch.setattr(process, "resident_bytes", lambda *_: 300 * MIB)


MISFIT = {
    "arena_limit_bytes": 700 * MIB,
    "unmanaged_bytes": 300 * MIB,
    "over_budget": True,
    "largest_operator": "aten::mm",
}
"""What native code counts where an operation has no room, but for what it needs."""


def one_step(session: Session, native: FakeNative, counts: Mapping[str, object]) -> None:
    """A step in which native code comes to these counts."""
    with session.step():
        native.level |= counts


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
    assert "trained for 1 step in" in session.summary()


def test_a_size_above_what_there_is_becomes_what_there_is(native: FakeNative, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "memory_limit", lambda: process.MemoryLimit(2 * GIB, "this container"))
    with (
        pytest.warns(EbbtideWarning, match=r"8.00 GiB exceeds what this container allows \(2.00 GiB\)"),
        Session("8GiB", settings=QUIET) as session,
    ):
        usable = 2 * GIB - 2 * GIB * 2 // 100 - 32 * MIB
        assert native.started["process_bytes"] == usable
    assert session.report().fast_bytes == usable


def test_a_percentage_is_of_the_highest_peak_of_the_steps_before_the_budget(
    native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module.Follower, "start", lambda self: None)  # a loaded machine would change limits
    with Session("25%", settings=QUIET) as session:
        assert native.started["arena_bytes"] == 0
        for peak in (100 * MIB, 400 * MIB, 90 * MIB):
            one_step(session, native, {"step_live_peak_bytes": peak, "unmanaged_bytes": 7 * MIB})
    assert native.limits["arena_bytes"] == 100 * MIB
    assert [step.mode for step in session.report().steps] == ["recorded", "recorded", "demand"]
    assert session.report().unbounded_peak_bytes == 400 * MIB
    assert session.report().arena_budget_bytes == 100 * MIB
    assert session.report().fast_bytes is None  # a percentage bounds the arena, and not the process
    ends = ["begin_step", "end_step"]
    recorded = ["reset_peaks", *ends] * 2
    assert native.calls == ["start", "reset_peaks", *recorded, "set_limits", "reset_peaks", *ends, "stop"]


@pytest.mark.parametrize("place", ["_adopt", "_take", "_wait"])
def test_a_percentage_comes_with_the_next_step_where_the_second_one_was_interrupted(
    place: str, native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module.Follower, "start", lambda self: None)

    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with Session("25%", settings=QUIET) as session:
        one_step(session, native, {"step_live_peak_bytes": 400 * MIB, "unmanaged_bytes": 7 * MIB})
        engine = session._engine
        with monkeypatch.context() as patched:
            patched.setattr(engine if place == "_adopt" else engine._budget, place, interrupted)
            with pytest.raises(KeyboardInterrupt):
                one_step(session, native, {})
        assert not engine._budget.is_set
        one_step(session, native, {})
        assert engine._budget.is_set
        assert native.limits["arena_bytes"] == 100 * MIB


@pytest.mark.parametrize(("fast", "since", "restarts"), [("25%", 600, False), ("4GiB", 900, True)])
def test_a_percentage_leaves_the_process_s_own_peak_and_a_size_restarts_it(
    fast: str, since: int, restarts: bool, native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is 900 MiB at first. The governor sees 600 of them once the budget is in force."""
    restarted, peaks = list[bool](), [900 * MIB]
    monkeypatch.setattr(process, "reset_peak", lambda *_: restarted.append(True) or True)
    monkeypatch.setattr(process, "peak_resident_bytes", lambda *_: peaks[0])
    with Session(fast, settings=QUIET) as session:
        for _ in range(3):
            one_step(session, native, {"step_live_peak_bytes": 100 * MIB, "process_peak_bytes": 600 * MIB})
        assert bool(restarted) is restarts
        report = session.report()
        assert (report.process_peak_bytes, report.process_peak_before_bytes) == (since * MIB, 900 * MIB)
        peaks[0] = 1000 * MIB  # it rises again, so it is exact
        assert session.report().process_peak_bytes == 1000 * MIB


def test_a_percentage_comes_with_the_first_step_that_has_anything(native: FakeNative) -> None:
    """A small net may be trained first, or blocks may be empty."""
    with (
        pytest.warns(EbbtideWarning, match="no storage was large enough") as told,
        Session("25%", settings=QUIET) as session,
    ):
        for _ in range(4):
            one_step(session, native, {"step_live_peak_bytes": 0})
        assert session._engine._budget.shortfall(4, 0, False) == shortfalls.NOTHING_MANAGED
        one_step(session, native, {"step_live_peak_bytes": 400 * MIB})
        assert native.limits["arena_bytes"] == 100 * MIB
        assert not session._engine._budget.shortfall(5, 0, False)
    assert len(told) == 1


def test_a_percentage_follows_steps_that_peak_higher_and_no_others(native: FakeNative) -> None:
    with Session("25%", settings=QUIET) as session:
        shares = []
        for peak in (90, 100, 104, 200, 60, 800):
            one_step(session, native, {"step_live_peak_bytes": peak * MIB})
            shares.append(native.limits["arena_bytes"] // MIB)
    assert shares == [0, 25, 25, 50, 50, 200]
    report = session.report()
    assert (report.arena_budget_bytes, report.unbounded_peak_bytes) == (200 * MIB, 800 * MIB)
    assert not report.budget_violated


def test_an_earlier_sessions_refusal_hides_no_step_that_does_not_fit(native: FakeNative) -> None:
    native.level["refused"] = 1
    with Session("1GiB", settings=QUIET):
        optimizer = optimizer_of_one()
        with pytest.raises(torch.OutOfMemoryError, match="aten::mm needs 900 MiB"):
            train(optimizer, native, 900 * MIB)
    assert value_in(optimizer) == 0


@pytest.mark.parametrize(("need", "fits"), [(180, True), (220, False)])
def test_a_step_that_peaks_higher_may_exceed_the_share_of_the_lower_peak(
    native: FakeNative, need: int, fits: bool
) -> None:
    session = Session("25%", settings=QUIET)

    def steps() -> None:
        for peak in (100, 100, 800, 800):
            with session.step():
                native.level["step_live_peak_bytes"] = peak * MIB
                if peak == 800 and native.limits["arena_bytes"] == 25 * MIB:
                    misfit(native, 25 * MIB, need * MIB)

    if fits:
        with session:
            steps()
        assert not session.report().budget_violated
    else:
        with pytest.raises(BudgetError, match=r'aten::mm needs 220 MiB.*fast="28%"') as caught, session:
            steps()
        assert caught.value.budget_bytes == 200 * MIB


def test_a_size_follows_no_peak(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET) as session:
        for peak in (100, 800):
            one_step(session, native, {"step_live_peak_bytes": peak * MIB})
    assert native.calls.count("set_limits") == 0
    assert session.report().arena_budget_bytes == GIB


def test_a_percentage_that_no_step_could_apply_is_told(native: FakeNative) -> None:
    session = Session("25%", settings=QUIET)
    with pytest.warns(EbbtideWarning, match="1 of 2 steps that find the peak were seen"), session, session.step():
        pass
    assert not session.report().bounded_as_asked
    assert (session.report().fast_bytes, session.report().arena_budget_bytes) == (None, None)
    assert "NOT BOUNDED as asked" in session.summary()
    assert "the process was bounded by what there is" in session.report().trouble


def test_a_percentage_below_the_largest_operation_names_the_smallest(native: FakeNative) -> None:
    session = Session("5%", settings=QUIET)
    counts = {"step_live_peak_bytes": 1000 * MIB, "largest_operator_bytes": 120 * MIB, "largest_operator": "aten::mm"}

    def steps() -> None:
        for _ in range(2):
            one_step(session, native, counts)

    with pytest.raises(BudgetError, match=r"aten::mm needs 120 MiB.*fast=\"12%\" or more") as caught, session:
        steps()
    assert caught.value.minimum_bytes == 120 * MIB
    assert caught.value.budget_bytes == 50 * MIB
    assert native.calls[-1] == "stop"


def test_a_percentage_that_a_script_goes_on_without_is_told_as_its_error_told_it(native: FakeNative) -> None:
    session = Session("5%", settings=QUIET)
    counts = {"step_live_peak_bytes": 1000 * MIB, "largest_operator_bytes": 120 * MIB, "largest_operator": "aten::mm"}
    with session:
        one_step(session, native, counts)
        with pytest.raises(BudgetError) as caught:
            one_step(session, native, counts)
        for _ in range(3):
            one_step(session, native, counts)
    assert session.report().trouble == str(caught.value)
    assert not session.report().bounded_as_asked


def test_what_ran_once_before_the_recorded_step_does_not_refuse_a_percentage(native: FakeNative) -> None:
    with Session("5%", settings=QUIET) as session:
        for largest in (120 * MIB, 0, 0):
            with session.step():
                native.level["step_live_peak_bytes"] = 1000 * MIB
                if largest:
                    native.level |= {"largest_operator_bytes": largest, "largest_operator": "aten::cat"}
    assert session.report().arena_budget_bytes == 50 * MIB


def test_an_impossible_operation_ends_the_step_with_the_smallest_budget(native: FakeNative) -> None:
    session = Session("1GiB", settings=QUIET)
    with pytest.raises(BudgetError, match="aten::mm needs 900 MiB") as caught, session:
        one_step(session, native, MISFIT | {"largest_operator_bytes": 900 * MIB})
    assert caught.value.minimum_fast == "1230MiB"  # (900 + 300 + 4 + 16) MiB, which are 127 of 128 parts
    assert session.report().budget_violated


@pytest.mark.parametrize(
    ("fast", "peak", "names"), [("50%", 1000, "90%"), ("50%", 800, "1230MiB"), ("1GiB", 0, "1230MiB")]
)
def test_what_runs_after_the_last_step_and_has_no_room_is_told_a_budget_that_works(
    fast: str, peak: int, names: str, native: FakeNative
) -> None:
    with Session(fast, settings=QUIET) as session:
        for _ in range(3):
            one_step(session, native, {"step_live_peak_bytes": peak * MIB, "unmanaged_bytes": 300 * MIB})
        misfit(native, 500 * MIB, 900 * MIB)  # an evaluation
        native.level["message"] = "an operator needs more at once than the budget holds"
    report = session.report()
    assert report.budget_violated
    assert "aten::mm needs 900 MiB of tensors in memory at once" in report.trouble
    assert f'use fast="{names}" or more' in report.trouble


def test_a_process_that_outgrows_its_budget_outside_the_arena_is_told_the_smallest(native: FakeNative) -> None:
    session = Session("1GiB", settings=QUIET)
    with pytest.raises(BudgetError, match=r"outside the tensors.*A budget that works is 1\.10 GiB") as caught, session:
        one_step(session, native, {"unmanaged_bytes": 1100 * MIB})
    assert caught.value.minimum_fast == "1129MiB"  # (1100 + 4 + 16) MiB, which are 127 of 128 parts


def test_what_the_watchdog_did_is_a_warning_and_a_violation(native: FakeNative) -> None:
    with pytest.warns(EbbtideWarning, match="waited too long"), Session("1GiB", settings=QUIET) as session:
        for _ in range(2):
            one_step(session, native, {"over_budget": True, "message": "waited too long"})
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

    with pytest.raises(BudgetError, match=r"aten::mm needs 100 MiB.*use fast=\"424MiB\"") as caught, session:
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
    monkeypatch.setattr(session_module, "free_memory", lambda ranks: process.MemoryLimit(nbytes, "this machine"))


def misfit(native: FakeNative, arena_limit: int, need: int) -> None:
    native.level |= MISFIT | {"arena_limit_bytes": arena_limit, "largest_operator_bytes": need}


def train(optimizer: torch.optim.Optimizer, native: FakeNative, need: int = 0) -> None:
    """A step, in which an operation may lack room."""
    if need:
        misfit(native, 700 * MIB, need)
    parameter = optimizer.param_groups[0]["params"][0]
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def optimizer_of_one() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def value_in(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["params"][0].item())


@pytest.mark.parametrize("fast", ["1GiB", "50%"])
def test_a_step_without_room_is_refused_before_its_update_and_counts_for_nothing(fast: str, native: FakeNative) -> None:
    with Session(fast, settings=QUIET) as session:
        optimizer = optimizer_of_one()
        for need in (900 * MIB, 0, 0, 900 * MIB, 0):
            native.level["step_live_peak_bytes"] = 1000 * MIB
            before = value_in(optimizer)
            if need:
                with pytest.raises(torch.OutOfMemoryError, match=r"aten::mm needs 900 MiB.*smaller batch") as caught:
                    train(optimizer, native, need)
                assert isinstance(caught.value, BudgetError)
                assert value_in(optimizer) == before
                assert not native.level["over_budget"]
            else:
                train(optimizer, native)
                assert value_in(optimizer) == before - 1
    report = session.report()
    assert len(report.steps) == 3
    assert report.bounded_as_asked
    assert report.budget_violated == (fast == "50%")  # a size bounds the process, which had room for all of that
    assert ("aten::mm needs 900 MiB" in report.trouble) == (fast == "50%")
    # When it starts, and: after the first misfit, not after the second; or where three recorded steps begin, and end.
    assert native.calls.count("reset_peaks") == 1 + (1 if fast == "1GiB" else 4)


@pytest.mark.parametrize("fast", ["1GiB", "50%"])
def test_what_ended_in_an_operators_refusal_refuses_no_update_and_is_told(fast: str, native: FakeNative) -> None:
    """The machine had no memory for it, and the script went on without it."""
    with Session(fast, settings=QUIET) as session:
        optimizer = optimizer_of_one()
        for number in range(6):
            native.level["step_live_peak_bytes"] = 1000 * MIB
            if number == 3:
                native.level |= {"refused": 1, "message": "over budget: an operator needs more"}
                misfit(native, 700 * MIB, 900 * MIB)
            train(optimizer, native)
        assert not native.level["over_budget"]
        assert session.report().budget_violated == (fast == "50%")
        with pytest.raises(torch.OutOfMemoryError):
            train(optimizer, native, 900 * MIB)
    assert value_in(optimizer) == -6


@pytest.mark.parametrize(("need", "fits"), [(180, True), (220, False)])
def test_a_step_that_is_refused_raises_no_percentage(native: FakeNative, need: int, fits: bool) -> None:
    with Session("25%", settings=QUIET) as session:
        optimizer = optimizer_of_one()
        for peak in (100, 100, 800):
            native.level["step_live_peak_bytes"] = peak * MIB
            if peak == 800:
                misfit(native, 25 * MIB, need * MIB)
            if peak == 100 or fits:
                train(optimizer, native)
            else:
                with pytest.raises(torch.OutOfMemoryError, match=r'aten::mm needs 220 MiB.*fast="28%"'):
                    train(optimizer, native)
    report = session.report()
    assert native.limits["arena_bytes"] == (200 if fits else 25) * MIB
    assert report.unbounded_peak_bytes == (800 if fits else 100) * MIB
    assert report.budget_violated != fits
    assert ("aten::mm needs 220 MiB" in report.trouble) != fits


def test_what_a_refused_step_names_has_room_for_its_update(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(60 * MIB))])
        with pytest.raises(BudgetError, match="aten::mm needs 800 MiB") as caught:
            train(optimizer, native, 800 * MIB)
    assert caught.value.minimum_fast == "1291MiB"  # (4 * 240 + 300 + 4 + 16) MiB, which are 127 of 128 parts


def test_where_no_step_ever_fitted_the_budget_was_never_in_force(
    native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "peak_resident_bytes", lambda *_: 300 * MIB)  # whatever this process held before
    with Session("1GiB", settings=QUIET) as session:
        optimizer = optimizer_of_one()
        with pytest.raises(torch.OutOfMemoryError):
            train(optimizer, native, 900 * MIB)
    assert not session.report().bounded_as_asked
    assert session.report().trouble.startswith("the budget was refused")


def test_what_the_machine_or_the_watchdog_did_refuses_no_step(
    native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_with(monkeypatch, 2 * GIB)
    with pytest.warns(EbbtideWarning, match="exceeded") as warned, Session(settings=QUIET) as session:
        optimizer = optimizer_of_one()
        train(optimizer, native, 600 * MIB)  # which fits: something did not answer
        assert session._engine is not None
        session._engine.limit_changed(GIB)
        native.reset_trouble()
        train(optimizer, native, 900 * MIB)
    assert len(warned) == 1
    assert value_in(optimizer) == -2


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
                native.level["step_live_peak_bytes"] = 1000 * MIB
        assert session._engine is not None
        session._engine.limit_changed(GIB)
        assert native.limits == {"arena_bytes": 500 * MIB, "process_bytes": GIB}
        with session.step():
            misfit(native, 90 * MIB, need)

    if need > 500 * MIB:
        with pytest.raises(BudgetError, match='fast="60%"') as caught, session:
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
            native.level["step_live_peak_bytes"] = 400 * MIB

    second = threading.Thread(target=step)

    def set_limits(*, arena_bytes: int, process_bytes: int) -> None:
        if not arena_bytes and second.ident is None:  # the follower's: the second step ends meanwhile
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
    monkeypatch.setattr(session_module, "free_memory", lambda ranks: process.MemoryLimit(2 * MIB, "this container"))
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
