"""Remakes: which storages can be made anew before a use, instead of being moved, and what that takes.

A storage is left without a copy after one use, and the operators that made it run again before the next. Those are the
one that it was born in, and those that changed it in place. All of them have to repeat (``Tick.repeats``). What they
read has to be there then, as it was: it is an *input*. What has died or changed by then is an *ingredient*, if it can
be made anew itself. It is made first, lies in scratch, and is thrown away. So a remake is a chain of operators, of a
limited length. What an operator both reads and writes, as batch norm its running statistics, is neither: the operator
runs again without it. A storage is remade at most once in a step.

An input that is itself gone comes back *early*: it is made anew at the tick at which the other needs it, before its own
next use.

The pieces of a large storage come back together, by operators that run once: a remake of one is a remake of all, and
each has its share of the time. So they have to be left together too, between uses that all of them have.

[Note: split]
A *split* step has the same ticks, and no remakes. A storage that is remade dies when it is left, and another one, a
*second* one, is born where it is made anew. It has the rest of its life and uses. That tick takes longer, reads the
inputs, and has scratch. Whatever knows steps without remakes can plan, check and simulate a split step.

Left out: storages that live across the step's end, inputs of the step before, and operators with several large
results.
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
_MOST_CALLS = 16
"""So many operators a remake has at most, as in ``native/torch/recipes.cpp``."""


Chosen = tuple[tuple[int, int], ...]
"""Remakes that are made use of: rows of ``Remakes``, and the tick at which each storage is made anew."""


@dataclass(frozen=True, slots=True, eq=False)
class Remakes:
    """Columns of possible remakes, by storage, then tick. ``storage`` may be gone during ticks [gone, until).

    At ``until``, or early, it is made anew from ``inputs`` and ``ingredients``, other storages. That takes ``time_ns``
    and ``scratch_bytes``. ``operator`` is the tick of the operator that it was born in. ``others`` are the other pieces
    of the same storage: they are gone and made anew at the same ticks.
    """

    storage: Ints
    gone: Ints
    until: Ints
    operator: Ints
    time_ns: Ints
    scratch_bytes: Ints
    inputs: tuple[tuple[int, ...], ...]
    ingredients: tuple[tuple[int, ...], ...]
    others: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.storage)

    def latest(self, rows: Iterable[int]) -> Chosen:
        """Return these rows, each with the last tick at which its storage may be made anew."""
        return tuple((row, int(self.until[row])) for row in rows)

    def pieces(self) -> list[tuple[int, ...]]:
        """Return for each row all rows of its storage's pieces in that time, its own among them."""
        keys = list(zip(self.storage.tolist(), self.until.tolist(), strict=True))
        row_of = {key: row for row, key in enumerate(keys)}
        return [
            tuple(sorted((row, *(row_of[other, until] for other in others))))
            for row, ((_, until), others) in enumerate(zip(keys, self.others, strict=True))
        ]

    def chosen(self, chosen: Chosen) -> "Remakes":
        """Return the chosen rows alone, with their ticks."""
        rows, until = np.array(chosen, dtype=np.int64).reshape(-1, 2).T
        lists = (self.inputs, self.ingredients, self.others)
        inputs, ingredients, others = (tuple(of[row] for row in rows.tolist()) for of in lists)
        return Remakes(
            self.storage[rows],
            self.gone[rows],
            until,
            self.operator[rows],
            self.time_ns[rows],
            self.scratch_bytes[rows],
            inputs,
            ingredients,
            others,
        )


@once_for_a_trace
def remakes_of(trace: Trace) -> Remakes:
    """Find all remakes that are possible by themselves. ``together`` says which of them are possible in one step."""
    found = sorted(_Finder(trace).all()) if trace.ticks.repeats.any() else []
    storage, gone, until, operator, *costs = np.array([row for row, _ in found], dtype=np.int64).reshape(-1, 6).T
    time_ns, scratch_bytes = costs
    inputs, ingredients, others = (tuple(of[at] for _, of in found) for at in range(3))
    return Remakes(storage, gone, until, operator, time_ns, scratch_bytes, inputs, ingredients, others)


_Range = tuple[int, int]
"""The ticks of an operator and of all that runs in it: from the first up to the second."""


@dataclass(slots=True)
class _Need:
    """What a remake needs: ``calls`` are its operators, as often as they run."""

    calls: list[_Range]
    inputs: dict[int, None]
    ingredients: dict[int, None]
    scratch_bytes: int = 0


