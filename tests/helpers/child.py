"""Run a test, or a function of a test's module, in a fresh process, and say how it died if it did.

A session changes its process for good (the arena outlives it), and a fault in native code would take pytest along, so
each case has a process of its own, forked as commands are (``forked``), in some hundredths of a second. It ends without
C's part: the destructors of PyTorch's libraries take longer than many cases.
"""

import atexit
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tests.helpers import forked

HUNG_AFTER_S = 600  # far above any case's time on a busy machine: only a hang gets here


class ChildError(Exception):
    """The child raised, crashed or hung; the text holds its traceback and its last output."""


def _main(asked: Connection) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    function, args, named, first = asked.recv()
    try:
        for each in first:
            each()
        asked.send((function(*args, **named), None, None))
    except pytest.skip.Exception as skipped:
        asked.send((None, None, skipped.msg))
    except BaseException:
        asked.send((None, traceback.format_exc(), None))


class Child:
    """A process calling ``function``, found by its name. ``env`` holds the only ``EBBTIDE_...`` variables it sees, but
    for two: so that steps can be counted, training waits for plans; so that a disk's wrong byte is told from one of
    ours, checksums are on."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        env: Mapping[str, str] | None,
        named: Mapping[str, Any] | None = None,
        first: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.call = f"{function.__qualname__}{args or named or ()}"
        env = {"EBBTIDE_WAIT_FOR_PLAN": "1", "EBBTIDE_CHECKSUM": "1"} | dict(env or {})
        others = {name: value for name, value in os.environ.items() if not name.startswith("EBBTIDE_")}
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed in __exit__)
        self._connection, theirs = multiprocessing.Pipe()
        start = forked.popen(forked.pythons(), forked.pythons(), forked.planners())
        with theirs:
            self._process = start(
                [sys.executable, "-m", __name__], stdin=theirs, stdout=self._log, stderr=self._log, env=others | env
            )
        self._connection.send((function, args, named or {}, first))

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. Raises ChildError if the child ends first, or if it takes for ever."""
        patience = time.monotonic() + HUNG_AFTER_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > patience:
                self.result()
                raise self._error("ended too early")
            time.sleep(0.01)

    def result(self) -> Any:
        """What the function returned (plain data). Raises ChildError if it raised, or the process crashed or hung."""
        try:
            if not self._connection.poll(HUNG_AFTER_S):
                os.kill(self.pid, signal.SIGUSR1)  # faulthandler writes every thread's stack to the log
                self._status(2)
                raise self._error(f"hung for {HUNG_AFTER_S} s")
            result, failure, skipped = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._error("died") from None
        if skipped is not None:
            pytest.skip(skipped)
        if failure is not None:
            raise self._error(failure)
        if self._status(HUNG_AFTER_S) != 0:
            raise self._error("died after its work was done")
        return result

    def _status(self, within_s: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(within_s)
        return None

    def _error(self, what: str) -> ChildError:
        status = self._status(2)
        self._log.seek(0)
        return ChildError(f"{self.call}: {what} (exit code {status})\n{self._log.read()[-6000:]}")


def run(
    function: Callable[..., Any],
    *args: Any,
    env: Mapping[str, str] | None = None,
    first: Sequence[Callable[[], object]] = (),
    **named: Any,
) -> Any:
    """Call ``function`` in a fresh process, after those that come ``first``, and return its result."""
    with Child(function, args, env, named, first) as child:
        return child.result()


if __name__ == "__main__":
    asked = Connection(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    _main(asked)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(0)
