"""Finds objects in this process: the collector's, those that it was told to forget, and those of running functions."""

import gc
import inspect
import sys
from types import FrameType
from typing import Any, TypeVar

import ebbtide._objects as _objects

Kind = TypeVar("Kind")

_LISTED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # the collector sees their variables


def instances(kind: type[Kind]) -> list[Kind]:
    """Return the objects of a kind and of its subclasses, frozen ones too, each once.

    Types are compared, not objects: these are hundreds of thousands, and some say something else of their class.
    """
    return _objects.instances(kind, roots())


def roots() -> list[Any]:
    """Return what leads to the objects that ``gc.freeze()`` has hidden; nothing where it hid none."""
    return [sys.modules, *running_locals(of_all=True)] if gc.get_freeze_count() else []


def running_locals(*, of_all: bool = False) -> list[Any]:
    """Return the values of this thread's running functions' local variables, which the collector does not list.

    It may list those of a generator or a coroutine, so they are left out. Variables that an inner function shares lie
    in cells, which the collector lists unless they are frozen, so they are left out, too.

    ``of_all``: of all threads, and what lies in cells. Another thread may have gone on by the time that one looks.
    """
    found: list[Any] = []
    frame: FrameType | None
    for frame in sys._current_frames().values() if of_all else (sys._getframe(),):
        while frame is not None:
            code = frame.f_code
            function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_flags & _LISTED
            if function and frame.f_globals is not globals():
                found += _objects.variables_of(frame, of_all)
            frame = frame.f_back  # None at the end, so that no frame is left holding itself
    return found
