"""One live line at the foot of a terminal; without a terminal, a plain line now and then. Both on standard error.

The line lies outside the terminal's scrolling region, as apt draws its bar. So it neither wraps nor overwrites the
script's own output, even with carriage returns or progress bars. A daemon thread draws the line from native counters,
so a step that waits inside an operator still shows. A notebook has an area of its own for it.

What is said also goes to the logger ``ebbtide``, at level INFO, so that a program can route it. Left out of the log:
the line that changes.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TextIO

from ebbtide.host.own_thread import OwnThread, listed
from ebbtide.ir.run_report import StepReport, Traffic
from ebbtide.screen.notebook import Area, area_here
from ebbtide.settings import ProgressMode
from ebbtide.terminal import columns_of, folded_for_terminal, tell
from ebbtide.units import format_bytes, format_time

_LIVE_INTERVAL_S = 0.25
_PLAIN_INTERVAL_S = 5.0  # doubled with every line, so that the log of a long run stays short
_PLAIN_MOST_S = 300.0
_FEWEST_ROWS = 4
_LONG = 2.0
"""A step is told of before it ends if it takes this many times as long as the one before."""
_LONG_S = 2.0
_ESC = "\x1b"
_NAME = "ebbtide "
_SAYS = "ebbtide: "
_log = logging.getLogger("ebbtide")


@dataclass(frozen=True, slots=True)
class Activity:
    """A plan that has been in the making for ``seconds``: ``beside`` the steps, or while training stands still.
    ``anew``: steps follow one already, and a better one is wanted."""

    seconds: float
    beside: bool
    anew: bool = False

    def doing(self, steps: int) -> str:
        """Say in words what is done, after so many steps."""
        if not self.beside:
            return f"planning step {steps}"
        return "looking for a better plan in the background" if self.anew else "planning in the background"


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of a run: ``steps`` are finished, and ``last`` is the latest. ``what`` is bounded, the process or the
    tensors in memory. It holds ``held_bytes``. ``budget_bytes`` 0 means no bound yet."""

    steps: int
    last: StepReport | None
    running_s: float
    what: str
    held_bytes: int
    budget_bytes: int
    planning: Activity | None = None
    plans: int = 0
    """The number of plans so far."""
    in_memory: Traffic | None = None

    def line(self, columns: int | None = None) -> str:
        """Write the line within ``columns``, if given. Planning and traffic give way first; the step, its memory and
        its stall last."""
        if self.planning is not None and not self.planning.beside:
            return f"{self.planning.doing(self.steps)}, {format_time(self.planning.seconds)} so far"
        budget = f" of {format_bytes(self.budget_bytes)}" if self.budget_bytes else ", no budget yet"
        parts = {"step": f"step {self.steps + 1}", "time": f"{format_time(self.running_s)} so far"}
        parts["held"] = f"{self.what} {format_bytes(self.held_bytes)}{budget}"
        if self.last is not None:
            parts["step"] = f"step {self.steps}"
            parts["time"] = format_time(self.last.wall_s)
            if self.running_s > max(_LONG * self.last.wall_s, _LONG_S):
                parts["now"] = f"the next {format_time(self.running_s)} so far"
            out, back = self.last.evicted_bytes.total, self.last.fetched_bytes.total
            parts["traffic"] = f"out {format_bytes(out)}, in {format_bytes(back)}"
            parts["stall"] = f"stall {format_time(self.last.stall_s.total)}"
        if self.planning is not None:
            parts["planning"] = f"{self.planning.doing(self.steps)}, {format_time(self.planning.seconds)} so far"
        shorter = (("planning", "planning"), ("traffic", ""), ("planning", ""))
        for name, text in (*shorter, ("held", f"{self.what} {format_bytes(self.held_bytes)}")):
            if columns is None or len(_joined(parts)) <= columns:
                break
            if name in parts:
                parts[name] = text
        return _joined(parts)

    def metrics(self) -> dict[str, float]:
        """Return what a trainer's log shows of the last step; nothing before one has ended."""
        if self.last is None:
            return {}
        found = {
            "step_s": self.last.wall_s,
            "stall_s": self.last.stall_s.total,
            "out_bytes": self.last.evicted_bytes.total,
            "in_bytes": self.last.fetched_bytes.total,
            "written_bytes": self.last.written_bytes.total,
            "held_bytes": self.held_bytes,
            "budget_bytes": self.budget_bytes,
        }
        return {f"ebbtide/{name}": float(value) for name, value in found.items()}

    def doing(self) -> str:
        """Say what is done besides training, or in its place; "" for nothing."""
        return "" if self.planning is None else self.planning.doing(self.steps)

    def outcome(self) -> str:
        """Say that planning ended without a plan. Whoever takes a plan up tells of it."""
        return "" if self.plans else "planning has ended without a plan"


def _joined(parts: dict[str, str]) -> str:
    return ", ".join(filter(None, parts.values()))


