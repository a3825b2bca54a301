"""One recorded step as a Trace.

Storages that outlive the step have the first numbers, in the order of their allocation. Those of the clock follow. A
storage that is born in this step and outlives it is either kept for good, or gone in the next step. It goes when its
counterpart of the step before went in this one (gradients until ``zero_grad``). Sizes and order of birth pair them. A
storage that is born between steps and dies within one is in use as long as it lives, since nobody schedules its birth.

Left out: when exactly other threads' operators run. Those between two ticks of the step's thread count for the first.
"""

import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ebbtide.capture.inputs import with_inputs
from ebbtide.capture.tick_times import own_ns
from ebbtide.ir import native
from ebbtide.ir.base import Flags, Ints, Names, Origin
from ebbtide.ir.native import NEVER
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.recording import Recording
from ebbtide.ir.trace import Access, Accesses, Phase, StorageKind, Storages, Ticks, Trace
from ebbtide.units import round_up

KINDS = tuple(StorageKind)

_NOTABLE = 16  # this part of a step's bytes
_OVERLOAD = re.compile(r'\{"overload":"([^"]*)"')  # how a call's arguments begin


@dataclass(frozen=True, slots=True)
class Captured:
    """A trace, and the part that each storage had in the step.

    ``serials`` has by storage the serial of the allocation that had its part when the step ended, 0 for one that was
    not alive then. ``numbers`` has by row of the recording the storage's number, -1 for none.
    """

    trace: Trace
    serials: Ints
    numbers: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Lives:
    """The row of each storage's birth, and its life, by storage of the trace.

    ``later`` is the row of the counterpart that shows its end, whose ticks count from T on; -1 for none.
    """

    row: Ints
    birth: Ints
    death: Ints
    persistent: Flags
    allocation: Ints
    later: Ints
    in_use: Flags

    def __len__(self) -> int:
        return len(self.row)


def capture(
    recording: Recording,
    name: str,
    count_flops: Callable[[str, str], int],
    origin: Origin = Origin.MEASURED,
    unrecorded_ns: int | None = None,
    repeats: Callable[[str, str], bool] = lambda operator, overload: False,
    device: str | None = None,
) -> Captured:
    """Make a trace. Raises ValueError for a recording that is empty.

    ``count_flops`` gets an operator and its arguments (JSON, shapes for tensors). ``repeats`` gets an operator and its
    overload (``_torch.repeats``).
    """
    times = own_ns(recording)
    n_ticks = len(times)
    if not n_ticks:
        raise ValueError("no step was recorded")
    lives = _lives(recording, n_ticks)
    row, later = lives.row, lives.later
    numbers = np.full(recording.n_storages, NEVER, dtype=np.int64)
    numbers[row] = np.arange(len(lives))
    numbers[later[later >= 0]] = np.flatnonzero(later >= 0)
    accesses = _accesses(recording, lives, numbers, n_ticks)
    used = lives.persistent.copy()
    used[accesses.storage[accesses.tick != lives.birth[accesses.storage]]] = True
    scratch = lives.in_use | ~used
    names, packed = np.array(recording.names, dtype=object), recording.packed_bytes
    storages = Storages(
        nbytes=recording.nbytes[row],
        kind=np.array(KINDS, dtype=object)[recording.kind[row]],
        birth=lives.birth,
        death=lives.death,
        module=names[recording.module[row]],
        persistent=lives.persistent,
        scratch=scratch,
        allocation=lives.allocation,
        room_of=_rooms(recording, lives, scratch),
        # As this step showed it; else as it showed it of the counterpart of the step before.
        packed_bytes=np.where((packed[row] < 0) & (later >= 0), packed[later], packed[row]),
        line=names[recording.line[row]],
        piece_of=_first_pieces(recording.whole[row]),
        maker=np.where(lives.allocation >= 0, _makers(recording)[row], NEVER),
    )
    phases = _phases(recording.tick_phase)
    ticks = Ticks(
        time_ns=times,
        operator=names[recording.tick_name],
        module=names[recording.tick_module],
        flops=_flops(recording, count_flops),
        nbytes=_moved_bytes(recording, n_ticks),
        phase=phases,
        depth=recording.tick_depth,
        arguments=names[recording.tick_arguments],
        repeats=_repeats(recording, repeats) & (phases != "backward"),  # in which no recipe is kept
    )
    trace = Trace(name, origin, ticks, storages, accesses, unrecorded_ns=unrecorded_ns, device=device)
    return Captured(with_inputs(trace), np.where(recording.death[row] < 0, recording.serial[row], 0), numbers)


def step_name(step: int) -> str:
    """Name a step after its script, which may have cleared its arguments."""
    arguments = getattr(sys, "argv", None) or [""]
    return f"{Path(arguments[0]).name or 'python'}, step {step}"


