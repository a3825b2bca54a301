"""Remakes: which storages can be made anew before a use, instead of being moved, and what that takes.

A storage is left without a copy after one use, and the operators that made it run again right before the next. Those
are the one that it was born in, and those that changed it in place. All of them have to repeat (``Tick.repeats``). What
they read has to be there at that tick, and nobody may have written to it since. An input that dies or is itself gone
then rules the remake out, so there are no chains. What an operator both reads and writes, as batch norm its running
statistics, is not an input: the operator runs again without it. A storage is remade at most once in a step.

[Note: split]
A *split* step has the same ticks, and no remakes. A storage that is remade dies when it is left, and another one, a
*second* one, is born where it is made anew. It has the rest of its life and uses. That tick takes longer, reads the
inputs, and has scratch. Whatever knows steps without remakes can plan, check and simulate a split step.

Left out: storages that live across the step's end, inputs of the step before, and operators with several large results,
since a storage in pieces looks like these.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.ir.base import Flags, Ints
from ebbtide.ir.of_trace import once_for_a_trace
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.table import kinds_of
from ebbtide.ir.trace import Access, Accesses, Storage, StorageKind, Storages, Trace
from ebbtide.units import MIB

_READ, _WRITE = int(Access.READ), int(Access.WRITE)
_LEAST_PIECE = 2 * MIB


@dataclass(frozen=True, slots=True, eq=False)
class Remakes:
    """Columns of possible remakes, by storage, then tick. ``storage`` may be gone during ticks [gone, until).

    At ``until`` it is made anew from ``inputs``, other storages. That takes ``time_ns`` and ``scratch_bytes``.
    ``operator`` is the tick of the operator that it was born in.
    """

    storage: Ints
    gone: Ints
    until: Ints
    operator: Ints
    time_ns: Ints
    scratch_bytes: Ints
    inputs: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.storage)


@once_for_a_trace
def remakes_of(trace: Trace) -> Remakes:
    """Find all remakes that are possible by themselves. ``together`` says which of them are possible in one step."""
    found = list(_Finder(trace).all()) if trace.ticks.repeats.any() else []
    storage, gone, until, operator, *costs = np.array([row for row, _ in found], dtype=np.int64).reshape(-1, 6).T
    time_ns, scratch_bytes = costs
    return Remakes(storage, gone, until, operator, time_ns, scratch_bytes, tuple(inputs for _, inputs in found))


@dataclass(slots=True)
class _Recipe:
    """The operators that make a storage, as ranges of ticks, the last of which ends at ``end``."""

    ranges: list[tuple[int, int]]

    @property
    def end(self) -> int:
        return self.ranges[-1][1]


class _Finder:
    """Goes through the storages of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace, rows = trace, trace.storages
        n_ticks = len(trace.ticks)
        self.repeats = trace.ticks.repeats.tolist()
        self.birth, self.death = rows.birth.tolist(), rows.death.tolist()
        self.nbytes = np.where(rows.room_of == -1, rows.nbytes, 0).tolist()
        self.persistent, self.scratch = rows.persistent.tolist(), rows.scratch.tolist()
        self.stops = _stops(trace)
        self.born: list[list[int]] = [[] for _ in range(n_ticks)]
        for number in np.flatnonzero(~rows.persistent).tolist():
            self.born[self.birth[number]].append(number)
        self.uses: list[list[tuple[int, int, bool]]] = [[] for _ in range(n_ticks)]  # storage, mode, of an old step
        self.writes: dict[int, list[int]] = defaultdict(list)  # by storage, ticks
        columns = (trace.accesses.storage, trace.accesses.tick, trace.accesses.mode)
        for storage, tick, mode in zip(*(column.tolist() for column in columns), strict=True):
            self.uses[tick % n_ticks].append((storage, mode, tick >= n_ticks))
            if mode & _WRITE:
                self.writes[storage].append(tick)

    def all(self) -> Iterable[tuple[tuple[int, int, int, int, int, int], tuple[int, ...]]]:
        trace, rows = self.trace, self.trace.storages
        in_place = np.array([name.endswith("_") for name in trace.ticks.operator.tolist()], dtype=bool)
        made = ~rows.persistent & ~rows.scratch & (rows.allocation >= 0) & (rows.death <= len(trace.ticks))
        made &= _ever_idle(trace)
        # An operator in place makes no storage: what is born there was allocated after it, and has no contents yet.
        made &= (trace.ticks.repeats & ~in_place)[rows.birth]
        results = np.zeros(len(trace.ticks), dtype=np.int64)
        np.add.at(results, rows.birth[~rows.persistent & ~rows.scratch & (rows.nbytes >= _LEAST_PIECE)], 1)
        made &= results[rows.birth] <= 1
        starts = trace.start_ns(np.arange(len(trace.ticks) + 1)).tolist()
        for number in np.flatnonzero(made).tolist():
            birth = self.birth[number]
            for gone, until, recipe in self._gaps(number):
                inputs = self._inputs(number, recipe, until)
                if inputs is None:
                    continue
                time_ns = sum(starts[stop] - starts[start] for start, stop in recipe.ranges)
                scratch = max(self._scratch(number, start, stop) for start, stop in recipe.ranges)
                yield (number, gone, until, birth, time_ns, scratch), inputs

    def _gaps(self, number: int) -> Iterable[tuple[int, int, _Recipe]]:
        """Return the idle times of a storage, each with the operators that made its contents by then."""
        rows, birth = self.trace.accesses.of(number), self.birth[number]
        recipe, last = _Recipe([(birth, self.stops[birth])]), birth
        columns = (self.trace.accesses.tick[rows].tolist(), self.trace.accesses.mode[rows].tolist())
        for tick, mode in zip(*columns, strict=True):
            gone = max(last + 1, recipe.end)
            if gone < tick:
                yield gone, tick, recipe
            if mode & _WRITE and tick >= recipe.end:
                if not mode & _READ or not self.repeats[tick]:  # what only writes may leave out a part
                    return
                recipe = _Recipe([*recipe.ranges, (tick, self.stops[tick])])
            last = tick

    def _inputs(self, number: int, recipe: _Recipe, until: int) -> tuple[int, ...] | None:
        """Return what the operators read. None if some of it will not be there as it was."""
        found = dict[int, None]()
        for start, stop in recipe.ranges:
            uses = [use for tick in range(start, stop) for use in self.uses[tick]]
            written = {storage for storage, mode, _ in uses if mode & _WRITE}
            for storage, mode, is_old in uses:
                inside = not self.persistent[storage] and not is_old and start <= self.birth[storage] < stop
                if not mode & _READ or storage in written or inside:
                    continue
                if is_old or self.scratch[storage] or not self._lasts(storage, start, until):
                    return None
                found[storage] = None
        found.pop(number, None)
        return tuple(found)

    def _lasts(self, storage: int, since: int, until: int) -> bool:
        """Say whether contents that are there at ``since`` are there at ``until``."""
        if not self.persistent[storage] and self.death[storage] <= until:
            return False
        return not any(since <= tick <= until for tick in self.writes[storage])

    def _scratch(self, number: int, start: int, stop: int) -> int:
        """Return the most bytes of others that the operator gave birth to and that were there at once."""
        others = [other for tick in range(start, stop) for other in self.born[tick] if other != number]
        levels: Iterable[int] = (
            sum(self.nbytes[other] for other in others if self.birth[other] <= tick < self.death[other])
            for tick in range(start, stop)
        )
        return max(levels)


