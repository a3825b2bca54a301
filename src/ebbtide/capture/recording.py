"""One recorded step as a Trace.

Storages are numbered: those that outlive the step first, in the order in which they were allocated; then those of the
clock. A storage that is born in this step and outlives it is either kept for good, or gone in the next step, as its
counterpart of the step before went in this one (gradients until ``zero_grad``): sizes and order of birth pair them.
What is born between steps and dies within one is in use as long as it lives, since nobody schedules its birth.

Left out: what other threads' operators do between two ticks of the step's thread counts for the first of the two.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ebbtide.capture.tick_times import own_ns
from ebbtide.ir import native
from ebbtide.ir.base import Ints, Origin
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.recording import Recording
from ebbtide.ir.trace import Access, Accesses, Phase, Storage, StorageKind, Tick, Trace
from ebbtide.units import round_up

KINDS = tuple(StorageKind)

_NOTABLE = 16  # this part of a step's bytes


@dataclass(frozen=True, slots=True)
class Captured:
    """A trace, and whose part each of its storages was.

    ``serials``: by storage, the serial of the allocation that had its part when the step ended; 0 for one that was not
    alive then. ``numbers``: by the recording's row, the storage.
    """

    trace: Trace
    serials: Ints
    numbers: Mapping[int, int]


@dataclass(slots=True)
class _Life:
    """A storage of the trace on its way: the row of its birth, and of the counterpart that shows its end."""

    row: int
    birth: int
    death: int
    persistent: bool = False
    allocation: int | None = None
    later: int | None = None  # a row whose ticks count from T on
    in_use: bool = False


def capture(
    recording: Recording,
    name: str,
    count_flops: Callable[[str, str], int],
    origin: Origin = Origin.MEASURED,
    unrecorded_ns: int | None = None,
) -> Captured:
    """ValueError for a recording that is empty.

    ``count_flops`` is told an operator and its arguments (JSON, shapes for tensors).
    """
    times = own_ns(recording)
    n_ticks = len(times)
    if not n_ticks:
        raise ValueError("no step was recorded")
    lives = _lives(recording, n_ticks)
    accesses, used = _accesses(recording, lives, n_ticks)
    scratch = [life.in_use or (number not in used and not life.persistent) for number, life in enumerate(lives)]
    rooms = _rooms(recording, lives, scratch)
    kinds, sizes, names = recording.kind, recording.nbytes, recording.names
    storages = tuple(
        Storage(
            nbytes=int(sizes[life.row]),
            kind=KINDS[kinds[life.row]],
            birth=life.birth,
            death=life.death,
            module=names[recording.module[life.row]],
            persistent=life.persistent,
            scratch=scratch[number],
            allocation=life.allocation,
            room_of=rooms[number],
            packed_bytes=_packed_bytes(recording, life),
            line=names[recording.line[life.row]],
        )
        for number, life in enumerate(lives)
    )
    columns = (
        times.tolist(),
        [names[number] for number in recording.tick_name],
        [names[number] for number in recording.tick_module],
        _flops(recording, count_flops),
        _moved_bytes(recording, n_ticks).tolist(),
        _phases(recording.tick_phase),
        recording.tick_depth.tolist(),
        [names[number] for number in recording.tick_arguments],
    )
    ticks = tuple(Tick(*row) for row in zip(*columns, strict=True))
    alive = recording.death < 0
    serials = [int(recording.serial[life.row]) if alive[life.row] else 0 for life in lives]
    trace = Trace(name, origin, ticks, storages, accesses, unrecorded_ns=unrecorded_ns)
    numbers = {life.row: number for number, life in enumerate(lives)}
    numbers |= {life.later: number for number, life in enumerate(lives) if life.later is not None}
    return Captured(trace, np.array(serials, dtype=np.int64), numbers)


def likeness(recording: Recording) -> str:
    """Equal for steps whose traces have one signature, and found without making one: a digest of the ticks' number and
    of every storage's size and clock.
    """
    birth, allocation, nbytes = recording.birth, recording.allocation, recording.nbytes
    before, ends = birth < 0, recording.death >= 0
    sizes, without = _without_counterpart(recording)
    kept = np.argsort(recording.serial, kind="stable")
    kept = kept[(before & ~ends)[kept]]
    born = np.flatnonzero(~before)
    born = born[np.lexsort((nbytes[born], allocation[born], birth[born]))]
    digest = hashlib.sha256(np.int64(recording.n_ticks).tobytes())
    for column in (nbytes[kept], sizes, without, nbytes[born], birth[born], allocation[born]):
        digest.update(np.int64(len(column)).tobytes() + column.astype(np.int64).tobytes())
    return digest.hexdigest()


def ends_unlike_it_begins(recording: Recording) -> bool:
    """Whether much of what the step before left, and this one ended, has no counterpart that it leaves: such a step
    comes once. Much, in bytes, is a sixteenth of all its storages: a batch that is made between steps is less.
    """
    sizes, without = _without_counterpart(recording)
    return bool(_NOTABLE * int((sizes * without).sum()) > int(recording.nbytes.sum()))


def _without_counterpart(recording: Recording) -> tuple[Ints, Ints]:
    """All sizes of storages, and by size how many more of the step before ended in this one than it leaves to end."""
    before, ends = recording.birth < 0, recording.death >= 0
    sizes, change = np.unique(recording.nbytes, return_inverse=True)
    gone = np.bincount(change[before & ends], minlength=len(sizes))
    stay = np.bincount(change[~before & ~ends], minlength=len(sizes))
    return sizes, np.maximum(gone - stay, 0)


def flop_table(recording: Recording, count_flops: Callable[[str, str], int]) -> dict[tuple[str, str], int]:
    """By operator and arguments, for whoever makes the trace where there is no torch to ask."""
    pairs = np.unique(np.stack([recording.tick_name, recording.tick_arguments], axis=1), axis=0)
    names = recording.names
    table = {(names[operator], names[arguments]): 0 for operator, arguments in pairs.tolist()}
    return {pair: flops for pair in table if (flops := count_flops(*pair))}


def _lives(recording: Recording, n_ticks: int) -> list[_Life]:
    birth, allocation, death = recording.birth.tolist(), recording.allocation.tolist(), recording.death.tolist()
    sizes, scratch = recording.nbytes.tolist(), recording.scratch.tolist()
    rows = sorted(range(len(sizes)), key=recording.serial.tolist().__getitem__)
    persistent = [
        _Life(row, 0, n_ticks, persistent=True, in_use=bool(scratch[row]))
        for row in rows
        if birth[row] < 0 and death[row] < 0
    ]
    ended = defaultdict(list)  # by size, those of the step before that ended in this one
    for row in rows:
        if birth[row] < 0 and death[row] >= 0:
            ended[sizes[row]].append(row)
    born: list[_Life] = []
    for row in rows:
        if birth[row] < 0:
            continue
        clock = allocation[row] if allocation[row] >= 0 else None
        life = _Life(row, birth[row], death[row], allocation=clock, in_use=bool(scratch[row]))
        if death[row] < 0:
            life.later = ended[sizes[row]].pop(0) if ended[sizes[row]] else None
            life.death = n_ticks + (death[life.later] if life.later is not None else 0)
        born.append(life)
    leftover = [_Life(row, 0, max(death[row], 1), in_use=True) for rows in ended.values() for row in rows]
    return (
        persistent
        + leftover
        + sorted(born, key=lambda life: (life.birth, life.allocation is None, life.allocation or 0))
    )


def _rooms(recording: Recording, lives: list[_Life], scratch: list[bool]) -> list[int | None]:
    """By storage: in whose room scratch of one tick lies: of scratch that the same thread allocated, and that went
    earlier in that tick.

    Best fit among the room that is free then; other threads' order may be another in the next step.
    """
    serial, thread, freed_after = recording.serial.tolist(), recording.thread.tolist(), recording.freed_after.tolist()
    sizes = [int(recording.nbytes[life.row]) for life in lives]
    found: list[int | None] = [None] * len(lives)
    slots: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)  # (bytes, storage, freed after)
    for number, life in enumerate(lives):
        row = life.row
        if not scratch[number]:
            continue
        mine = slots[life.death - 1, thread[row]]
        if life.death > life.birth + 1:
            mine.append((sizes[number], number, freed_after[row]))
            continue
        paged = _paged(sizes[number])
        free = [
            (nbytes, storage, at)
            for at, (nbytes, storage, after) in enumerate(mine)
            if after < serial[row] and nbytes >= sizes[number] and _paged(nbytes) >= paged
        ]
        if free:
            nbytes, storage, at = min(free)
            found[number] = storage
            mine[at] = (nbytes, storage, freed_after[row])
        else:
            mine.append((sizes[number], number, freed_after[row]))
    return found


def _packed_bytes(recording: Recording, life: _Life) -> int | None:
    """As this step showed it; where it did not, as it showed its counterpart's of the step before."""
    rows = (life.row,) if life.later is None else (life.row, life.later)
    return next((packed for row in rows if (packed := int(recording.packed_bytes[row])) >= 0), None)


