"""Keeps a running session's report on disk, so that a killed job leaves what it knew, and ``ebbtide top`` can show it.

A thread of its own writes a few kilobytes every two seconds, whole or not at all: the report with its latest steps, and
what happens at this moment (``Moment``). Each session has a file in a folder of its user; a file that was named for the
report gets the same until the run ends. Whatever fails, a full disk say, is tried again at the next turn, in silence.

Left out: a file for another user, and one in a container that has a ``/tmp`` of its own.
"""

import os
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import time as now_s

from ebbtide.host.kernel_files import text_of
from ebbtide.host.own_thread import OwnThread
from ebbtide.host.process import PROC
from ebbtide.ir.run_report import Moment, RunReport
from ebbtide.screen.progress import Observation
from ebbtide.whole_file import is_special, write_whole

EVERY_S = 2.0
PLACE = Path("/tmp")  # not TMPDIR, which a job may have for itself
_LATEST_STEPS = 5
_FORGOTTEN_S = 24 * 3600
"""The file of a process that was killed is removed after so long."""
_COMMAND_LENGTH = 200


class KeptReport:
    """Writes until it is closed. ``report`` and ``moment`` are called on the thread, and may raise."""

    def __init__(
        self, report: Callable[[], RunReport], moment: Callable[[], Moment], named: Path | None = None
    ) -> None:
        """``named`` is the file of the run's report."""
        self._report = report
        self._moment = moment
        self._named = named
        self._own: Path | None = None
        self._stopping = threading.Event()
        self._thread = OwnThread(target=self._keep, name="ebbtide-report", daemon=True)

    def start(self) -> None:
        with suppress(RuntimeError):  # the process may have no further thread
            self._thread.start()

    def close(self) -> None:
        """Stop, and remove the session's own file: the run has ended."""
        if not self._stopping.is_set():
            self._stopping.set()
            if self._thread.ident is not None:
                self._thread.join()
            if self._own is not None:
                with suppress(OSError):
                    self._own.unlink()

    def _keep(self) -> None:
        with suppress(OSError):
            folder = session_folder(make=True)
            self._own = folder / f"{os.getpid()}.json"
            _forget_old(folder)
        # To a device or a pipe the report goes once, at the end.
        paths = [path for path in (self._own, self._named) if path is not None and not is_special(path)]
        while True:
            with suppress(Exception):  # the step's thread changed what the report is made of: the next turn has it
                kept = shortened(self._report(), self._moment()).to_json().encode()
                for path in paths:
                    with suppress(OSError):
                        write_whole(path, kept)
            if self._stopping.wait(EVERY_S):
                return


def shortened(report: RunReport, moment: Moment) -> RunReport:
    """Return the report of a run that goes on, with its latest steps alone."""
    rest, latest = report.steps[:-_LATEST_STEPS], report.steps[-_LATEST_STEPS:]
    return replace(
        report,
        steps=latest,
        left_out_steps=report.left_out_steps + len(rest),
        moment=moment,
    )


def session_folder(make: bool = False) -> Path:
    """Return the folder with a file for each session of this user. Raises OSError where it is somebody else's."""
    folder = PLACE / f"ebbtide-{os.getuid()}"
    if make:
        folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def sessions(folder: Path) -> Sequence[tuple[Path, RunReport]]:
    """Read the sessions' files, the youngest last. What cannot be read is left out."""
    found = []
    for path in folder.glob("[0-9]*.json"):
        with suppress(Exception):
            report = RunReport.from_json(path.read_text())
            if report.moment is not None:
                found.append((path, report))
    return sorted(found, key=lambda each: each[1].moment.process_began if each[1].moment is not None else 0)


def goes_on(moment: Moment) -> bool:
    """Tell whether the process is there that wrote this."""
    return _began(moment.pid) == moment.process_began


def at_this_moment(seen: Observation, total_steps: int | None) -> Moment:
    """Say what happens in this process."""
    return Moment(
        pid=os.getpid(),
        process_began=_began(os.getpid()),
        command=" ".join(map(str, getattr(sys, "argv", ())))[:_COMMAND_LENGTH],
        at_s=now_s(),
        what=seen.what,
        held_bytes=seen.held_bytes,
        budget_bytes=seen.budget_bytes,
        running_s=seen.running_s,
        doing=seen.doing(),
        total_steps=None if total_steps is None or total_steps < 0 else total_steps,
        in_memory=seen.in_memory,
    )


def _began(pid: int) -> int:
    """Return when a process began, in ticks since the kernel booted (field 22 of proc(5)); 0 where there is none."""
    try:
        text = text_of(PROC / str(pid) / "stat")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def _forget_old(folder: Path) -> None:
    for path in folder.iterdir():
        if now_s() - path.stat().st_mtime > _FORGOTTEN_S:
            path.unlink()