def _ever_idle(trace: Trace) -> Flags:
    """Say of each storage whether a tick lies between two of its uses."""
    rows = trace.accesses
    before = np.append(0, rows.tick[:-1])[: len(rows)]
    first = np.diff(rows.storage, prepend=-1) != 0
    before[first] = trace.storages.birth[rows.storage[first]]
    found = np.zeros(len(trace.storages), dtype=bool)
    found[rows.storage[rows.tick > before + 1]] = True
    return found


def _stops(trace: Trace) -> list[int]:
    """Return for each tick the first one after its operator and all that runs in it."""
    depth = trace.ticks.depth.tolist()
    stops, still = [len(depth)] * len(depth), list[int]()
    for tick, level in enumerate(depth):
        while still and depth[still[-1]] >= level:
            stops[still.pop()] = tick
        still.append(tick)
    return stops


def together(remakes: Remakes, rows: Sequence[int]) -> bool:
    """Say whether these remakes are possible in one step: each storage once, and all inputs are there."""
    gaps = {int(remakes.storage[row]): (int(remakes.gone[row]), int(remakes.until[row])) for row in rows}
    return len(gaps) == len(rows) and not any(
        is_gone(gaps.get(storage), int(remakes.until[row])) for row in rows for storage in remakes.inputs[row]
    )