def _paged(nbytes: int) -> int:
    return round_up(nbytes, arena_pages(nbytes))


def _accesses(recording: Recording, lives: list[_Life], n_ticks: int) -> tuple[Accesses, set[int]]:
    """Every tick of every use, within the life it belongs to."""
    numbers = {life.row: (number, 0) for number, life in enumerate(lives)}
    numbers |= {life.later: (number, n_ticks) for number, life in enumerate(lives) if life.later is not None}
    modes: dict[tuple[int, int], int] = defaultdict(int)
    columns = (recording.use_storage, recording.use_first, recording.use_last, recording.use_access)
    for row, first, last, access in zip(*(column.tolist() for column in columns), strict=True):
        if row not in numbers:
            continue
        number, shift = numbers[row]
        life = lives[number]
        low, high = max(first + shift, life.birth), min(last + shift, life.death - 1)
        for tick in range(low, high + 1):
            modes[number, tick] |= access
    for number, life in enumerate(lives):  # who allocates also writes
        if not life.persistent and life.allocation is not None:
            modes[number, life.birth] |= Access.WRITE
    keys = sorted(modes)
    used = {number for number, tick in keys if tick != lives[number].birth or lives[number].persistent}
    table = np.array([(*key, modes[key]) for key in keys], dtype=np.int64).reshape(-1, 3)
    return Accesses(table[:, 0], table[:, 1], table[:, 2]), used


