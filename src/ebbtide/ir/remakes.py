"""Remakes: which storages can be made anew before a use, instead of being moved, and what that takes.

A storage is left without a copy after one use, and the operators that made it run again before the next. Those are the
one that allocated it, and those that changed it in place. All of them have to repeat (``Tick.repeats``). What they
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
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.of_trace import once_for_a_trace
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.remake_finder import Finder
from ebbtide.ir.stay_columns import StayColumns
from ebbtide.ir.table import kinds_of
from ebbtide.ir.trace import Access, Accesses, Storage, StorageKind, Storages, Trace

_READ, _WRITE = int(Access.READ), int(Access.WRITE)

Chosen = tuple[tuple[int, int], ...]
"""Remakes that are made use of: rows of ``Remakes``, and the tick at which each storage is made anew."""


@dataclass(frozen=True, slots=True, eq=False)
class Remakes:
    """Columns of possible remakes, by storage, then tick. ``storage`` may be gone during ticks [gone, until).

    At ``until``, or early, it is made anew from ``inputs`` and ``ingredients``, other storages. That takes ``time_ns``
    and ``scratch_bytes``. ``operator`` is the tick of the operator that allocated it. ``others`` are the other pieces
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
    found = sorted(Finder(trace).all()) if trace.ticks.repeats.any() else []
    storage, gone, until, operator, *costs = np.array([row for row, _ in found], dtype=np.int64).reshape(-1, 6).T
    time_ns, scratch_bytes = costs
    inputs, ingredients, others = (tuple(of[at] for _, of in found) for at in range(3))
    return Remakes(storage, gone, until, operator, time_ns, scratch_bytes, inputs, ingredients, others)


@once_for_a_trace
def without_remakes(trace: Trace) -> Trace:
    """Return the same step as if no operator repeated. Where none does, it is the step itself."""
    if not trace.ticks.repeats.any():
        return trace
    return replace(trace, ticks=replace(trace.ticks, repeats=np.zeros(len(trace.ticks), dtype=bool)))


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

    def still_stays(self, still: StayColumns) -> StayColumns:
        """Return the stays of a split step in which nothing moves, from those of the step as it was: one for each
        storage, in their order."""
        rows, of = self.trace.storages, self.of.copy()
        of[[*self.scratch]] = [storage for _, storage in self.scratch.values()]
        return StayColumns(np.arange(len(rows)), still.tier[of], rows.birth, rows.birth, rows.death)

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
    others = replace(others, birth=until, allocation=none, piece_of=none, maker=none)
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
    return Accesses.joined(storage, tick, mode)


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


def made_anew(plan: Plan, trace: Trace) -> tuple[int, int]:
    """Return the bytes that a plan makes anew in a step, and the ns of compute that this takes."""
    remakes = remakes_of(trace).chosen(remade(plan.stays, trace))
    return int(trace.storages.nbytes[remakes.storage].sum()), int(remakes.time_ns.sum())


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