def is_gone(gap: tuple[int, int] | None, tick: int) -> bool:
    """Say whether a storage with this gap is not there at a tick. What is made anew at the tick is there."""
    return gap is not None and gap[0] <= tick < gap[1]


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A split step ([Note: split]). ``of`` has by storage of it the storage of the step as it was; -1 for scratch.

    ``second`` has by remade storage the number of the second one and the tick of its birth. ``scratch`` has by number
    the tick of added scratch, and the storage that it is for.
    """

    trace: Trace
    of: Ints
    second: dict[int, tuple[int, int]]
    scratch: dict[int, tuple[int, int]]

    def still_stays(self, stays: Sequence[Stay]) -> tuple[Stay, ...]:
        """Return the stays of a split step in which nothing moves, from those of the step as it was: one for each
        storage, in their order."""
        found = list(stays)
        for storage, (_, until) in self.second.items():
            stay, gone = stays[storage], int(self.trace.storages.death[storage])
            found[storage] = replace(stay, stop=gone)
            found.append(replace(stay, storage=len(found), start=until, valid_from=until))
        for number, (tick, storage) in self.scratch.items():
            found.append(Stay(number, stays[storage].tier, tick, tick, tick + 1))
        return tuple(found)

    def split_stays(self, stays: Iterable[Stay]) -> tuple[Stay, ...]:
        """Return the stays of a plan with these remakes as those of a plan for the split step."""
        found, tier_of = list[Stay](), dict[int, str]()
        for stay in stays:
            second, until = self.second.get(stay.storage, (-1, 0))
            if second < 0 or stay.start < until:
                found.append(stay)
                continue
            found.append(replace(stay, storage=second))
            if stay.start == stay.valid_from == until:
                tier_of[stay.storage] = stay.tier
        for number, (tick, storage) in self.scratch.items():
            found.append(Stay(number, tier_of[storage], tick, tick, tick + 1))
        return tuple(found)

    def joined_stays(self, stays: Iterable[Stay]) -> tuple[Stay, ...]:
        """Return the stays of a plan for the split step as those of the step as it was. The opposite."""
        of = self.of.tolist()
        return tuple(
            stay if of[stay.storage] == stay.storage else replace(stay, storage=of[stay.storage])
            for stay in stays
            if of[stay.storage] >= 0
        )


def split(trace: Trace, rows: Sequence[int]) -> Split:
    """Split a step at these of its remakes. Callers MUST have seen that they are possible ``together``."""
    remakes, chosen = remakes_of(trace), np.array(rows, dtype=np.int64)
    storages, count = trace.storages, len(trace.storages)
    remade, gone, until = remakes.storage[chosen], remakes.gone[chosen], remakes.until[chosen]
    times = trace.ticks.time_ns.copy()
    np.add.at(times, until, remakes.time_ns[chosen])
    death = storages.death.copy()
    death[remade] = gone
    others = storages.take(remade)
    others = replace(others, birth=until, allocation=np.full(len(remade), -1))
    added = _added_scratch(remakes, rows)
    scratch = Storages.from_rows(
        Storage(nbytes, StorageKind.OTHER, tick, tick + 1, scratch=True) for nbytes, tick, _ in added
    )
    second = np.full(count, -1)
    second[remade] = count + np.arange(len(remade))
    born = np.zeros(count, dtype=np.int64)
    born[remade] = until
    made = Trace(
        trace.name,
        trace.origin,
        replace(trace.ticks, time_ns=times, repeats=np.zeros(len(times), dtype=bool)),
        _stacked(replace(storages, death=death), others, scratch),
        _accesses(trace, remakes, rows, second, born),
        unrecorded_ns=trace.unrecorded_ns,
    )
    numbers = range(count + len(remade), len(made.storages))
    return Split(
        made,
        np.concatenate((np.arange(count), remade, np.full(len(added), -1))),
        {
            number: (count + at, tick)
            for at, (number, tick) in enumerate(zip(remade.tolist(), until.tolist(), strict=True))
        },
        {number: (tick, storage) for number, (_, tick, storage) in zip(numbers, added, strict=True)},
    )


def _added_scratch(remakes: Remakes, rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """List the bytes of scratch at each tick, and for which storage: remakes of one tick follow each other."""
    found = dict[int, tuple[int, int, int]]()
    for row in rows:
        tick = int(remakes.until[row])
        one = (int(remakes.scratch_bytes[row]), tick, int(remakes.storage[row]))
        found[tick] = max(one, found.get(tick, one))
    return [one for one in found.values() if one[0]]


def _stacked(*tables: Storages) -> Storages:
    return Storages(
        **{name: np.concatenate([getattr(table, name) for table in tables]) for name in kinds_of(Storages.ROW)}
    )


def _accesses(trace: Trace, remakes: Remakes, rows: Sequence[int], second: Ints, born: Ints) -> Accesses:
    """Return all uses of the split step. Those of a remade storage from its second birth on are the second one's."""
    reads = [(storage, int(remakes.until[row])) for row in rows for storage in remakes.inputs[row]]
    read, at = np.array(reads, dtype=np.int64).reshape(-1, 2).T
    chosen = np.array(rows, dtype=np.int64)
    known = trace.accesses
    storage = np.concatenate((known.storage, read, remakes.storage[chosen]))
    tick = np.concatenate((known.tick, at, remakes.until[chosen]))
    mode = np.concatenate((known.mode, np.full(len(read), _READ), np.full(len(chosen), _WRITE)))
    storage = np.where((second[storage] >= 0) & (tick >= born[storage]), second[storage], storage)
    order = np.lexsort((tick, storage))
    storage, tick, mode = storage[order], tick[order], mode[order]
    begins = np.flatnonzero((np.diff(storage, prepend=-1) != 0) | (np.diff(tick, prepend=-1) != 0))
    return Accesses(storage[begins], tick[begins], np.bitwise_or.reduceat(mode, begins))


