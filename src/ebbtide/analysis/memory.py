"""Bytes at each tick by kind, bytes that lie idle by reason, and the contents of the peak.

Bytes are those of the storages, without an allocator's rounding. A tick's operation *uses* the storages that it
accesses, those born in it, and scratch. All other live storages are *idle*. All sums are the accountant's
(``ir.occupancy``).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ebbtide.analysis.columns import first_and_last_use, modules_of
from ebbtide.ir.base import Ints
from ebbtide.ir.occupancy import levels, live_bytes, needed_bytes
from ebbtide.ir.trace import StorageKind, Storages, Trace, idle_intervals


class Idleness(StrEnum):
    """The reason why a live storage is idle at a tick: it waits for its next or first use, or has no further use."""

    BETWEEN_USES = "between_uses"
    BEFORE_FIRST_USE = "before_first_use"
    AFTER_LAST_USE = "after_last_use"
    NEVER_USED = "never_used"


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Bytes at each of the T ticks. ``start_ns`` has T + 1 values: the start of each tick, and the step's time.

    ``live`` is the sum of ``by_kind``. It is also the sum of ``used`` and all of ``idle``.
    """

    start_ns: Ints
    live: Ints
    used: Ints
    by_kind: dict[StorageKind, Ints]
    idle: dict[Idleness, Ints]

    @property
    def idle_bytes(self) -> Ints:
        total: Ints = self.live - self.used
        return total

    def mean(self, level: Ints) -> int:
        """Return the mean over the step's time, or over its ticks if the trace has no times."""
        times = np.diff(self.start_ns).astype(np.float64)
        return round(float(np.average(level, weights=times if times.any() else None)))


def memory_of(trace: Trace) -> Memory:
    """Return the bytes at each tick, in O((storages + accesses) log + kinds x ticks)."""
    rows, n_ticks = trace.storages, len(trace.ticks)
    room = np.where(rows.room_of == -1, rows.nbytes, 0)  # others lie in another storage's memory

    def level(chosen: Ints, low: Ints, high: Ints) -> Ints:
        return levels(low, high, room[chosen], n_ticks)

    by_kind = {}
    for kind in StorageKind:
        chosen = np.flatnonzero(rows.kind == kind)
        by_kind[kind] = level(chosen, rows.birth[chosen], rows.death[chosen])
    return Memory(
        trace.start_ns(np.arange(n_ticks + 1)),
        live_bytes(trace),
        needed_bytes(trace),
        by_kind,
        {idleness: level(*where) for idleness, where in _idle(trace).items()},
    )


def _idle(trace: Trace) -> dict[Idleness, tuple[Ints, Ints, Ints]]:
    """Return for each reason the storages, and the ticks [low, high) in which they are idle for it."""
    rows, between = trace.storages, idle_intervals(trace)
    first, last = first_and_last_use(trace)
    passing = ~rows.persistent & ~rows.scratch
    used = first >= 0
    birth_is_use = rows.birth + 1  # the tick of the birth counts as use
    waiting = np.flatnonzero(passing & used & (first > rows.birth))
    spent = np.flatnonzero(passing & used & (rows.death > last + 1))
    unused = np.flatnonzero(~rows.scratch & ~used)
    from_tick = np.where(rows.persistent, rows.birth, birth_is_use)
    unused = unused[rows.death[unused] > from_tick[unused]]
    return {
        Idleness.BETWEEN_USES: (between.storage, between.after + 1, between.until),
        Idleness.BEFORE_FIRST_USE: (waiting, birth_is_use[waiting], first[waiting]),
        Idleness.AFTER_LAST_USE: (spent, last[spent] + 1, rows.death[spent]),
        Idleness.NEVER_USED: (unused, from_tick[unused], rows.death[unused]),
    }