class Progress:
    """Shows observations until it is closed. ``say`` logs a line, and prints it so that it stays."""

    def __init__(
        self,
        observe: Callable[[], Observation],
        mode: ProgressMode,
        stream: TextIO | None = None,
        name: str = "",
    ) -> None:
        """``name`` says which rank it is, where there are several."""
        self._observe = observe
        self._whose = f"{name}: " if name else ""
        self._mode = mode
        self._stream = stream or sys.stderr
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.area: Area | None = area_here() if mode is ProgressMode.AUTO else None
        """The area that shows everything in a notebook."""

    def start(self) -> None:
        if self._mode is ProgressMode.OFF:
            return
        dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
        terminal = self._mode is ProgressMode.AUTO and not dumb and columns_of(self._stream) is not None
        live = self.area is not None or terminal
        target = self._draw_live if live else self._print_plain
        self._thread = OwnThread(target=target, name="ebbtide-progress", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        logs_here = _tell_log(self._whose + text, self._stream)
        if logs_here or self._mode is ProgressMode.OFF:
            return
        if self.area is not None:
            self.area.say(text)
        else:
            line = f"{_SAYS}{self._whose}{text}"
            tell(folded_for_terminal(line, self._stream, hanging=len(_SAYS)), self._stream)

    def close(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _print_plain(self) -> None:
        printed, said, doing = 0, "", ""
        told: set[str] = set()  # news of planning that has been told: what comes again and again is told once
        verbose = self._mode is ProgressMode.VERBOSE
        interval_s = 0.0 if verbose else _PLAIN_INTERVAL_S
        due = monotonic() + interval_s
        while not self._stopping.wait(_LIVE_INTERVAL_S):
            seen = self._observe()
            if seen.doing() != doing:
                doing = seen.doing()
                news = doing or seen.outcome()
                if news and (kind := news.rstrip("0123456789")) not in told:
                    told.add(kind)
                    self.say(news)
            if (seen.planning is not None and not seen.planning.beside) or monotonic() < due:
                continue
            if seen.line() != said and (seen.steps > printed or not verbose):
                said, printed = seen.line(), seen.steps
                self.say(said)
            interval_s = min(2 * interval_s, _PLAIN_MOST_S)
            due = monotonic() + interval_s
        seen = self._observe()
        if seen.steps > printed:
            self.say(seen.line())

    def _draw_live(self) -> None:
        line = self.area or FootLine(self._stream)
        with suppress(OSError, ValueError):  # the terminal went away, or the script closed its stream
            while not self._stopping.wait(_LIVE_INTERVAL_S):
                columns = line.columns() if isinstance(line, FootLine) else None
                width = None if columns is None else columns - len(self._whose)
                line.draw(self._whose + self._observe().line(width))
        with suppress(OSError, ValueError):
            line.erase()


class FootLine:
    """The terminal's last row, taken out of its scrolling region (DECSTBM)."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._stream = stream
        self._console = Console(file=stream, stderr=True)
        self._rows = 0  # the terminal's rows when the region was set; 0 while there is none

    def columns(self) -> int:
        """Return the columns that a line has after the name."""
        return os.get_terminal_size(self._stream.fileno()).columns - 1 - len(_NAME)

    def draw(self, text: str) -> None:
        columns, rows = os.get_terminal_size(self._stream.fileno())
        if rows < _FEWEST_ROWS:
            return
        region = ""
        if rows != self._rows:
            # A new line comes first, so that the cursor leaves the row that is taken. Setting the region homes it.
            region = f"\n{_ESC}7{_ESC}[1;{rows - 1}r{_ESC}8{_ESC}[1A"
            self._rows = rows
        self._write(f"{region}{_ESC}7{_ESC}[{rows};1H{_ESC}[2K{self._styled(text, columns - 1)}{_ESC}8")

    def erase(self) -> None:
        if self._rows:
            self._write(f"{_ESC}7{_ESC}[r{_ESC}[{self._rows};1H{_ESC}[2K{_ESC}8")
            self._rows = 0

    def _styled(self, text: str, columns: int) -> str:
        from rich.text import Text

        with self._console.capture() as capture:
            styled = Text.assemble((_NAME, "bold cyan"), text)
            self._console.print(styled, end="", width=columns, no_wrap=True, overflow="ellipsis")
        return capture.get()

    def _write(self, sequence: str) -> None:
        """Write in one call, so that nothing of the script's lands inside a sequence."""
        self._stream.flush()
        os.write(self._stream.fileno(), sequence.encode())


def _tell_log(text: str, stream: TextIO | None) -> bool:
    """Log a line. Return whether a handler of the program's put it on ``stream``, where it need not stand twice."""
    if not _log.hasHandlers():
        return False  # nor is a record made, with the time of a clock that may be the script's
    if _log.level == logging.NOTSET:
        _log.setLevel(logging.INFO)  # else the root logger's level decides, which is WARNING unless somebody set it
    with listed(), suppress(Exception):  # a handler of the program's may raise anything
        _log.info(text)
    heard = [*_log.handlers, *(logging.getLogger().handlers if _log.propagate else ())]
    return _log.isEnabledFor(logging.INFO) and any(
        getattr(handler, "stream", None) is stream and handler.level <= logging.INFO for handler in heard
    )
