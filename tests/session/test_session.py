"""The session over a native module that only records: how it is entered, what it refuses, and what it leaves."""

import os
from pathlib import Path

import pytest
import torch

import ebbtide
from ebbtide.errors import EbbtideWarning, PlatformError, SessionError, SettingError, SpillError
from ebbtide.ir.run_report import RunReport
from ebbtide.session.session import Session
from ebbtide.units import GIB, Budget
from tests.helpers.fake_native import QUIET, FakeNative


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
        with session.step():
            for call in (session.step, session.evaluating):
                with pytest.raises(SessionError, match="within the block of a step; end that first"):
                    call()
        with session.evaluating(), pytest.raises(SessionError, match="within the block of `evaluating"):
            session.step()
    with pytest.raises(SessionError, match="used once"), session:
        pass
    for call in (session.step, session.evaluating, lambda: session.keep([])):
        with pytest.raises(SessionError, match="cannot be called here: its session has ended; make a new one"):
            call()
    with Session("1GiB", settings=QUIET):
        pass
    unused = Session("1GiB", settings=QUIET)
    with pytest.raises(SessionError, match="nothing to report"):
        unused.report()
    with pytest.raises(SessionError, match="its session has not begun; enter it"):
        unused.step()


@pytest.mark.starts
def test_a_forked_child_is_told_that_it_has_no_session(native: FakeNative) -> None:
    with Session("1GiB", settings=QUIET) as session:
        if (child := os.fork()) == 0:
            try:
                session.step()
            except SessionError as error:
                os._exit(int("this process was forked" not in str(error)))
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


def test_disabled_nothing_is_loaded_and_it_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.session.driven._told_disabled", False)
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
    with pytest.raises(SpillError, match="File name too long"), Session("1GiB", spill="x" * 5000, settings=QUIET):
        pass
    with pytest.raises(SpillError, match="does not exist"), Session("1GiB", spill="/missing", settings=QUIET):
        pass
    assert native.calls == []


@pytest.mark.parametrize("name", ["report", "save_trace", "save_plan", "save_timeline"])
def test_a_file_that_cannot_be_written_at_the_end_is_told_at_the_start(
    name: str, native: FakeNative, tmp_path: Path
) -> None:
    with (
        pytest.raises(SettingError, match=rf"the {name.removeprefix('save_')} cannot be written to .*No such file"),
        Session("1GiB", settings=QUIET, **{name: tmp_path / "missing" / "out"}),  # type: ignore[arg-type]
    ):
        pytest.fail("the session began")
    assert native.calls == []
    assert list(tmp_path.iterdir()) == []


def test_several_spill_directories_reach_native_code_in_their_order(native: FakeNative, tmp_path: Path) -> None:
    with Session("1GiB", spill=[tmp_path, "/var/tmp"], settings=QUIET):
        assert native.started["spill_dirs"] == [str(tmp_path.resolve()), "/var/tmp"]


def test_the_natives_refusal_of_a_directory_is_a_spill_error(
    native: FakeNative, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(asked: object) -> None:
        raise RuntimeError("O_TMPFILE is refused")

    monkeypatch.setattr(native, "start", refuse, raising=False)
    with pytest.raises(SpillError, match="O_TMPFILE is refused"), Session(Budget(nbytes=GIB), settings=QUIET):
        pass


def test_a_torch_of_another_version_is_told(native: FakeNative, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1")
    with pytest.raises(PlatformError, match=r"found torch 2.12.1.*pip install"), Session("1GiB", settings=QUIET):
        pass


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


@pytest.mark.parametrize(("name", "value"), [("first", -1), ("count", 0), ("count", 1001), ("first", "soon")])
def test_a_recording_of_no_steps_is_refused(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=name):
        ebbtide.record(tmp_path / "step.trace", **{name: value})  # type: ignore[arg-type]