def likeness(recording: Recording) -> str:
    """Return a digest that is equal for steps whose traces have one signature. It makes no trace, but digests the
    number of ticks and every storage's size and clock.
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
    """Tell whether the step ends much of the step before without a counterpart that it leaves. Such a step comes once.
    Much, in bytes, is a sixteenth of all its storages: a batch that is made between steps is less.
    """
    sizes, without = _without_counterpart(recording)
    return bool(_NOTABLE * int((sizes * without).sum()) > int(recording.nbytes.sum()))


def _without_counterpart(recording: Recording) -> tuple[Ints, Ints]:
    """Return all sizes of storages. For each, counts the storages of the step before that ended here, less those that
    this step leaves to end in the next (at least 0)."""
    before, ends = recording.birth < 0, recording.death >= 0
    sizes, change = np.unique(recording.nbytes, return_inverse=True)
    gone = np.bincount(change[before & ends], minlength=len(sizes))
    stay = np.bincount(change[~before & ~ends], minlength=len(sizes))
    return sizes, np.maximum(gone - stay, 0)


def flop_table(recording: Recording, count_flops: Callable[[str, str], int]) -> dict[tuple[str, str], int]:
    """Count FLOPs by operator and arguments, for a process that makes the trace without torch."""
    table = {(recording.names[operator], recording.names[arguments]): 0 for operator, arguments in _calls(recording)}
    return {pair: flops for pair in table if (flops := count_flops(*pair))}


def repeating(recording: Recording, repeats: Callable[[str, str], bool]) -> frozenset[tuple[str, str]]:
    """List the recorded operators that repeat, with their overloads, for such a process."""
    known = {(recording.names[operator], overload) for operator, overload in _overloads(recording).values()}
    return frozenset(pair for pair in known if repeats(*pair))


def _lives(recording: Recording, n_ticks: int) -> _Lives:
    order = np.argsort(recording.serial, kind="stable")
    before, ends = recording.birth[order] < 0, recording.death[order] >= 0
    persistent, ended, born = order[before & ~ends], order[before & ends], order[~before]
    allocation = recording.allocation[born]
    born = born[np.lexsort((allocation, allocation < 0, recording.birth[born]))]
    later = _counterparts(recording, ended)
    leftover = np.setdiff1d(ended, later)
    leftover = leftover[np.lexsort((recording.serial[leftover], recording.nbytes[leftover]))]
    row = np.concatenate((persistent, leftover, born))
    group = np.repeat(np.arange(3), (len(persistent), len(leftover), len(born)))
    last = np.where(later >= 0, recording.death[later], 0)[row] + n_ticks
    gone = np.where(recording.death[row] < 0, last, recording.death[row])
    return _Lives(
        row,
        birth=np.maximum(recording.birth[row], 0),
        death=np.choose(group, (np.full(len(row), n_ticks), np.maximum(gone, 1), gone)),
        persistent=group == 0,
        allocation=np.where(group == 2, recording.allocation[row], NEVER),
        later=later[row],
        in_use=(group == 1) | (recording.scratch[row] != 0),
    )


def _counterparts(recording: Recording, ended: Ints) -> Ints:
    """Pair each row that this step leaves to the next with the row that the step before left to this one.

    Rows of one size are paired in the order of their allocation; -1 where none is left. ``ended`` are all rows of the
    step before that ended here, in that order.
    """
    order = np.argsort(recording.serial, kind="stable")
    left = order[(recording.birth[order] >= 0) & (recording.death[order] < 0)]
    _, size = np.unique(recording.nbytes, return_inverse=True)
    mine, theirs = (size[rows] * recording.n_storages + _places(size[rows]) for rows in (left, ended))
    _, at, its = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
    found = np.full(recording.n_storages, NEVER, dtype=np.int64)
    found[left[at]] = ended[its]
    return found


def _places(values: Ints) -> Ints:
    """Count for each value how many equal ones come before it."""
    order = np.argsort(values, kind="stable")
    begins = np.diff(values[order], prepend=-1) != 0
    first = np.maximum.accumulate(np.where(begins, np.arange(len(values)), 0))
    places = np.empty(len(values), dtype=np.int64)
    places[order] = np.arange(len(values)) - first
    return places


def _first_pieces(whole: Ints) -> Ints:
    """Find for each piece the first one of its storage; -1 for what is no piece."""
    _, first, which = np.unique(whole, return_index=True, return_inverse=True)
    return np.where(whole == 0, NEVER, first[which])


def _makers(recording: Recording) -> Ints:
    """Find for each row the operator that allocated it: the last that began at its depth. -1 for none."""
    found = np.full(recording.n_storages, NEVER, dtype=np.int64)
    for depth in np.unique(recording.depth[recording.depth > 0]).tolist():
        began = np.append(NEVER, np.flatnonzero(recording.tick_depth[1:] == depth - 1) + 1)  # tick 0 is no operator
        rows = recording.depth == depth
        found[rows] = began[np.searchsorted(began, recording.birth[rows], side="right") - 1]
    return found


def _rooms(recording: Recording, lives: _Lives, scratch: Flags) -> Ints:
    """Find for each one-tick scratch the earlier scratch whose memory it reuses; -1 for none.

    The earlier one is of the same thread and tick.

    It takes the best fit among what is free then. Other threads may have another order in the next step.
    """
    found = np.full(len(lives), NEVER, dtype=np.int64)
    numbers = np.flatnonzero(scratch)
    row = lives.row[numbers]
    whole, part = lives.death[numbers] > lives.birth[numbers] + 1, lives.death[numbers] - 1
    columns = (numbers, recording.nbytes[row], recording.serial[row], recording.freed_after[row])
    places = zip(*(column.tolist() for column in (part, recording.thread[row])), strict=True)
    rows = zip(*(column.tolist() for column in (*columns, whole)), strict=True)
    slots: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)  # (bytes, storage, freed after)
    for place, (number, size, serial, freed_after, is_long) in zip(places, rows, strict=True):
        mine = slots[place]
        paged = _paged(size)
        free = [
            (nbytes, storage, at)
            for at, (nbytes, storage, after) in enumerate(mine)
            if not is_long and after < serial and nbytes >= size and _paged(nbytes) >= paged
        ]
        if free:
            nbytes, storage, at = min(free)
            found[number] = storage
            mine[at] = (nbytes, storage, freed_after)
        else:
            mine.append((size, number, freed_after))
    return found


def _paged(nbytes: int) -> int:
    return round_up(nbytes, arena_pages(nbytes))


def _accesses(recording: Recording, lives: _Lives, numbers: Ints, n_ticks: int) -> Accesses:
    """List every tick of every use, within the life that it belongs to. The tick that allocates also writes."""
    shift = np.zeros(recording.n_storages, dtype=np.int64)
    shift[lives.later[lives.later >= 0]] = n_ticks
    known = numbers[recording.use_storage] >= 0
    row, mode = recording.use_storage[known], recording.use_access[known]
    number = numbers[row]
    first = np.maximum(recording.use_first[known] + shift[row], lives.birth[number])
    last = np.minimum(recording.use_last[known] + shift[row], lives.death[number] - 1)
    lengths = np.maximum(last - first + 1, 0)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    born = np.flatnonzero(lives.allocation >= 0)
    storage = np.concatenate((np.repeat(number, lengths), born))
    tick = np.concatenate((np.repeat(first, lengths) + within, lives.birth[born]))
    mode = np.concatenate((np.repeat(mode, lengths), np.full(len(born), int(Access.WRITE))))
    return Accesses.joined(storage, tick, mode)


def _moved_bytes(recording: Recording, n_ticks: int) -> Ints:
    """Count the bytes that each tick reads and writes, each operand once.

    Bytes that an outer operator shares with one that it calls are the inner one's. ``clone`` calls ``copy_`` on the
    same two storages, so ``copy_`` moves the bytes.
    """
    order = np.lexsort((recording.use_first, recording.use_storage))
    storage, first = recording.use_storage[order], recording.use_first[order]
    last, moved = recording.use_last[order], recording.use_moved[order]
    inner = (storage[1:] == storage[:-1]) & (first[1:] > first[:-1]) & (first[1:] <= last[:-1])
    own = ~np.append(inner, False)[: len(storage)]
    total = np.zeros(n_ticks, dtype=np.int64)
    np.add.at(total, first[own], moved[own])
    return total


def _flops(recording: Recording, count_flops: Callable[[str, str], int]) -> Ints:
    """Count FLOPs by tick. An operator with counted inner ones has none itself: convolution calls
    mkldnn_convolution."""
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
    return np.array(flops, dtype=np.int64)


def _calls(recording: Recording) -> list[tuple[int, int]]:
    """List each pair of an operator and its arguments once, as places in the recording's names."""
    pairs = np.unique(np.stack([recording.tick_name, recording.tick_arguments], axis=1), axis=0)
    return [(operator, arguments) for operator, arguments in pairs.tolist()]


