"""Threads that a script does not find among its own.

Some scripts end when ``threading.active_count()`` is 1, or join each thread of ``threading.enumerate()``.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

_here = threading.local()


_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


@contextmanager
def new_threads_take_no_signals() -> Iterator[None]:
    """Around what begins threads: a script may block a signal in its own, and wait for it (``sigwait``)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def import_numpy() -> None:
    """Import it before a script's first line, as Ebbtide needs it: its OpenBLAS begins threads."""
    with new_threads_take_no_signals():
        import_module("numpy")


class OwnThread(threading.Thread):
    """A daemon that ``threading`` does not list while it runs. Its code does not ask for the current thread."""

    def start(self) -> None:
        with new_threads_take_no_signals():
            super().start()

    def run(self) -> None:
        _here.own = self
        _unlist(self)
        try:
            super().run()
        finally:
            _list(self)  # from where it takes itself out


@contextmanager
def listed() -> Iterator[None]:
    """Around code that may ask for the current thread, as logging does: not found, a lasting dummy would be listed."""
    own = getattr(_here, "own", None)
    if own is None:
        yield
        return
    _list(own)
    try:
        yield
    finally:
        _unlist(own)


def _list(own: OwnThread) -> None:
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        threading._active[own.ident] = own  # type: ignore[attr-defined]


def _unlist(own: OwnThread) -> None:
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        del threading._active[own.ident]  # type: ignore[attr-defined]
