"""Trace: one steady training step as it was recorded. Time is [Note: ticks].

The recorder (``capture``) writes it, and ``tiertrace`` from published traces. Planners, checker, simulator and analysis
read it. Ticks, storages and accesses are tables of columns, and code that wants one row asks for it.

Left out: the order of accesses within a tick (a tick holds all its operands at once), and which bytes of a storage
an access touches (all of them).
"""

import hashlib
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from typing import ClassVar

import numpy as np

from ebbtide.ir.base import LARGEST, Flags, Ints, Names, Origin, check_range, frozen_ints
from ebbtide.ir.table import Table
from ebbtide.units import format_time, seconds


class StorageKind(StrEnum):
    """The role of a storage in the training step. The run report does not tell an INPUT (``capture.inputs``)."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    OTHER = "other"
    INPUT = "input"


class Phase(StrEnum):
    """The part of the step that a tick lies in. OTHER: no backward pass follows, as when gradients are clipped."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class Access(IntFlag):
    """The use that a tick's operation makes of a storage. A write may leave part of the storage as it was."""

    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class Tick:
    """One operation on the step's main thread, up to the beginning of the next.

    ``time_ns`` is its duration without stalls. ``flops`` and ``nbytes`` (read and written) are 0 where not known.
    The work of an operator's inner operators counts for them, not for it. So does its time after the last of them
    began. ``depth`` is the number of operators that this one runs in. An operator, with all that runs in it, is the
    ticks from its own up to the next of its depth or less. ``arguments`` is the call as JSON (``capture.calls``), empty
    where not known. With the operator, it makes the operation unique. ``repeats`` means that the operator makes its
    result from its inputs alone. Run again on the same inputs, it makes the same bits.
    """

    time_ns: int
    operator: str = ""
    module: str = ""
    flops: int = 0
    nbytes: int = 0
    phase: Phase = Phase.OTHER
    depth: int = 0
    arguments: str = ""
    repeats: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Ticks(Table[Tick]):
    """Columns of all ticks; ``Tick`` says what each holds."""

    ROW: ClassVar = Tick
    time_ns: Ints
    operator: Names
    module: Names
    flops: Ints
    nbytes: Ints
    phase: Names
    depth: Ints
    arguments: Names
    repeats: Flags


@dataclass(frozen=True, slots=True)
class Storage:
    """One allocation of ``nbytes``, alive during ticks [birth, death); for a persistent one that is [0, T).

    ``allocation`` is its place among the arena's allocations within tick ``birth``. With the tick, it is the runtime's
    clock. It is None if the main thread did not allocate the storage in this step. ``maker`` is the tick of the
    operator that allocated it: an outer one's result may be born after inner ones have ended. It is None if no operator
    ran, or if nobody looked. ``scratch`` means that nobody saw who uses it: every tick of its life reads and writes it,
    whatever its accesses say. ``room_of`` is for scratch of one tick. It is the number of other scratch, freed within
    that tick before this one was allocated. This one lies in that memory and needs none of its own. ``packed_bytes`` is
    the size of its contents on a tier that packs. It is from a sample, taken when the last operator of the step that
    wrote them had ended. It is None where such a tier refuses them or nobody looked. ``line`` is the place in the
    user's program that made it, as "train.py:12 Net.forward". It is empty where that was not recorded, and for storages
    that the step finds. ``piece_of`` is for a piece of a large storage: each piece is a row here. It is the number of
    the first piece of the same storage, for that one its own.
    """

    nbytes: int
    kind: StorageKind
    birth: int
    death: int
    module: str = ""
    persistent: bool = False
    scratch: bool = False
    allocation: int | None = None
    room_of: int | None = None
    packed_bytes: int | None = None
    line: str = ""
    piece_of: int | None = None
    maker: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Storages(Table[Storage]):
    """Columns of all storages; ``Storage`` says what each holds. A column has -1 where a ``Storage`` has None."""

    ROW: ClassVar = Storage
    nbytes: Ints
    kind: Names
    birth: Ints
    death: Ints
    module: Names
    persistent: Flags
    scratch: Flags
    allocation: Ints
    room_of: Ints
    packed_bytes: Ints
    line: Names
    piece_of: Ints
    maker: Ints

    def _check(self) -> None:
        if np.any(self.nbytes < 1):
            raise ValueError("nbytes must be at least 1")
        if np.any(self.death <= self.birth):
            raise ValueError("death must come after birth")
        if np.any(self.persistent & ((self.birth != 0) | (self.allocation != -1))):
            raise ValueError("a persistent storage is born at tick 0 and not allocated within the step")
        if np.any(self.maker > self.birth) or np.any((self.maker != -1) & (self.allocation == -1)):
            raise ValueError("an operator allocates what is born in it, or in an operator that runs in it")
        order = np.lexsort((self.allocation, self.birth))
        later = order[self.allocation[order] != -1]
        earlier, later = later[:-1], later[1:]
        if np.any((self.birth[earlier] == self.birth[later]) & (self.allocation[earlier] == self.allocation[later])):
            raise ValueError("two storages were allocated at the same place of the clock")
        lodgers = np.flatnonzero(self.room_of != -1)
        host = self.room_of[lodgers]
        fits = host < lodgers
        host = np.where(fits, host, 0)
        fits &= self.scratch[lodgers] & (self.death[lodgers] == self.birth[lodgers] + 1)
        fits &= self.scratch[host] & (self.death[host] == self.death[lodgers]) & (self.room_of[host] == -1)
        fits &= self.nbytes[lodgers] <= self.nbytes[host]
        if not fits.all():
            raise ValueError(f"storage {lodgers[~fits][0]} lies in room that is not there for it")