def _overloads(recording: Recording) -> dict[tuple[int, int], tuple[int, str]]:
    """Find each call's operator and overload. A group of a fused optimizer has no arguments, and is left out."""
    found = {call: _OVERLOAD.match(recording.names[call[1]]) for call in _calls(recording)}
    return {call: (call[0], told[1]) for call, told in found.items() if told is not None}


def _repeats(recording: Recording, repeats: Callable[[str, str], bool]) -> Flags:
    """Tell of each tick whether its operator repeats."""
    known = repeating(recording, repeats)
    calls = {
        call for call, (name, overload) in _overloads(recording).items() if (recording.names[name], overload) in known
    }
    pairs = zip(recording.tick_name.tolist(), recording.tick_arguments.tolist(), strict=True)
    return np.fromiter((pair in calls for pair in pairs), dtype=bool, count=recording.n_ticks)


def _phases(marks: Ints) -> Names:
    """Find each tick's phase. Outside of backward and optimizer, it is forward if a backward pass comes next."""
    marked = np.flatnonzero(marks)
    after = np.searchsorted(marked, np.arange(len(marks)))
    coming = np.append(marks[marked], 0)[after]
    phases = np.array((Phase.OTHER, Phase.BACKWARD, Phase.OPTIMIZER, Phase.FORWARD), dtype=object)
    found: Names = phases[np.where((marks == native.Phase.OTHER) & (coming == native.Phase.BACKWARD), 3, marks)]
    return found