@dataclass(frozen=True, slots=True)
class Resident:
    """A storage that is there at the peak, ``count`` times if it outlives a step. ``nbytes`` covers all of these.

    ``operator`` allocated it ``age_ns`` ago; for what outlives the step these are "" and None. ``idle_ns`` is the
    length of its idle interval around the peak, 0 if it is in use, or None if no further use is known. ``line`` of the
    program made it, or is "" if that is unknown.
    """

    storage: int
    nbytes: int
    count: int
    kind: StorageKind
    module: str
    operator: str
    age_ns: int | None
    idle_ns: int | None
    line: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """The bytes and storages under one label at the peak."""

    label: str
    nbytes: int
    count: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The tick with the most live bytes (the first of equals), and all storages there then, the largest first."""

    tick: int
    time_ns: int
    nbytes: int
    operator: str
    module: str
    residents: tuple[Resident, ...]

    def by_kind(self) -> tuple[Share, ...]:
        return shares(self.residents, lambda row: str(row.kind))

    def by_module(self) -> tuple[Share, ...]:
        return shares(self.residents, lambda row: row.module)

    def by_line(self) -> tuple[Share, ...]:
        return shares(self.residents, lambda row: row.line)

    def by_operator(self) -> tuple[Share, ...]:
        """Return a share for each operator that allocated. Storages from before the step have operator ""."""
        return shares(self.residents, lambda row: row.operator)


def shares(residents: Iterable[Resident], label_of: Callable[[Resident], str]) -> tuple[Share, ...]:
    """Return the bytes and the number of storages for each label, the largest first."""
    nbytes: dict[str, int] = defaultdict(int)
    count: dict[str, int] = defaultdict(int)
    for row in residents:
        nbytes[label_of(row)] += row.nbytes
        count[label_of(row)] += row.count
    return tuple(
        Share(label, nbytes[label], count[label]) for label in sorted(nbytes, key=lambda at: (-nbytes[at], at))
    )


def peak_of(trace: Trace) -> Peak:
    live = live_bytes(trace)
    return contents_at(trace, int(live.argmax()))


def contents_at(trace: Trace, tick: int) -> Peak:
    """Return the storages that are there at any tick of the step."""
    rows, n_ticks = trace.storages, len(trace.ticks)
    count = _generations(rows, tick, n_ticks)
    start_ns = trace.start_ns(np.arange(n_ticks + 1))
    idle_ns, modules = _idle_around(trace, tick), modules_of(trace)
    residents = []
    for number in np.flatnonzero(count).tolist():
        storage = trace.storage(number)
        if storage.room_of is not None:
            continue
        age = None
        if not storage.persistent:
            latest = tick if tick >= storage.birth else tick + n_ticks  # in the ticks of its youngest generation
            steps, place = divmod(latest, n_ticks)
            age = int(start_ns[place]) + steps * trace.step_ns - int(start_ns[storage.birth])
        residents.append(
            Resident(
                number,
                storage.nbytes * int(count[number]),
                int(count[number]),
                storage.kind,
                modules[number],
                "" if storage.persistent else trace.tick(storage.birth).operator,
                age,
                idle_ns[number],
                storage.line,
            )
        )
    residents.sort(key=lambda row: (-row.nbytes, row.storage))
    here = trace.tick(tick)
    total = sum(row.nbytes for row in residents)
    return Peak(tick, int(start_ns[tick]), total, here.operator, here.module, tuple(residents))


def _generations(rows: Storages, tick: int, n_ticks: int) -> Ints:
    """Count how often each storage is there at a tick: the ticks of its life that equal this one modulo the step."""
    before: Ints = (rows.death - tick + n_ticks - 1) // n_ticks - (rows.birth - tick + n_ticks - 1) // n_ticks
    return before


def _idle_around(trace: Trace, tick: int) -> list[int | None]:
    """Return ``Resident.idle_ns`` for each storage, of its youngest generation."""
    rows, n_ticks = trace.storages, len(trace.ticks)
    first, _ = first_and_last_use(trace)
    at = np.where(rows.persistent | (tick >= rows.birth), tick, tick + n_ticks)
    found: list[int | None] = [None] * len(rows)
    in_use = rows.scratch | (~rows.persistent & (at == rows.birth))
    accesses = trace.accesses
    in_use[accesses.storage[accesses.tick == at[accesses.storage]]] = True
    between = idle_intervals(trace)
    for shift in (0, n_ticks):  # a persistent storage's last interval runs on into the next step
        now = at[between.storage] + shift
        inside = (between.after < now) & (now < between.until) & ((shift == 0) | rows.persistent[between.storage])
        for row in np.flatnonzero(inside).tolist():
            found[int(between.storage[row])] = int(between.idle_ns[row])
    for number in np.flatnonzero(~rows.scratch & ~rows.persistent & (first > at)).tolist():
        begins, ends = trace.start_ns(np.array([rows.birth[number] + 1, first[number]])).tolist()
        found[number] = ends - begins
    for number in np.flatnonzero(in_use).tolist():
        found[number] = 0
    return found
