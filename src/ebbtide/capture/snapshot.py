"""Reads a CUDA memory snapshot (``torch.cuda.memory._dump_snapshot``) as a Trace in which no accesses are known.

The file is a pickle, and a pickle may name any function to be called. A snapshot holds plain data, so a file that
names anything is refused. Every field that is used has the type that ``torch.cuda.memory._snapshot`` documents. Another
container in its place is neither printed nor compared, since that can take any time and memory.

Every allocation and every release of the recorded history is a tick, which lasts until the next one. A storage lives
until its memory can be used again (``free_completed``). A storage is persistent if it was there before the history
began and still is when it ends. Left out: which allocations belong to which step, what they are to training, and the
segments that they were cut from.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import numpy as np

from ebbtide.errors import FileFormatError
from ebbtide.ir.base import Origin
from ebbtide.ir.files import MOST_ROWS
from ebbtide.ir.trace import Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace
from ebbtide.units import GIB

_MOST_FILE_BYTES = 2 * GIB
_ALLOCATES, _FREES, _ASKS_TO_FREE = "alloc", "free_completed", "free_requested"
_OURS = ("/torch/", "/site-packages/", "<frozen", "??")  # frames of libraries, which a user does not know
_MOST_NAMED = 64
_MOST_PLACE = 200  # characters

_DAMAGED = (ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""The errors, besides its own, that ``pickle`` raises for bytes that no pickle of plain data has."""

_Field = TypeVar("_Field", int, str, list[Any])