def _moved_bytes(recording: Recording, n_ticks: int) -> Ints:
    """Bytes that each tick reads and writes, each operand once.

    What an outer operator has in common with one that it calls is the inner one's: of ``clone`` and the ``copy_`` in
    it, which use the same two storages, ``copy_`` moves the bytes.
    """
    order = np.lexsort((recording.use_first, recording.use_storage))
    storage, first = recording.use_storage[order], recording.use_first[order]
    last, moved = recording.use_last[order], recording.use_moved[order]
    inner = (storage[1:] == storage[:-1]) & (first[1:] > first[:-1]) & (first[1:] <= last[:-1])
    own = ~np.append(inner, False)[: len(storage)]
    total = np.zeros(n_ticks, dtype=np.int64)
    np.add.at(total, first[own], moved[own])
    return total


def _flops(recording: Recording, count_flops: Callable[[str, str], int]) -> list[int]:
    """By tick. An operator whose inner ones are counted has none of its own: convolution calls mkldnn_convolution."""
    names, counted = recording.names, dict[tuple[int, int], int]()
    pairs = zip(recording.tick_name.tolist(), recording.tick_arguments.tolist(), strict=True)
    flops, outer = [], list[tuple[int, int]]()  # (depth, tick) of the operators around a tick
    for tick, ((operator, arguments), depth) in enumerate(zip(pairs, recording.tick_depth.tolist(), strict=True)):
        if (operator, arguments) not in counted:
            counted[operator, arguments] = count_flops(names[operator], names[arguments])
        flops.append(counted[operator, arguments])
        while outer and outer[-1][0] >= depth:
            outer.pop()
        if flops[tick]:
            for _, around in outer:
                flops[around] = 0
        outer.append((depth, tick))
    return flops


def _phases(marks: Ints) -> list[Phase]:
    """A tick outside of backward passes and optimizers belongs to the forward pass if a backward pass comes next."""
    marked = np.flatnonzero(marks)
    after = np.searchsorted(marked, np.arange(len(marks)))
    coming = np.append(marks[marked], 0)[after]
    names = {native.Phase.BACKWARD: Phase.BACKWARD, native.Phase.OPTIMIZER: Phase.OPTIMIZER}
    return [
        names[mark] if mark else Phase.FORWARD if next_mark == native.Phase.BACKWARD else Phase.OTHER
        for mark, next_mark in zip(marks.tolist(), coming.tolist(), strict=True)
    ]
