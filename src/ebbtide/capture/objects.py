"""Finds objects in this process: those that the collector lists, those that it was told to forget, and functions' own.

``gc.freeze()``, which a script calls before it forks, hides objects from ``gc.get_objects()``. Whoever looks for
tensors, modules or optimizers asks here instead. Left out: a frozen object that only C code holds. Nothing leads to it.
"""

import gc
import inspect
import sys
from types import FrameType
from typing import Any, TypeVar

Kind = TypeVar("Kind")

_LISTED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # the collector sees their variables
_OWN_REFERENCES = 3  # references to a frame's snapshot: the frame's, the variable's, and getrefcount's own
_AT_ONCE = 1000


def all_objects() -> list[Any]:
    """Return the objects that the collector tracks, frozen ones too, each once."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    # First, since it empties the snapshots of frames that nobody else holds, and the list of all objects would.
    held = running_locals(shared=True)
    objects = gc.get_objects()
    known = {id(objects), *map(id, objects)}
    ahead = [sys.modules, *held, *objects]
    while ahead:
        some = ahead[-_AT_ONCE:]
        del ahead[-_AT_ONCE:]
        for found in (*some, *gc.get_referents(*some)):
            if id(found) not in known and gc.is_tracked(found):
                known.add(id(found))
                objects.append(found)
                ahead.append(found)
    held.clear()  # the list of all objects has it, too
    return objects


def instances(kind: type[Kind], among: list[Any] | None = None) -> list[Kind]:
    """Return the objects of a kind and of its subclasses among some objects, or among all.

    Types are compared, not objects: these are hundreds of thousands, and some say something else of their class.
    """
    objects = all_objects() if among is None else among
    kinds = {each for each in set(map(type, objects)) if issubclass(each, kind)}
    return [found for found in objects if type(found) in kinds] if kinds else []


def running_locals(*, shared: bool = False) -> list[Any]:
    """Return the values of every running function's local variables, which the collector does not list.

    It may list those of a generator or a coroutine, so they are left out.

    Variables that an inner function shares lie in cells, which the collector lists unless they are frozen. They are
    left out unless ``shared`` is set.

    Up to Python 3.12, asking a frame for its locals leaves a snapshot in it, which would keep tensors alive as long as
    the function runs. So the snapshot is emptied, unless someone else holds it too: then it is the result of
    ``locals()``.
    """
    found: list[Any] = []
    frame: FrameType | None
    for frame in sys._current_frames().values():
        while frame is not None:
            code = frame.f_code
            function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_flags & _LISTED
            if function and frame.f_globals is not globals():
                snapshot = frame.f_locals
                cells = code.co_cellvars
                names = {*code.co_varnames, *cells} if shared else {*code.co_varnames}.difference(cells)
                found += [snapshot[name] for name in names if name in snapshot]
                if type(snapshot) is dict and sys.getrefcount(snapshot) <= _OWN_REFERENCES:
                    snapshot.clear()
            frame = frame.f_back  # None at the end, so that no frame is left holding itself
    return found
