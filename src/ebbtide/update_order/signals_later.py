"""Puts a script's signal handlers off while updates are half made.

Handlers that Python runs would find them so, and could end them there: Ctrl-C's, or a job's that saves before it is
ended. They are called as if their signals had come when the updates are made, so one that raises does so then. Left
out: updates on another thread than the main one, which runs the handlers meanwhile; and what C handles.
"""

import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS}
_OF_TIMERS = {signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF}


class SignalsLater:
    """``for_long``: a signal that comes twice finds its handler at once, since whoever sends it is in a hurry. So does
    a timer's, which may be a time limit."""

    def __init__(self, *, for_long: bool = False) -> None:
        self._for_long = for_long
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}  # while they are put off
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}  # the last ones
        self._noted: list[int] = []
        self._process = os.getpid()

    def begin(self) -> None:
        """Put handlers off from now on."""
        if self._handlers or threading.current_thread() is not threading.main_thread():
            return
        numbers = _SIGNALS - _OF_TIMERS if self._for_long else _SIGNALS
        found = {number: signal.getsignal(number) for number in numbers}
        self._handlers = {
            number: self._before.get(number, handler) if handler == self._note else handler
            for number, handler in found.items()
            if callable(handler)
        }
        self._before = self._before | self._handlers
        for number in self._handlers:
            signal.signal(number, self._note)

    def end(self) -> None:
        """Restore the handlers, and call those whose signals came."""
        if not self._handlers or threading.current_thread() is not threading.main_thread():
            return
        handlers, self._handlers = self._handlers, {}  # a signal that comes from here on finds its handler at once
        noted, self._noted = self._noted, []
        with ExitStack() as each:  # also where one raises. A signal raised again would wake asyncio a second time
            for number in reversed(noted):
                each.callback(handlers[number], number, inspect.currentframe())
            for number, handler in handlers.items():  # first
                each.callback(self._restore, number, handler)

    def _restore(self, number: int, handler: Callable[[int, FrameType | None], Any]) -> None:
        if signal.getsignal(number) == self._note:  # else the script has set another meanwhile
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Note the signal. A script that asked for its handler meanwhile got this one, and may have set it again."""
        again = self._for_long and number in self._noted
        if again or not self._handlers or os.getpid() != self._process:
            self._noted = [come for come in self._noted if come != number]
            signal.signal(number, self._before[number])
            self._before[number](number, frame)
        else:
            self._noted.append(number)


@contextmanager
def signals_later() -> Iterator[None]:
    """Put handlers off in the block."""
    later = SignalsLater()
    try:
        later.begin()
        yield
    finally:
        later.end()