@dataclass(frozen=True, slots=True)
class Use:
    """Storage ``storage`` is accessed at ``tick`` as ``mode`` (Access) says."""

    storage: int
    tick: int
    mode: int


@dataclass(frozen=True, slots=True, eq=False)
class Accesses(Table[Use]):
    """Columns of all uses, sorted by storage, then tick; at most one row for each pair of them."""

    ROW: ClassVar = Use
    storage: Ints
    tick: Ints
    mode: Ints
    _rows: dict[int, slice] = field(init=False, repr=False)  # by storage that has any

    @staticmethod
    def joined(storage: Ints, tick: Ints, mode: Ints) -> "Accesses":
        """Sort uses. Those of a storage at one tick become one that does what all of them do."""
        order = np.lexsort((tick, storage))
        storage, tick, mode = storage[order], tick[order], mode[order]
        begins = np.flatnonzero((np.diff(storage, prepend=-1) != 0) | (np.diff(tick, prepend=-1) != 0))
        together = np.bitwise_or.reduceat(mode, begins) if len(begins) else mode
        return Accesses(storage[begins], tick[begins], together)

    def _check(self) -> None:
        before, after = self.storage[:-1], self.storage[1:]
        if not np.all((after > before) | ((after == before) & (self.tick[1:] > self.tick[:-1]))):
            raise ValueError("accesses must be sorted by storage, then tick, without duplicates")
        if len(self.mode) and not 1 <= int(self.mode.min()) <= int(self.mode.max()) <= 3:
            raise ValueError("an access reads (1), writes (2) or does both (3)")
        storages, firsts = np.unique(self.storage, return_index=True)
        ends = [*firsts[1:].tolist(), len(self.storage)]
        rows = dict(zip(storages.tolist(), map(slice, firsts.tolist(), ends), strict=True))
        object.__setattr__(self, "_rows", rows)

    def of(self, storage: int) -> slice:
        """The rows of one storage: ``accesses.tick[accesses.of(7)]``."""
        return self._rows.get(storage, slice(0, 0))