_Row = tuple[tuple[int, int, int, int, int, int], tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


class _Finder:
    """Goes through the storages of a trace. What is in pieces is known by the number of the first."""

    def __init__(self, trace: Trace) -> None:
        self.trace, rows = trace, trace.storages
        self.first = _first_pieces(rows).tolist()
        self.pieces: dict[int, list[int]] = defaultdict(list)
        for number, first in enumerate(self.first):
            self.pieces[first].append(number)
        n_ticks = len(trace.ticks)
        self.repeats = trace.ticks.repeats.tolist()
        self.birth, self.death = rows.birth.tolist(), rows.death.tolist()
        self.nbytes = np.where(rows.room_of == -1, rows.nbytes, 0).tolist()
        self.persistent, self.scratch = rows.persistent.tolist(), rows.scratch.tolist()
        self.stops = _stops(trace)
        self.made = _made_by_what_repeats(trace).tolist()
        self.born: list[list[int]] = [[] for _ in range(n_ticks)]
        for number in np.flatnonzero(~rows.persistent).tolist():
            self.born[self.birth[number]].append(number)
        self.uses: list[list[tuple[int, int, bool]]] = [[] for _ in range(n_ticks)]  # storage, mode, of an old step
        self.of: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by storage, ticks and modes of its uses
        columns = (trace.accesses.storage, trace.accesses.tick, trace.accesses.mode)
        for storage, tick, mode in zip(*(column.tolist() for column in columns), strict=True):
            self.uses[tick % n_ticks].append((storage, mode, tick >= n_ticks))
            self.of[storage].append((tick, mode))

    def all(self) -> Iterable[_Row]:
        starts = self.trace.start_ns(np.arange(len(self.trace.ticks) + 1)).tolist()
        may = _ever_idle(self.trace) & np.array(self.made, dtype=bool)
        for first, pieces in self.pieces.items():
            for gone, until, calls in self._gaps(first) if may[pieces].all() else ():
                if (need := self._need(first, calls, until)) is None:
                    continue
                time_ns = sum(starts[stop] - starts[start] for start, stop in need.calls)
                for at, number in enumerate(pieces):
                    share_ns = time_ns * (at + 1) // len(pieces) - time_ns * at // len(pieces)
                    others = tuple(other for other in pieces if other != number)
                    row = (number, gone, until, self.birth[number], share_ns, need.scratch_bytes)
                    yield row, (tuple(need.inputs), tuple(need.ingredients), others)

    def _gaps(self, first: int) -> Iterable[tuple[int, int, list[_Range]]]:
        """Return the idle times of a storage, each with the operators that made its contents by then."""
        birth, pieces = self.birth[first], len(self.pieces[first])
        calls, last = [(birth, self.stops[birth])], birth
        for tick, modes in self._uses_of(first):
            gone = max(last + 1, calls[-1][1])
            if gone < tick and len(modes) == pieces:
                yield gone, tick, calls
            if _writes(modes) and tick >= calls[-1][1]:
                if not self._goes_on(tick, modes):
                    return
                calls = [*calls, (tick, self.stops[tick])]
            last = tick

    def _made_before(self, first: int, tick: int) -> list[_Range] | None:
        """Return the operators that made the contents that a storage has at a tick. None: some do not repeat."""
        birth = self.birth[first]
        calls = [(birth, self.stops[birth])]
        for at, modes in self._uses_of(first):
            if at >= tick:
                break
            if _writes(modes) and at >= calls[-1][1]:
                if not self._goes_on(at, modes):
                    return None
                calls.append((at, self.stops[at]))
        return calls if calls[-1][1] <= tick else None

    def _goes_on(self, tick: int, modes: list[int]) -> bool:
        # What only writes may leave out a part.
        return self.repeats[tick] and all(mode & _READ for mode in modes if mode & _WRITE)

    def _uses_of(self, first: int) -> list[tuple[int, list[int]]]:
        """Return the ticks that use a storage, and the modes of the pieces that they use."""
        pieces = self.pieces[first]
        if len(pieces) == 1:
            return [(tick, [mode]) for tick, mode in self.of[first]]
        found: dict[int, list[int]] = defaultdict(list)
        for number in pieces:
            for tick, mode in self.of[number]:
                found[tick].append(mode)
        return sorted(found.items())

    def _need(self, first: int, calls: list[_Range], until: int) -> _Need | None:
        """Return what these operators need to make the storage at a tick. None if it cannot be had."""
        need = _Need([], {}, {})
        found = self._add(need, first, calls, until)
        return None if found is None or len(need.calls) > _MOST_CALLS else need

    def _add(self, need: _Need, first: int, calls: list[_Range], until: int) -> int | None:
        """Add what operators need. Return the scratch that lies there at most while they run, or None."""
        most = 0
        for start, stop in calls:
            beside = 0  # ingredients of this operator, which lie there until it has ended
            for storage, (pieces, is_old) in self._read(first, start, stop).items():
                if not is_old and self._lasts(storage, pieces, start, until):
                    need.inputs |= pieces
                    continue
                made = self._made_before(storage, start) if self.made[storage] else None
                if made is None or len(need.calls) + len(made) + len(calls) > _MOST_CALLS:
                    return None
                inner = self._add(need, storage, made, until)
                if inner is None:
                    return None
                need.ingredients |= dict.fromkeys(self.pieces[storage])
                nbytes = sum(self.nbytes[piece] for piece in self.pieces[storage])
                most = max(most, beside + nbytes + inner)
                beside += nbytes
            need.calls.append((start, stop))
            most = max(most, beside + self._scratch(first, start, stop))
        need.scratch_bytes = most
        return most

    def _read(self, made: int, start: int, stop: int) -> dict[int, tuple[dict[int, None], bool]]:
        """Return what an operator reads beside the storage ``made`` that it makes: the pieces, and if an old step made
        some."""
        uses = [use for tick in range(start, stop) for use in self.uses[tick]]
        written = {storage for storage, mode, _ in uses if mode & _WRITE}
        found = dict[int, tuple[dict[int, None], bool]]()
        for storage, mode, is_old in uses:
            inside = not self.persistent[storage] and not is_old and start <= self.birth[storage] < stop
            if mode & _READ and storage not in written and not inside:
                pieces, any_is_old = found.get(self.first[storage], ({}, False))
                found[self.first[storage]] = (pieces | {storage: None}, any_is_old or is_old)
        if made in found and not found[made][1]:
            del found[made]
        return found

    def _lasts(self, first: int, pieces: Iterable[int], since: int, until: int) -> bool:
        """Say whether contents of these pieces that are there at ``since`` are there at ``until``."""
        if any(self.scratch[one] or (not self.persistent[one] and self.death[one] <= until) for one in pieces):
            return False
        # A write to any piece has the storage made before it that reads the others.
        of = (use for piece in self.pieces[first] for use in self.of[piece])
        return not any(mode & _WRITE and since <= tick <= until for tick, mode in of)

    def _scratch(self, made: int, start: int, stop: int) -> int:
        """Return the most bytes of others that the operator gave birth to and that were there at once."""
        others = [other for tick in range(start, stop) for other in self.born[tick] if self.first[other] != made]
        levels: Iterable[int] = (
            sum(self.nbytes[other] for other in others if self.birth[other] <= tick < self.death[other])
            for tick in range(start, stop)
        )
        return max(levels)


def _writes(modes: Iterable[int]) -> bool:
    return any(mode & _WRITE for mode in modes)


def _first_pieces(rows: Storages) -> Ints:
    """Return for each storage the first piece of what it is a piece of: itself if it is none."""
    return np.where(rows.piece_of == -1, np.arange(len(rows)), rows.piece_of)


def _made_by_what_repeats(trace: Trace) -> Flags:
    """Say of each storage whether it is the one large result of an operator that repeats, or a piece of it."""
    rows, first = trace.storages, _first_pieces(trace.storages)
    in_place = np.array([name.endswith("_") for name in trace.ticks.operator.tolist()], dtype=bool)
    made = ~rows.persistent & ~rows.scratch & (rows.allocation >= 0) & (rows.death <= len(trace.ticks))
    # An operator in place makes no storage: what is born there was allocated after it, and has no contents yet.
    made &= (trace.ticks.repeats & ~in_place)[rows.birth]
    large = ~rows.persistent & ~rows.scratch & (rows.nbytes >= _LEAST_PIECE)
    born_at = np.unique(np.stack((rows.birth[large], first[large])), axis=1)[0]
    made &= np.bincount(born_at, minlength=len(trace.ticks))[rows.birth] <= 1
    other = np.zeros(len(rows), dtype=bool)
    other[first[~made | (rows.birth != rows.birth[first])]] = True
    return made & ~other[first]


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


def together(remakes: Remakes) -> bool:
    """Say whether these chosen remakes are possible in one step: each storage once, all its pieces at one tick, and all
    inputs are there."""
    columns = (remakes.storage.tolist(), remakes.gone.tolist(), remakes.until.tolist())
    gaps = {storage: (gone, until) for storage, gone, until in zip(*columns, strict=True)}
    whole = all(
        gaps.get(other) == gaps[storage]
        for storage, others in zip(columns[0], remakes.others, strict=True)
        for other in others
    )
    return (
        len(gaps) == len(remakes)
        and whole
        and not any(
            _is_gone(gaps.get(number), until)
            for until, inputs in zip(columns[2], remakes.inputs, strict=True)
            for number in inputs
        )
    )


def _is_gone(gap: tuple[int, int] | None, tick: int) -> bool:
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


def split(trace: Trace, chosen: Chosen) -> Split:
    """Split a step at these of its remakes. Callers MUST have seen that they are possible ``together``."""
    remakes, storages, count = remakes_of(trace).chosen(chosen), trace.storages, len(trace.storages)
    remade, gone, until = remakes.storage, remakes.gone, remakes.until
    times = trace.ticks.time_ns.copy()
    np.add.at(times, until, remakes.time_ns)
    death = storages.death.copy()
    death[remade] = gone
    others, none = storages.take(remade), np.full(len(remade), -1)
    others = replace(others, birth=until, allocation=none, piece_of=none)
    added = _added_scratch(remakes)
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
        _accesses(trace, remakes, second, born),
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


def _added_scratch(remakes: Remakes) -> list[tuple[int, int, int]]:
    """List the bytes of scratch at each tick, and for which storage: remakes of one tick follow each other."""
    found = dict[int, tuple[int, int, int]]()
    columns = (remakes.scratch_bytes.tolist(), remakes.until.tolist(), remakes.storage.tolist())
    for one in zip(*columns, strict=True):
        found[one[1]] = max(one, found.get(one[1], one))
    return [one for one in found.values() if one[0]]


def _stacked(*tables: Storages) -> Storages:
    return Storages(
        **{name: np.concatenate([getattr(table, name) for table in tables]) for name in kinds_of(Storages.ROW)}
    )


def _accesses(trace: Trace, remakes: Remakes, second: Ints, born: Ints) -> Accesses:
    """Return all uses of the split step. Those of a remade storage from its second birth on are the second one's."""
    pairs = zip(remakes.inputs, remakes.until.tolist(), strict=True)
    reads = [(number, tick) for inputs, tick in pairs for number in inputs]
    read, at = np.array(reads, dtype=np.int64).reshape(-1, 2).T
    known = trace.accesses
    storage = np.concatenate((known.storage, read, remakes.storage))
    tick = np.concatenate((known.tick, at, remakes.until))
    mode = np.concatenate((known.mode, np.full(len(read), _READ), np.full(len(remakes), _WRITE)))
    storage = np.where((second[storage] >= 0) & (tick >= born[storage]), second[storage], storage)
    order = np.lexsort((tick, storage))
    storage, tick, mode = storage[order], tick[order], mode[order]
    begins = np.flatnonzero((np.diff(storage, prepend=-1) != 0) | (np.diff(tick, prepend=-1) != 0))
    return Accesses(storage[begins], tick[begins], np.bitwise_or.reduceat(mode, begins))


def remade(stays: Iterable[Stay], trace: Trace) -> Chosen:
    """Return the remakes that a plan with these stays makes use of: where nothing is valid in between.

    A gap that no remake fills is left out.
    """
    remakes = remakes_of(trace)
    if not len(remakes):
        return ()
    columns = (remakes.storage.tolist(), remakes.gone.tolist(), remakes.until.tolist())
    rows = {(storage, gone): (row, until) for row, (storage, gone, until) in enumerate(zip(*columns, strict=True))}
    may = set(columns[0])
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
            row, until = rows.get((storage, reached), (-1, -1))
            if valid_from > reached and start == valid_from <= until:
                found.append((row, start))
            reached = max(reached, stop)
    return tuple(found)


def split_plan(plan: Plan, trace: Trace) -> tuple[Plan, Trace, Ints]:
    """Return a plan and its step without remakes ([Note: split]), and which storage each was. Mostly they are the same.

    Remakes that are not possible together are left as they are: gaps, as ``check`` then sees.
    """
    chosen = remade(plan.stays, trace)
    if not chosen or not together(remakes_of(trace).chosen(chosen)):
        return plan, trace, np.arange(len(trace.storages))
    made = split(trace, chosen)
    stays = made.split_stays(plan.stays)
    return replace(plan, signature=made.trace.signature(), stays=stays), made.trace, made.of
