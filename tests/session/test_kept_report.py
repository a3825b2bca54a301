"""The report of a running session on disk: short, whole, readable after a kill, and never in the way."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM
from threading import Event
from time import sleep

import numpy as np
import pytest
from click.testing import CliRunner

from ebbtide.cli import cli
from ebbtide.errors import SettingError
from ebbtide.ir.run_report import RunReport, Traffic
from ebbtide.report.summary import render_summary
from ebbtide.screen.progress import Observation
from ebbtide.session import kept_report
from ebbtide.session.kept_report import KeptReport, at_this_moment, goes_on, session_folder, sessions, shortened
from ebbtide.session.session import Session
from tests.helpers import forked
from tests.helpers.command import EBBTIDE, environment, run
from tests.helpers.fake_native import QUIET, FakeNative
from tests.helpers.training_script import training_script
from tests.ir.test_report_format import REPORT, STEP

SEEN = Observation(2, STEP, 0.5, "process", 900 << 20, 1 << 30)
MOMENT = at_this_moment(SEEN, 1000)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept_report, "PLACE", tmp_path)
    monkeypatch.setattr(kept_report, "EVERY_S", 0.01)
    return tmp_path


def test_a_long_run_s_report_has_its_latest_steps_in_a_few_kilobytes() -> None:
    long = replace(REPORT, steps=(STEP,) * 9_000, left_out_steps=7)
    short = shortened(long, MOMENT)
    assert (len(short.steps), short.left_out_steps) == (5, 9_002)
    assert len(short.to_json()) < 10_000
    assert RunReport.from_json(short.to_json()) == short
    said = render_summary(short)
    assert "the run goes on, or was killed" in said.splitlines()[1]
    assert "trained for 9007 steps" in said


def kept_until(turns: int, report: Callable[[int], RunReport], named: Path | None = None) -> KeptReport:
    """Keep reports until the thread has asked for so many; ``report`` makes each from its number."""
    asked, enough = 0, Event()

    def next_report() -> RunReport:
        nonlocal asked
        asked += 1
        if asked > turns:
            enough.set()
        return report(asked)

    kept = KeptReport(next_report, lambda: MOMENT, named)
    kept.start()
    assert enough.wait(60)
    return kept


def test_each_turn_is_written_whole_and_the_session_s_own_file_goes_at_the_end(place: Path) -> None:
    named = place / "out.json"
    kept = kept_until(3, lambda number: replace(REPORT, adopted_bytes=number), named)
    ((path, report),) = sessions(session_folder())
    assert (path.name, report.moment) == (f"{os.getpid()}.json", MOMENT)
    assert goes_on(MOMENT)
    kept.close()
    kept.close()
    assert sessions(session_folder()) == []
    assert RunReport.from_json(named.read_text()).adopted_bytes >= 3
    assert {path.name for path in place.iterdir()} == {"out.json", session_folder().name}  # no half-written file


def test_a_report_that_cannot_be_made_is_made_at_the_next_turn(place: Path) -> None:
    def report(number: int) -> RunReport:
        if number < 3:
            raise RuntimeError("dictionary changed size during iteration")
        return REPORT

    named = place / "out.json"
    kept_until(3, report, named).close()
    assert RunReport.from_json(named.read_text()).moment == MOMENT


def test_nothing_is_said_where_nothing_can_be_written(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / f"ebbtide-{os.getuid()}").symlink_to("/proc")  # somebody else's
    with pytest.raises(PermissionError):
        session_folder(make=True)
    kept_until(2, lambda number: REPORT, place / "missing" / "out.json").close()
    kept_until(2, lambda number: REPORT, Path("/dev/full")).close()
    assert capfd.readouterr() == ("", "")


def test_a_session_shows_itself_until_it_ends(native: FakeNative, place: Path) -> None:
    out = place / "out.json"
    with Session("1GiB", report=out, settings=QUIET) as session:
        for odd in ("40", float("nan"), float("inf"), [40]):
            with pytest.raises(SettingError, match="accepted: a number of steps"):
                session.total_steps = odd  # type: ignore[assignment]
        session.total_steps = np.float32(40)  # type: ignore[assignment]
        assert session.total_steps == 40
        with session.step():
            pass
        folder = place / f"ebbtide-{os.getuid()}"  # which the thread makes
        while not (found := sessions(folder)) or found[0][1].moment.total_steps is None:  # type: ignore[union-attr]
            assert session._kept is not None
            assert session._kept._thread.is_alive()
        shown = CliRunner().invoke(cli, ["top", "--once"])
    assert "step 1 of 40" in shown.output
    assert sessions(session_folder()) == []
    assert RunReport.from_json(out.read_text()).moment is None


def test_top_shows_what_is_left_and_what_was_killed(place: Path) -> None:
    folder = session_folder(make=True)
    shortened(replace(REPORT, left_out_steps=98), MOMENT).write(folder / "1.json")
    gone = replace(MOMENT, process_began=MOMENT.process_began - 1, command="gone.py")
    shortened(REPORT, gone).write(folder / "2.json")
    (folder / "3.json").write_text("{}")
    shown = CliRunner().invoke(cli, ["top"])
    assert shown.exit_code == 0, shown.output
    running, killed = shown.output.split("gone.py")
    assert "was killed" in killed
    assert "2.json" in killed
    assert "step 100 of 1000, 2.00 s each, 30 min 00 s left; within budget" in running  # 900 of the only typical step
    assert "900 MiB of 1.00 GiB" in running
    assert "moved a step" in running
    assert "of them" not in running
    for number in range(4, 9):
        shortened(REPORT, gone).write(folder / f"{number}.json")
    shown = CliRunner().invoke(cli, ["top"])
    assert shown.output.count("was killed") == 3
    assert "6 sessions were killed, and the last 3 are shown" in " ".join(shown.output.split())
    assert f"{folder}:removethem,orasession" in "".join(shown.output.split())  # a long name is folded
    for number in (1, 2, *range(4, 9)):
        (folder / f"{number}.json").unlink()
    assert CliRunner().invoke(cli, ["top"]).output == "No session runs here.\n"


def test_top_shows_memory_by_kind(place: Path) -> None:
    held = replace(MOMENT, in_memory=Traffic.of((3 << 20, 0, 6 << 20, 512 << 10, 0)))
    shortened(REPORT, held).write(session_folder(make=True) / "1.json")
    shown = CliRunner().invoke(cli, ["top", "--once"]).output
    assert "of them" in shown
    assert "parameter 3.00 MiB, optimizer state 6.00 MiB, activation 512 KiB" in " ".join(shown.split())


KILLED = training_script(
    before="import json, os, pathlib, sys, time",
    after="""
        out = pathlib.Path(sys.argv[1])
        while not out.exists() or (kept := json.loads(out.read_text()))["left_out_steps"] + len(kept["steps"]) < 8:
            time.sleep(0.05)
        os.kill(os.getpid(), 9)
    """,
    steps=8,
)


@pytest.mark.starts
@pytest.mark.slow
def test_a_killed_job_leaves_what_it_knew(place: Path) -> None:
    script, out = place / "train.py", place / "out.json"
    script.write_text(KILLED)
    command = [EBBTIDE, "run", "--fast", "40%", "--report", str(out), str(script), str(out)]
    run(*command, status=-9)
    left = RunReport.from_json(out.read_text())
    assert left.moment is not None
    assert not goes_on(left.moment)
    assert str(script) in left.moment.command
    assert left.steps[-1].evicted_bytes.total > 0
    assert left.moment.in_memory is not None
    assert 0 < left.moment.in_memory.total <= left.moment.held_bytes
    assert left.moment.in_memory.parameter > 0
    assert "unfinished" in run(EBBTIDE, "report", str(out)).stdout


IN_AN_OPERATOR = training_script(
    after="""
        table = torch.randn(6000, 6000)
        torch.set_num_threads(1)
        print("begins", flush=True)
        torch.linalg.eigvals(table)  # minutes
        print("ended", flush=True)
    """,
    steps=4,
)


@pytest.mark.starts
@pytest.mark.slow
def test_at_sigterm_the_report_is_of_the_last_turn_also_within_an_operator(place: Path) -> None:
    """The thread writes while an operator runs, for which a signal's handler in Python would have to wait."""
    script, out = place / "train.py", place / "out.json"
    script.write_text(IN_AN_OPERATOR)
    command = [EBBTIDE, "run", "--fast", "1GiB", "--report", str(out), str(script)]
    start = forked.popen(forked.pythons(), forked.pythons(), forked.planners())
    with start(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as trains:
        assert trains.stdout is not None
        assert trains.stdout.readline() == "begins\n"
        turns = {written_at(out)}
        while len(turns) < 3:  # the second may have begun before the operator
            assert trains.poll() is None
            sleep(0.05)
            turns.add(written_at(out))
        trains.terminate()
        assert trains.stdout.read() == ""
    assert trains.returncode == -SIGTERM
    left = RunReport.from_json(out.read_text())
    assert left.moment is not None
    assert left.moment.at_s >= max(turns)
    assert len(left.steps) == 4


def written_at(path: Path) -> float:
    moment = RunReport.from_json(path.read_text()).moment if path.exists() else None
    return 0.0 if moment is None else moment.at_s


def test_what_is_said_of_a_moment_is_this_process_s() -> None:
    assert MOMENT.command.startswith(sys.argv[0][:20])
    assert json.loads(shortened(REPORT, MOMENT).to_json())["moment"]["total_steps"] == 1000
    assert not goes_on(replace(MOMENT, pid=2**22 + 1))
    assert at_this_moment(SEEN, -1).total_steps is None
