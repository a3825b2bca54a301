"""Tells what a script's signal handlers raise from our errors: Python calls them wherever the main thread is."""

import signal
import traceback
from functools import partial
from types import CodeType

_gone: set[CodeType] = set()


def note_gone(handler: object) -> None:
    """Note a handler that has just been replaced. It may be running: a second signal is to end its process, say."""
    code = _code_of(handler)
    if code is not None:
        _gone.add(code)


def came_from_a_handler(error: BaseException) -> bool:
    """Tell whether a signal's handler raised the error."""
    codes = _gone.union(map(_code_of, map(signal.getsignal, signal.valid_signals()))) - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: object) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    if not callable(handler):
        return None
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
