"""Reads a CUDA memory snapshot (``torch.cuda.memory._dump_snapshot``) as a Trace in which no accesses are known.

The file is a pickle, and a pickle may name any function to be called. So it is read with nothing to name: plain
containers, texts and numbers, or it is refused. Its structure is that which ``torch.cuda.memory._snapshot`` documents.

Every allocation and every release of the recorded history is a tick, which takes until the next of them. A storage
lives until its memory can be used again (``free_completed``). What was there before the history began and still is when
it ends is persistent. Left out: which allocations belong to which step, what they are to training, and the segments
that they were cut from.
"""

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from ebbtide.errors import FileFormatError
from ebbtide.ir.base import Origin
from ebbtide.ir.files import MOST_ROWS
from ebbtide.ir.trace import Accesses, Storage, StorageKind, Tick, Trace
from ebbtide.units import GIB

_MOST_FILE_BYTES = 2 * GIB
_ALLOCATES, _FREES, _ASKS_TO_FREE = "alloc", "free_completed", "free_requested"
_OURS = ("/torch/", "/site-packages/", "<frozen", "??")  # frames of libraries: no place that a user knows


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise FileFormatError(f"it would call {module}.{name}, and a memory snapshot holds plain data only: refused")

    def persistent_load(self, _name: object) -> NoReturn:
        raise FileFormatError(
            "it refers to objects outside of it, and a memory snapshot holds plain data only: refused"
        )


def read_snapshot(path: Path, device: int | None = None) -> Trace:
    """The history of one device; None is the only one that has any. FileFormatError for anything but a snapshot."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size > _MOST_FILE_BYTES:
                raise FileFormatError("the file is too large")
            snapshot = _unpickled(file)
        segments, histories = _fields(snapshot, "segments", "device_traces")
        device = _chosen(segments, histories, device)
        history = histories[device] if device < len(histories) else []
        events = [event for event in history if event["action"] in (_ALLOCATES, _FREES, _ASKS_TO_FREE)]
        blocks = [block for segment in segments if segment.get("device", 0) == device for block in segment["blocks"]]
        return _trace(f"{path.name}, device {device}", events, blocks)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileFormatError(f"{path}: not a memory snapshot: {type(error).__name__}: {error}") from error


def _unpickled(file: IO[bytes]) -> object:
    try:
        return _PlainUnpickler(file).load()
    except FileFormatError:
        raise
    except Exception as error:  # a damaged pickle raises whatever its last instruction happens to
        raise FileFormatError(f"not a pickle, or a damaged one: {type(error).__name__}: {error}") from error


def _fields(snapshot: object, *names: str) -> tuple[list[Any], ...]:
    if not isinstance(snapshot, dict) or not all(isinstance(snapshot.get(name), list) for name in names):
        raise FileFormatError(f"not a memory snapshot: it lacks {' or '.join(names)}")
    return tuple(snapshot[name] for name in names)


def _chosen(segments: list[Any], histories: list[Any], device: int | None) -> int:
    used = {number for number, history in enumerate(histories) if history}
    used = used or {segment.get("device", 0) for segment in segments}
    if device is None and len(used) == 1:
        return int(used.pop())
    if device is None or device not in used:
        known = ", ".join(map(str, sorted(used))) or "none"
        raise FileFormatError(f"choose one of the devices in it with --device: {known}")
    return device


def _trace(name: str, events: list[Any], blocks: list[Any]) -> Trace:
    n_ticks = max(len(events), 1)
    if n_ticks > MOST_ROWS:
        raise FileFormatError(
            f"its history has {n_ticks} allocations and releases, and a trace holds {MOST_ROWS}: record fewer with "
            "torch.cuda.memory._record_memory_history(max_entries=...)"
        )
    storages, alive = _lives(events)
    before = {block["address"]: block for block in blocks if block["state"].startswith("active")}
    kept = [block for address, block in before.items() if address not in alive]
    born = [
        Storage(nbytes, StorageKind.OTHER, birth, n_ticks, place, allocation=0)
        for nbytes, birth, place in alive.values()
    ]
    lasting = [
        Storage(_size(block), StorageKind.OTHER, 0, n_ticks, _place(block.get("frames", ())), persistent=True)
        for block in kept
    ]
    nothing = np.zeros(0, dtype=np.int64)
    return Trace(
        name,
        Origin.MEASURED,
        _ticks(events),
        (*lasting, *storages, *born),
        Accesses(nothing, nothing, nothing),
        accesses_known=False,
    )


def _lives(events: list[Any]) -> tuple[list[Storage], dict[int, tuple[int, int, str]]]:
    """Those that end in the history, and of those that do not, by address: size, tick of birth and place."""
    done: list[Storage] = []
    alive: dict[int, tuple[int, int, str]] = {}
    for tick, event in enumerate(events):
        address = event["addr"]
        if event["action"] == _ALLOCATES:
            alive[address] = (_size(event), tick, _place(event.get("frames", ())))
        elif event["action"] == _FREES and address in alive:
            nbytes, birth, place = alive.pop(address)
            done.append(Storage(nbytes, StorageKind.OTHER, birth, tick, place, allocation=0))
        elif event["action"] == _FREES:  # born before the history began
            done.append(Storage(_size(event), StorageKind.OTHER, 0, max(tick, 1)))
    return done, alive


def _ticks(events: list[Any]) -> tuple[Tick, ...]:
    if not events:
        return (Tick(0, "snapshot"),)
    begins = np.array([event.get("time_us", 0) for event in events], dtype=np.int64) * 1000
    times = np.maximum(np.diff(begins, append=begins[-1]), 0).tolist()
    return tuple(
        Tick(time, event["action"], _place(event.get("frames", ()))) for time, event in zip(times, events, strict=True)
    )


def _size(record: Mapping[str, Any]) -> int:
    nbytes = record.get("requested_size", record["size"])
    return int(nbytes) or 1


def _place(frames: Iterable[Mapping[str, Any]]) -> str:
    """Where the program asked for it: the innermost frame that is no library's, such as "train.py:12 forward"."""
    for frame in frames:
        if not any(part in frame["filename"] for part in _OURS) and frame["filename"].endswith(".py"):
            return f"{Path(frame['filename']).name}:{frame['line']} {frame['name']}"
    return ""
