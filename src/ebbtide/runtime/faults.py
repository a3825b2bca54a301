"""Keeps the SIGSEGV safety net on top, and lets it be reached, whatever the script does to that signal.

Ours must see a fault first, and pass on those that are not its own: another handler ends the process at the first fault
it sees. And the kernel ends a process without a word if a thread that blocks the signal faults, so no thread that
trains may block it. Every operator sees to both in its own thread (``recorder.cpp``). Here is the rest: what Python
changes between two operators, and threads that were there before the session.
"""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import ebbtide._torch as _torch
from ebbtide.host.kernel_files import text_of
from ebbtide.host.signal_handlers import note_gone
from ebbtide.in_front import InFrontOf

_stays = False
_T = TypeVar("_T")


def stay_on_top() -> None:
    """Put the safety net on top now, and again whenever Python has changed who has the signal, or who blocks it."""
    global _stays
    _torch.install_fault_handler()
    if not _stays:
        _stays = True
        InFrontOf.FAULTS.install(_below)


def _below(change: Callable[..., _T], *args: object, **kwargs: object) -> _T:
    result = change(*args, **kwargs)
    note_gone(result)  # signal.signal returns the handler before
    _torch.install_fault_handler()
    return result


def are_blocked() -> bool:
    """Tell whether a thread that was there before the first session blocks the signal."""
    if _stays:
        return False  # some threads of the arena do
    return any(map(_blocks, Path("/proc/self/task").iterdir()))


def _blocks(thread: Path) -> bool:
    try:
        status = text_of(thread / "status")
    except OSError:
        return False  # it has ended meanwhile
    return bool(int(status.split("SigBlk:")[1].split()[0], 16) & 1 << (signal.SIGSEGV - 1))
