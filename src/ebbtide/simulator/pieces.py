"""What does not change during a simulation: a step as pieces, and what happens to them tick by tick.

A *piece* is a storage, or all scratch that lives in one tick alone, since a fused optimizer may make thousands.
"""

from dataclasses import dataclass, replace

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import PageSize, levels, packed_sizes, paged_sizes
from ebbtide.ir.of_trace import lives, once_for_a_trace
from ebbtide.ir.schedule import Schedule
from ebbtide.ir.trace import Access, Trace

NEVER = 2
"""Steps until the next use of what is not used again in its life."""

NOT_AT_ALL = 2**62
"""The tick of the first use of what is never used."""


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the schedule: tiers are ranks, and it is due so many ticks later. A drop has no target."""

    verb: Verb
    source: int
    target: int | None
    later: int


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Lists by piece, and by tick.

    ``moves``: whether it may move at all; scratch may not. ``uses`` of a tick, without those of elders ([Note: elders]
    in ``planners.search.idle_table``), are (piece, mode, ticks until its next use), ``n_used`` how many of them are
    there before the tick; its operation touches ``reads`` and ``writes`` bytes. ``packed_bytes`` is what a piece takes
    on a tier that packs, None where it may not lie there. ``of`` is the piece of each storage.
    ``commands`` of a tick are (command, piece) in their order.
    ``begins``: the ranks of the tiers with valid contents at the beginning, where the schedule says so.
    """

    storage: list[int]
    nbytes: list[int]
    paged_bytes: list[int]
    packed_bytes: list[int | None]
    moves: list[bool]
    first_use: list[int]
    uses: list[list[tuple[int, int, int]]]
    n_used: list[int]
    reads: list[int]
    writes: list[int]
    births: list[list[int]]
    deaths: list[list[int]]
    of: list[int]
    commands: list[list[tuple[Command, int]]]
    begins: dict[int, list[int]]

    def __len__(self) -> int:
        return len(self.storage)


@once_for_a_trace
def whole_pieces(trace: Trace, page_bytes: PageSize) -> Pieces:
    """Without commands: what all schedules have in common."""
    n_ticks = len(trace.ticks)
    brief = {number for number, row in enumerate(trace.storages) if row.scratch and row.death - row.birth == 1}
    sizes, shrunk = paged_sizes(trace, page_bytes).tolist(), packed_sizes(trace).tolist()
    storage: list[int] = []
    nbytes: list[int] = []
    paged: list[int] = []
    packed: list[int | None] = []
    moves: list[bool] = []
    of: list[int] = []
    births: list[list[int]] = [[] for _ in range(n_ticks)]
    deaths: list[list[int]] = [[] for _ in range(n_ticks)]
    together: dict[int, int] = {}  # tick -> piece of all that is ``brief`` then
    for number, row in enumerate(trace.storages):
        if number in brief and row.birth in together:
            piece = together[row.birth]
            nbytes[piece] += row.nbytes
            paged[piece] += sizes[number]
            of.append(piece)
            continue
        piece = len(storage)
        storage.append(number)
        nbytes.append(row.nbytes)
        paged.append(sizes[number])
        packed.append(None if shrunk[number] < 0 else shrunk[number])
        moves.append(not row.scratch)
        of.append(piece)
        if number in brief:
            together[row.birth] = piece
        if not row.persistent:
            births[row.birth].append(piece)
            deaths[row.death % n_ticks].append(piece)
    first_use = [NOT_AT_ALL] * len(storage)
    uses = _uses(trace, of, storage, first_use)
    n_used = [sum(use[0] not in born for use in used) for used, born in zip(uses, map(set, births), strict=True)]
    reads, writes = operand_bytes(trace)
    return Pieces(
        storage, nbytes, paged, packed, moves, first_use, uses, n_used, reads, writes, births, deaths, of, [], {}
    )