def remade(stays: Iterable[Stay], trace: Trace) -> tuple[int, ...]:
    """Return the rows of ``remakes_of`` that a plan with these stays makes use of: where nothing is valid in between.

    A gap that no remake fills is left out.
    """
    remakes = remakes_of(trace)
    if not len(remakes):
        return ()
    rows = {
        key: row
        for row, key in enumerate(
            zip(remakes.storage.tolist(), remakes.gone.tolist(), remakes.until.tolist(), strict=True)
        )
    }
    may = set(remakes.storage.tolist())
    valid: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for stay in stays:
        if stay.storage in may:
            valid[stay.storage].append((stay.valid_from, stay.stop, stay.start))
    found = []
    for storage, intervals in valid.items():
        if len(intervals) < 2:
            continue
        intervals.sort()
        reached = intervals[0][1]
        for valid_from, stop, start in intervals[1:]:
            if valid_from > reached and start == valid_from and (storage, reached, start) in rows:
                found.append(rows[storage, reached, start])
            reached = max(reached, stop)
    return tuple(found)


def split_plan(plan: Plan, trace: Trace) -> tuple[Plan, Trace, Ints]:
    """Return a plan and its step without remakes ([Note: split]), and which storage each was. Mostly they are the same.

    Remakes that are not possible together are left as they are: gaps, as ``check`` then sees.
    """
    rows = remade(plan.stays, trace)
    if not rows or not together(remakes_of(trace), rows):
        return plan, trace, np.arange(len(trace.storages))
    made = split(trace, rows)
    stays = made.split_stays(plan.stays)
    return replace(plan, signature=made.trace.signature(), stays=stays), made.trace, made.of
