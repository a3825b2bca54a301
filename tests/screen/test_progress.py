"""Progress on a terminal is one line outside the scrolling region; elsewhere it is plain lines, or nothing."""

import contextlib
import fcntl
import io
import itertools
import logging
import os
import pty
import re
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from ebbtide.screen import progress
from ebbtide.screen.progress import Activity, Observation, Progress
from ebbtide.settings import ProgressMode
from tests.helpers.own_threads import own_threads
from tests.ir.test_report_format import STEP

RUNNING = Observation(0, None, 1.5, "tensors", 3 << 20, 0)
FINISHED = Observation(4, STEP, 0.5, "process", 3 << 20, 4 << 20)


def test_a_line_says_step_time_memory_traffic_and_stall() -> None:
    assert RUNNING.line() == "step 1, 1.50 s so far, tensors 3.00 MiB, no budget yet"
    assert FINISHED.line() == ("step 4, 2.00 s, process 3.00 MiB of 4.00 MiB, out 100 MiB, in 1.00 MiB, stall 400 ms")


def test_a_step_that_takes_long_is_told_of_before_it_ends() -> None:
    assert "so far" not in replace(FINISHED, running_s=3.9).line()
    slow = replace(FINISHED, running_s=65.0)
    assert "step 4, 2.00 s, process 3.00 MiB of 4.00 MiB, the next 65.0 s so far, out" in slow.line()
    assert "the next 65.0 s so far" in slow.line(70)
    quick = replace(FINISHED, last=replace(STEP, wall_s=0.01), running_s=1.9)
    assert "so far" not in quick.line()


def test_a_line_goes_above_the_bars_of_tqdm() -> None:
    from tqdm import tqdm

    stream = io.StringIO()
    with tqdm(total=4, file=stream, ncols=60) as bar:
        bar.update(1)
        bar.refresh()
        Progress(lambda: FINISHED, ProgressMode.PLAIN, stream).say("a note")
    written = re.split(r"[\r\n]", stream.getvalue())
    assert "ebbtide: a note" in written  # alone on its line
    assert any("1/4" in line for line in written[written.index("ebbtide: a note") :])  # and the bar again below


def wait_for(condition: Callable[[], bool]) -> None:
    patience = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < patience
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LIVE_INTERVAL_S", 0.01)
    monkeypatch.setattr(progress, "_PLAIN_INTERVAL_S", 0.02)


def test_what_is_said_goes_to_a_logger_and_stands_once_where_its_handler_writes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = io.StringIO()
    shown, log = Progress(lambda: FINISHED, ProgressMode.PLAIN, stream, name="rank 1"), logging.getLogger("ebbtide")
    shown.say("a note")
    assert stream.getvalue() == "ebbtide: rank 1: a note\n"
    Progress(lambda: FINISHED, ProgressMode.OFF, stream).say("another")
    handler = logging.StreamHandler(stream)
    log.addHandler(handler)
    try:
        shown.say("a third")
    finally:
        log.removeHandler(handler)
    assert stream.getvalue() == "ebbtide: rank 1: a note\nrank 1: a third\n"
    assert caplog.record_tuples == [
        ("ebbtide", logging.INFO, text) for text in ("rank 1: a note", "another", "rank 1: a third")
    ]


def test_a_handler_that_raises_does_not_reach_the_training() -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("on purpose")

    stream, log, handler = io.StringIO(), logging.getLogger("ebbtide"), Failing()
    log.addHandler(handler)
    try:
        Progress(lambda: FINISHED, ProgressMode.PLAIN, stream).say("a note")
    finally:
        log.removeHandler(handler)
    assert stream.getvalue() == "ebbtide: a note\n"


def test_without_a_terminal_lines_are_plain() -> None:
    stream = io.StringIO()
    shown = Progress(lambda: FINISHED, ProgressMode.AUTO, stream)
    shown.start()
    shown.say("a note")
    wait_for(lambda: stream.getvalue().count("step 4") >= 1)
    shown.close()
    assert "ebbtide: a note\n" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_plain_log_repeats_no_line_and_grows_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PLAIN_MOST_S", 0.08)
    looks = itertools.count()
    stream = io.StringIO()

    def observe() -> Observation:
        steps = 4 if next(looks) < 40 else 5
        return replace(FINISHED, steps=steps)

    shown = Progress(observe, ProgressMode.PLAIN, stream)
    shown.start()
    wait_for(lambda: next(looks) > 80 and "step 5" in stream.getvalue())
    shown.close()
    lines = [line for line in stream.getvalue().splitlines() if "step" in line]
    assert len(lines) == len(set(lines)) == 2


def test_a_verbose_log_has_a_line_for_each_step_that_is_seen() -> None:
    stream, step = io.StringIO(), [4]
    shown = Progress(lambda: replace(FINISHED, steps=step[0]), ProgressMode.VERBOSE, stream)
    shown.start()
    for number in range(4, 9):
        step[0] = number
        wait_for(lambda: f"step {step[0]}," in stream.getvalue())
    shown.close()
    assert [int(line.split()[2].rstrip(",")) for line in stream.getvalue().splitlines()] == [4, 5, 6, 7, 8]