@dataclass(frozen=True, slots=True)
class Trace:
    """One steady step. A storage's number is its row in ``storages``, a tick its row in ``ticks``; T is ``len(ticks)``.

    ``origin`` says how the times were obtained. ``unrecorded_ns`` is how long the step before took without a recorder;
    the difference is the cost of recording. ``device`` is the accelerator whose storages these are, None for the CPU's.
    Raises ValueError for accesses outside of lives, for times that do not fit 62 bits in sum, and for lives that do not
    fit the step.
    """

    name: str
    origin: Origin
    ticks: Ticks
    storages: Storages
    accesses: Accesses
    unrecorded_ns: int | None = None
    device: str | None = None
    answers: dict[object, object] = field(init=False, repr=False, compare=False, default_factory=dict)
    """The answers that ``of_trace`` found about this trace and keeps here."""
    _starts_ns: Ints = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not len(self.ticks):
            raise ValueError("a trace has at least one tick")
        if not (self.device or "").isprintable():
            raise ValueError("the device's name must be printable")
        check_range(self, "unrecorded_ns")
        for what, column in (("times", self.ticks.time_ns), ("storages", self.storages.nbytes)):
            if (total := sum(column.tolist())) > LARGEST:
                raise ValueError(f"the {what} add up to {total}, more than 2**62")
        self._check_lives()
        self._check_accesses()
        starts = np.append(0, np.cumsum(self.ticks.time_ns))
        object.__setattr__(self, "_starts_ns", frozen_ints(starts, "times"))

    def _check_lives(self) -> None:
        rows, n_ticks = self.storages, len(self.ticks)
        if len(late := np.flatnonzero(rows.birth >= n_ticks)):
            raise ValueError(f"storage {late[0]} is born at tick {rows.birth[late[0]]} of {n_ticks}")
        if len(cut := np.flatnonzero(rows.persistent & (rows.death != n_ticks))):
            raise ValueError(f"storage {cut[0]} is persistent, but its life is not the whole step")
        pieces = np.flatnonzero(rows.piece_of != -1)
        first = rows.piece_of[pieces]
        wrong = first > pieces
        wrong |= rows.piece_of[np.where(wrong, pieces, first)] != first
        if wrong.any():
            raise ValueError(f"storage {pieces[wrong][0]} is a piece of a storage whose first piece is another")

    def _check_accesses(self) -> None:
        rows = self.accesses
        if not len(rows):
            return
        if rows.storage[-1] >= len(self.storages):
            raise ValueError("an access to a storage that is not in the trace")
        birth, death = self.storages.birth[rows.storage], self.storages.death[rows.storage]
        outside = np.flatnonzero((rows.tick < birth) | (rows.tick >= death))
        if len(outside):
            row = outside[0]
            raise ValueError(f"storage {rows.storage[row]} is accessed at tick {rows.tick[row]}, outside its life")

    def tick(self, tick: int) -> Tick:
        """Return one tick as a record, for people. Code that asks for many takes the columns."""
        return self.ticks[tick]

    def storage(self, number: int) -> Storage:
        """Return one storage as a record, for people. Code that asks for many takes the columns."""
        return self.storages[number]

    @property
    def step_ns(self) -> int:
        """The step's time when nothing waits."""
        return int(self._starts_ns[-1])

    def start_ns(self, ticks: Ints) -> Ints:
        """Return when ticks begin, counted from the beginning of the step. A tick may lie in another step."""
        steps, tick = np.divmod(ticks, len(self.ticks))
        return steps * self.step_ns + self._starts_ns[tick]

    def operation(self, tick: int) -> str:
        """Say in words what a tick does: ``aten::mm in h.3.mlp (1.20 ms into the step)``."""
        row, when = self.tick(tick), format_time(seconds(int(self._starts_ns[tick])))
        where = f" in {row.module}" if row.module else ""
        return f"{row.operator or 'an operation'}{where} ({when} into the step)"

    def allocations(self) -> Ints:
        """List the storages that the main thread allocates in the step, in the order of the runtime's clock."""
        rows = self.storages
        order = np.lexsort((rows.allocation, rows.birth))
        found: Ints = order[rows.allocation[order] != -1]
        return found

    def signature(self) -> str:
        """Hash what a replay can verify: ticks, and the size and clock of each storage. Alike steps agree."""
        if isinstance(known := self.answers.get(Trace.signature), str):
            return known
        columns = (self.storages.nbytes, self.storages.birth, self.storages.allocation)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        found = self.answers[Trace.signature] = hashlib.sha256(f"{len(self.ticks)} {rows}".encode()).hexdigest()
        return found


@dataclass(frozen=True, slots=True, eq=False)
class IdleIntervals:
    """Columns: storage ``storage[i]`` is not accessed in ticks (after[i], until[i]), which last ``idle_ns[i]``."""

    storage: Ints
    after: Ints
    until: Ints
    idle_ns: Ints


def idle_intervals(trace: Trace) -> IdleIntervals:
    """Return the access-time interval (ATI) of each two adjacent accesses: from one tick's end to the other's start.

    A persistent storage's last access is followed by its first of the next step. Scratch has none. Left out: the
    time before the first access and after the last, and storages that are never accessed. After Pinpointing
    (ISPASS'21), which counts per block address; here an allocation is a storage of its own.
    """
    rows = trace.accesses
    keep = ~trace.storages.scratch[rows.storage]
    storage, tick = rows.storage[keep], rows.tick[keep]
    begins = np.flatnonzero(np.diff(storage, prepend=-1))  # the first row of each storage
    ends = np.append(begins[1:], len(storage)) - 1 if len(begins) else begins
    until = np.append(tick[1:], 0)
    until[ends] = tick[begins] + len(trace.ticks)
    has_next = np.ones(len(storage), dtype=bool)
    has_next[ends] = trace.storages.persistent[storage[ends]]
    storage, after, until = storage[has_next], tick[has_next], until[: len(tick)][has_next]
    return IdleIntervals(storage, after, until, trace.start_ns(until) - trace.start_ns(after + 1))
