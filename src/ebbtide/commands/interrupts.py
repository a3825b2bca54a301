"""Lets Ctrl-C end the process even within a call that hears no signal before it returns, such as a solver's; and lets
SIGTERM and SIGHUP end a block that has something to clean up."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ebbtide.errors import INTERRUPTED

_PATIENCE_S = 0.5
"""The block has this long to end by itself, of KeyboardInterrupt."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this block as an exception does, so that it ends its child and removes its files. A
    handler that is there stays."""
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []

    def handle(by: Any) -> None:
        for number in ours:
            signal.signal(number, by)

    def end(number: int, frame: FrameType | None) -> None:
        handle(signal.SIG_IGN)  # a second one would break off the cleaning
        raise SystemExit(128 + number)

    handle(end)
    try:
        yield
    finally:
        handle(signal.SIG_DFL)


@contextmanager
def ended_by_interrupt(leave: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C end this block. If it does not, another thread calls ``leave`` and the process exits.

    No ``finally`` is reached then, so the block's work must leave nothing behind.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, told = os.pipe()
    os.set_blocking(told, False)
    ended = threading.Event()

    def listen() -> None:
        while sent := os.read(heard, 1):
            if sent[0] == signal.SIGINT and not ended.wait(_PATIENCE_S):
                leave()
                ctypes.CDLL(None).signal(signal.SIGINT, int(signal.SIG_DFL))  # signal.signal is the main thread's
                os.kill(os.getpid(), signal.SIGINT)
                os._exit(INTERRUPTED)  # where it is blocked

    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    listener = threading.Thread(target=listen, daemon=True, name="ebbtide-interrupt")
    listener.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(told)
        listener.join()
        os.close(heard)