def test_a_line_says_whether_a_plan_or_a_better_one_is_looked_for() -> None:
    first, better = (Activity(3.0, beside=True, anew=anew) for anew in (False, True))
    assert replace(FINISHED, planning=first).line().endswith("planning in the background, 3.00 s so far")
    assert (
        replace(FINISHED, planning=better).line().endswith("looking for a better plan in the background, 3.00 s so far")
    )
    assert replace(FINISHED, planning=better).doing() == "looking for a better plan in the background"


def test_planning_is_said_when_it_begins_and_ends() -> None:
    waits, goes_on = Activity(2.0, beside=False), Activity(3.0, beside=True)
    stages = [FINISHED, replace(FINISHED, planning=waits), replace(FINISHED, steps=6, planning=goes_on), FINISHED]
    stages += [replace(stages[2], steps=9), replace(FINISHED, plans=1)]
    assert stages[1].line() == "planning step 4, 2.00 s so far"
    assert stages[2].line().startswith("step 6, 2.00 s, process 3.00 MiB")
    assert stages[2].line().endswith("planning in the background, 3.00 s so far")
    at = [0]
    looks: list[int] = []

    def observe() -> Observation:
        looks.append(at[0])
        return stages[looks[-1]]

    stream = io.StringIO()
    shown = Progress(observe, ProgressMode.PLAIN, stream)
    shown.start()
    at[0] = 1
    wait_for(lambda: "ebbtide: planning step 4\n" in stream.getvalue())
    at[0] = 2
    wait_for(lambda: "ebbtide: planning in the background\n" in stream.getvalue())
    at[0] = 3
    wait_for(lambda: "ebbtide: planning has ended without a plan\n" in stream.getvalue())
    at[0] = 4  # planned anew: what has been said is not repeated
    wait_for(lambda: looks.count(4) >= 2)
    at[0] = 5
    wait_for(lambda: looks.count(5) >= 2)  # whoever takes the plan up tells of it
    at[0] = 4
    wait_for(lambda: looks.count(4) >= 4)
    shown.close()
    assert len([line for line in stream.getvalue().splitlines() if line.startswith("ebbtide: planning")]) == 3


@pytest.mark.parametrize(("columns", "left_out"), [(200, ""), (90, "oi"), (80, "oi"), (66, "oip"), (50, "oipb")])
def test_a_narrow_line_keeps_what_matters(columns: int, left_out: str) -> None:
    long = replace(FINISHED, steps=1234, held_bytes=999 << 20, budget_bytes=999 << 20, planning=Activity(99.0, True))
    line = long.line(columns)
    assert len(line) <= columns
    assert line.startswith("step 1234, 2.00 s, process 999 MiB")
    assert "stall 400 ms" in line
    parts = {"o": "out ", "i": "in 1.00", "p": "planning", "b": " of 999 MiB"}
    assert "".join(mark for mark, text in parts.items() if text not in line) == left_out


def test_the_last_step_is_shown_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PLAIN_INTERVAL_S", 1000.0)
    stream = io.StringIO()
    shown = Progress(lambda: FINISHED, ProgressMode.PLAIN, stream)
    shown.start()
    shown.close()
    assert stream.getvalue() == f"ebbtide: {FINISHED.line()}\n"


def test_switched_off_nothing_is_shown_and_no_thread_runs() -> None:
    stream = io.StringIO()
    shown = Progress(lambda: FINISHED, ProgressMode.OFF, stream)
    shown.start()
    shown.say("a note")
    assert "ebbtide-progress" not in own_threads()
    shown.close()
    assert stream.getvalue() == ""


def test_on_a_terminal_what_is_said_breaks_between_words() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    said = "two steps measure the peak first, within what this machine has; a size applies at once"
    with os.fdopen(theirs, "w") as stream:
        Progress(lambda: FINISHED, ProgressMode.AUTO, stream).say(said)
        lines = os.read(ours, 65_536).decode().splitlines()
    os.close(ours)
    assert [line[:9] for line in lines] == ["ebbtide: ", " " * 9, " " * 9]
    assert max(map(len, lines)) <= 50
    assert " ".join(line[9:] for line in lines) == said


def test_on_a_terminal_the_last_row_is_taken_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    screen = bytearray()

    def drawn() -> bytes:
        with contextlib.suppress(BlockingIOError):
            screen.extend(os.read(ours, 65_536))
        return bytes(screen)

    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        shown = Progress(lambda: FINISHED, ProgressMode.AUTO, stream)
        shown.start()
        wait_for(lambda: drawn().count(b"\x1b[24;1H") >= 2)
        shown.close()
        wait_for(lambda: b"\x1b[r" in drawn())
    os.close(ours)
    assert screen.count(b"\x1b[1;23r") == 1  # the region is set once
    assert screen.endswith(b"\x1b7\x1b[r\x1b[24;1H\x1b[2K\x1b8")  # and undone
    line = re.search(rb"\x1b\[24;1H\x1b\[2K(.*?)\x1b8", bytes(screen))
    assert line is not None
    text = re.sub(rb"\x1b\[[0-9;]*m", b"", line[1]).decode()
    assert text.startswith("ebbtide step 4, 2.00 s, process 3.00 MiB")
    assert len(text) <= 60
    assert "\n" not in text