def pieces_of(schedule: Schedule, trace: Trace, page_bytes: PageSize) -> Pieces:
    """With the schedule's commands."""
    whole, n_ticks = whole_pieces(trace, page_bytes), len(trace.ticks)
    commands: list[list[tuple[Command, int]]] = [[] for _ in range(n_ticks)]
    fields = (schedule.tick, schedule.verb, schedule.storage, schedule.source, schedule.target, schedule.due)
    for tick, verb, number, source, target, due in zip(*(column.tolist() for column in fields), strict=True):
        row = Command(Verb(verb), source, None if verb == Verb.DROP else target, (due - tick) % n_ticks)
        commands[tick].append((row, whole.of[number]))
    begins: dict[int, list[int]] = {}
    for number, tier in zip(schedule.begin_storage.tolist(), schedule.begin_tier.tolist(), strict=True):
        begins.setdefault(whole.of[number], []).append(tier)
    return replace(whole, commands=commands, begins=begins)


def next_uses(trace: Trace) -> Ints:
    """Of each access, the ticks until the next one of its storage; of what dies first, more than there are."""
    n_ticks, rows = len(trace.ticks), trace.accesses
    if not len(rows):
        return rows.tick
    same = rows.storage[1:] == rows.storage[:-1]
    gap = np.full(len(rows), NEVER * n_ticks, dtype=np.int64)
    gap[:-1][same] = np.diff(rows.tick)[same]
    begins = np.flatnonzero(np.append(True, ~same))
    ends = np.append(begins[1:], len(rows)) - 1
    persistent = lives(trace)[2][rows.storage[ends]]
    around = rows.tick[begins] + n_ticks - rows.tick[ends]
    gap[ends[persistent]] = around[persistent]
    return gap


def _uses(trace: Trace, of: list[int], own: list[int], first_use: list[int]) -> list[list[tuple[int, int, int]]]:
    """Scratch is read and written in each tick of its life, whatever its accesses say."""
    n_ticks, rows = len(trace.ticks), trace.accesses
    uses: list[list[tuple[int, int, int]]] = [[] for _ in range(n_ticks)]
    begins = np.flatnonzero(np.diff(rows.storage, prepend=-1))
    for number, tick in zip(rows.storage[begins].tolist(), rows.tick[begins].tolist(), strict=True):
        first_use[of[number]] = tick
    young = rows.tick < lives(trace)[0][rows.storage] + n_ticks
    columns = (column[young].tolist() for column in (rows.storage, rows.tick % n_ticks, rows.mode, next_uses(trace)))
    for number, tick, mode, until in zip(*columns, strict=True):
        if not trace.storages[number].scratch:
            uses[tick].append((of[number], mode, until))
    both = int(Access.READ | Access.WRITE)
    for piece, number in enumerate(own):
        storage = trace.storages[number]
        if storage.scratch:
            for tick in range(storage.birth, storage.death):
                uses[tick % n_ticks].append((piece, both, 1))
    return uses


def operand_bytes(trace: Trace) -> tuple[list[int], list[int]]:
    """Bytes that each tick's operation reads and writes of its storages, all of each."""
    n_ticks, rows = len(trace.ticks), trace.accesses
    nbytes = np.array([row.nbytes for row in trace.storages], dtype=np.int64)
    scratch = np.array([row.scratch for row in trace.storages], dtype=bool)
    whole = np.array([(row.birth, row.death) for row in trace.storages if row.scratch], dtype=np.int64).reshape(-1, 2)
    found = []
    for mode in (Access.READ, Access.WRITE):
        here = ((rows.mode & mode) > 0) & ~scratch[rows.storage]
        start, stop = np.concatenate((rows.tick[here], whole[:, 0])), np.concatenate((rows.tick[here] + 1, whole[:, 1]))
        size = np.concatenate((nbytes[rows.storage[here]], nbytes[scratch]))
        found.append(levels(start, stop, size, n_ticks).tolist())
    return found[0], found[1]
