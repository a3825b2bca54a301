"""Adoption: storages born elsewhere (a model built before the session, a mapped checkpoint) move into the arena.

Callers MUST be at a step boundary: no operator runs, because a storage's data pointer changes under its tensors.
Tensors are found through the garbage collector, one per storage. A storage that a NumPy array shares is left alone:
the array would go on pointing at the old memory. Arrays are not tracked by the collector, so they are looked for in
what the tracked objects and the running frames refer to; one held by foreign code only is not seen.
"""

import gc
import inspect
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch

from ebbtide import _torch
from ebbtide.runtime.process import give_back_freed_memory

_CHUNK = 4096
_OWN_REFERENCES = 3  # to a frame's snapshot: the frame's, the variable's, and getrefcount's own
_NUMPY_REASON = "a NumPy array shares its memory"


def adopt_all(min_bytes: int) -> tuple[int, list[tuple[int, str]]]:
    """Of the storages of ``min_bytes`` and more: the bytes adopted, and of each left alone its bytes and why."""
    storages = _unmanaged_storages(min_bytes)
    shared = _shared_with_numpy(storages)
    adopted = 0
    left_alone: list[tuple[int, str]] = []
    for pointer in list(storages):
        tensor = storages.pop(pointer)
        nbytes = tensor.untyped_storage().nbytes()
        if pointer in shared:
            left_alone.append((nbytes, _NUMPY_REASON))
            continue
        moved, reason = _torch.adopt(tensor)
        adopted += moved
        if reason:
            left_alone.append((nbytes, reason))
    if adopted:
        give_back_freed_memory()  # the originals
    return adopted, left_alone


def _unmanaged_storages(min_bytes: int) -> dict[int, torch.Tensor]:
    """One tensor for every storage on the CPU that the arena does not manage, by data pointer."""
    found: dict[int, torch.Tensor] = {}
    for value in gc.get_objects():
        if not issubclass(type(value), torch.Tensor):
            continue
        if value.device.type != "cpu" or value.layout is not torch.strided:
            continue
        try:
            storage = value.untyped_storage()
            pointer = storage.data_ptr() if storage.nbytes() >= min_bytes else 0
        except (RuntimeError, NotImplementedError):  # a wrapper or fake tensor has no memory of its own
            continue
        if pointer and not _torch.is_managed(value):
            found.setdefault(pointer, value)
    return found


def _shared_with_numpy(storages: dict[int, torch.Tensor]) -> set[int]:
    """The data pointers of the storages that a NumPy array's data lies in."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not storages:
        return set()
    starts = sorted(storages)
    ends = {start: start + storages[start].untyped_storage().nbytes() for start in starts}
    shared: set[int] = set()
    for array in _referents(numpy.ndarray):
        address = array.__array_interface__["data"][0]
        index = bisect_right(starts, address) - 1
        if index >= 0 and address < ends[starts[index]]:
            shared.add(starts[index])
    return shared


def _referents(wanted: type) -> Iterator[Any]:
    """Objects of an untracked type, wherever a tracked object or a running function refers to one."""
    objects = gc.get_objects()
    for start in range(0, len(objects), _CHUNK):
        yield from _expand(gc.get_referents(*objects[start : start + _CHUNK]), wanted)
    yield from _expand(_running_locals(), wanted)


def _expand(values: Iterable[Any], wanted: type) -> Iterator[Any]:
    """The collector does not track a dict or tuple of untracked values either, so those are opened."""
    for value in values:
        kind = type(value)
        if issubclass(kind, wanted):
            yield value
        elif (kind is dict or kind is tuple) and not gc.is_tracked(value):
            yield from _expand(gc.get_referents(value), wanted)


def _running_locals() -> list[Any]:
    """The values of the local variables of every running function; a module's are found through its dictionary.

    Up to Python 3.12, asking a frame for its locals leaves a snapshot in it, which would keep tensors alive as long
    as the function runs. So it is emptied, unless someone else holds it too: then it is the result of ``locals()``.
    """
    found: list[Any] = []
    frame: FrameType | None
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_globals is not globals():
                snapshot = frame.f_locals
                found += snapshot.values()
                if type(snapshot) is dict and sys.getrefcount(snapshot) <= _OWN_REFERENCES:
                    snapshot.clear()
            frame = frame.f_back  # None at the end, so that no frame is left holding itself
    return found