def read_snapshot(path: Path, device: int | None = None) -> Trace:
    """Read one device's history; None is the only device with one. Raises FileFormatError unless it is a snapshot."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size > _MOST_FILE_BYTES:
                raise FileFormatError("the file is too large")
            snapshot = _read_plain(file)
        if type(snapshot) is not dict or not {"segments", "device_traces"} <= snapshot.keys():
            raise FileFormatError("not a memory snapshot: it lacks segments or device_traces")
        segments = _records(_field(snapshot, "segments", list))
        histories = _field(snapshot, "device_traces", list)
        device = _chosen(segments, histories, device)
        history = _records(histories[device]) if device < len(histories) else []
        events = [event for event in history if _field(event, "action", str) in (_ALLOCATES, _FREES, _ASKS_TO_FREE)]
        own = [_field(segment, "blocks", list) for segment in segments if _device(segment) == device]
        once = {id(rows): rows for rows in own}.values()  # a few bytes may name a long list many times
        blocks = [block for rows in once for block in _records(rows)]
        return _trace(f"{path.name}, device {device}", events, blocks)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error
    except (ValueError, OverflowError) as error:
        raise FileFormatError(f"{path}: not a memory snapshot: {error}") from error


class _PlainData(pickle.Unpickler):
    """Reads dicts, lists, tuples, texts, bytes and numbers; refuses whatever else a pickle could make or call."""

    def find_class(self, module: str, name: str) -> NoReturn:
        called = ascii(f"{module}.{name}")[1:-1]
        raise FileFormatError(f"it would call {called:.200}, and plain data calls nothing: refused")

    def persistent_load(self, pid: object) -> NoReturn:
        raise FileFormatError("it refers to objects outside of it, and plain data has none: refused")


def _read_plain(file: BinaryIO) -> object:
    try:
        return _PlainData(file).load()
    except FileFormatError:
        raise
    except (pickle.UnpicklingError, *_DAMAGED) as error:
        raise FileFormatError("no memory snapshot: it is not a pickle, or a damaged one") from error


def _field(record: Mapping[str, Any], name: str, kind: type[_Field], default: _Field | None = None) -> _Field:
    """Return a field of exactly this type."""
    value = record.get(name, default)
    if type(value) is not kind:
        found = f"a field {name} that is no {kind.__name__}" if name in record else f"no field {name}"
        raise FileFormatError(f"not a memory snapshot: a record in it has {found}")
    return value


def _records(rows: object) -> list[dict[str, Any]]:
    if type(rows) is not list or not all(type(row) is dict for row in rows):
        raise FileFormatError("not a memory snapshot: it has something else in place of a list of records")
    return rows


def _device(segment: Mapping[str, Any]) -> int:
    return _field(segment, "device", int, 0)


def _chosen(segments: list[dict[str, Any]], histories: list[Any], device: int | None) -> int:
    used = {number for number, history in enumerate(histories) if history}
    used = used or {_device(segment) for segment in segments}
    if device is None and len(used) == 1:
        device = used.pop()
        used = {device}
    if device is None or device not in used or device < 0:
        known = ", ".join(f"cuda:{number}" for number in sorted(used)[:_MOST_NAMED]) or "none"
        raise FileFormatError(f"choose one of the devices in it with --device: {known}")
    return device


def _trace(name: str, events: list[dict[str, Any]], blocks: list[dict[str, Any]]) -> Trace:
    n_ticks = max(len(events), 1)
    if n_ticks > MOST_ROWS:
        raise FileFormatError(
            f"its history has {n_ticks} allocations and releases, and a trace holds {MOST_ROWS}: record fewer with "
            "torch.cuda.memory._record_memory_history(max_entries=...)"
        )
    place = _Places()
    storages, alive = _lives(events, place)
    before = {_field(row, "address", int): row for row in blocks if _field(row, "state", str).startswith("active")}
    kept = [block for address, block in before.items() if address not in alive]
    born = [
        Storage(nbytes, StorageKind.OTHER, birth, n_ticks, allocation=0, line=place)
        for nbytes, birth, place in alive.values()
    ]
    lasting = [
        Storage(_size(block), StorageKind.OTHER, 0, n_ticks, persistent=True, line=place(block)) for block in kept
    ]
    nothing = np.zeros(0, dtype=np.int64)
    return Trace(
        name,
        Origin.MEASURED,
        _ticks(events, place),
        Storages.from_rows([*lasting, *storages, *born]),
        Accesses(nothing, nothing, nothing),
        accesses_known=False,
    )


def _lives(events: list[dict[str, Any]], place_of: "_Places") -> tuple[list[Storage], dict[int, tuple[int, int, str]]]:
    """Return the storages that end in the history; and of the others, by address, size, tick of birth and place."""
    done: list[Storage] = []
    alive: dict[int, tuple[int, int, str]] = {}
    for tick, event in enumerate(events):
        address = _field(event, "addr", int)
        if event["action"] == _ALLOCATES:
            alive[address] = (_size(event), tick, place_of(event))
        elif event["action"] == _FREES and address in alive:
            nbytes, birth, place = alive.pop(address)
            done.append(Storage(nbytes, StorageKind.OTHER, birth, tick, allocation=0, line=place))
        elif event["action"] == _FREES:  # born before the history began
            done.append(Storage(_size(event), StorageKind.OTHER, 0, max(tick, 1)))
    return done, alive


def _ticks(events: list[dict[str, Any]], place_of: "_Places") -> Ticks:
    if not events:
        return Ticks.from_rows([Tick(0, "snapshot")])
    begins = np.array([_field(event, "time_us", int, 0) for event in events], dtype=np.int64) * 1000
    times = np.maximum(np.diff(begins, append=begins[-1]), 0).tolist()
    rows = zip(times, events, strict=True)
    return Ticks.from_rows(Tick(time, event["action"], place_of(event)) for time, event in rows)


def _size(record: Mapping[str, Any]) -> int:
    return _field(record, "requested_size" if "requested_size" in record else "size", int) or 1


class _Places:
    """The place that asked for memory: the innermost frame that is no library's, such as "train.py:12 forward".

    Events share their lists of frames, and each list is looked at once. Callers MUST keep the lists alive.
    """

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def __call__(self, record: Mapping[str, Any]) -> str:
        frames = record.get("frames", ())
        known = self._known.get(id(frames))
        if known is None:
            known = self._known[id(frames)] = _place(_records(frames) if frames else [])
        return known


def _place(frames: list[dict[str, Any]]) -> str:
    for frame in frames:
        filename = _field(frame, "filename", str)
        if filename.endswith(".py") and not any(part in filename for part in _OURS):
            line, name = _field(frame, "line", int), _field(frame, "name", str)
            return f"{filename.rpartition('/')[2]}:{line} {name}"[:_MOST_PLACE]
    return ""
