"""What does not change during a simulation: a step as pieces of storages, and what happens to them tick by tick.

A *piece* is a range of a storage's bytes that a schedule moves as one: all of it, unless the schedule splits it. All
scratch that lives in one tick alone is one piece, since a fused optimizer may make thousands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.occupancy import PageSize, levels, packed_bytes, paged_bytes
from ebbtide.ir.of_trace import lives, once_for_a_trace
from ebbtide.ir.schedule import Begin, Command, Schedule
from ebbtide.ir.trace import Access, Trace

NEVER = 2
"""Steps until the next use of what is not used again in its life."""

NOT_AT_ALL = 2**62
"""The tick of the first use of what is never used."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Lists by piece, and by tick.

    ``moves``: whether it may move at all; scratch may not. ``uses`` of a tick, without those of elders ([Note: elders]
    in ``planners.search.idle_table``), are (piece, mode, ticks until its next use), ``n_used`` how many of them are
    there before the tick; its operation touches ``reads`` and ``writes`` bytes. ``packed_bytes`` is what a piece takes
    on a tier that packs, None where it may not lie there. ``of`` has the pieces of each storage, in the order of their
    bytes.
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
    of: list[range]
    commands: list[list[tuple[Command, int]]]
    begins: dict[int, list[int]]

    def __len__(self) -> int:
        return len(self.storage)


@once_for_a_trace
def whole_pieces(trace: Trace, page_bytes: PageSize) -> Pieces:
    """Every storage as one piece, without commands: what all schedules that split nothing have in common."""
    return _pieces(trace, page_bytes, {}, _brief(trace))


def pieces_of(
    schedule: Schedule, trace: Trace, ranks: dict[str, int], page_bytes: PageSize, whole: Pieces | None = None
) -> Pieces:
    """The pieces of a schedule; ``whole`` is that of ``whole_pieces``, if somebody has it. Where the schedule splits
    nothing, its lists are the result's, but for ``commands`` and ``begins``."""
    n_ticks = len(trace.ticks)
    cuts, brief = _cuts(schedule, trace), _brief(trace)
    named = {row.storage for row in schedule.commands} | {row.storage for row in schedule.begins}
    if whole is None or cuts or named & brief:
        whole = _pieces(trace, page_bytes, cuts, brief - named)
    commands: list[list[tuple[Command, int]]] = [[] for _ in range(n_ticks)]
    for command in schedule.commands:
        row = commands[command.at.tick]
        for piece in _covered(command, whole.of, cuts):
            row.append((command, piece))
    begins: dict[int, list[int]] = {}
    for begin in schedule.begins:
        for piece in _covered(begin, whole.of, cuts):
            begins.setdefault(piece, []).append(ranks[begin.tier])
    return replace(whole, commands=commands, begins=begins)


def _pieces(trace: Trace, page_bytes: PageSize, cuts: dict[int, list[int]], brief: set[int]) -> Pieces:
    n_ticks = len(trace.ticks)
    storage: list[int] = []
    nbytes: list[int] = []
    paged: list[int] = []
    packed: list[int | None] = []
    moves: list[bool] = []
    of: list[range] = []
    births: list[list[int]] = [[] for _ in range(n_ticks)]
    deaths: list[list[int]] = [[] for _ in range(n_ticks)]
    together: dict[int, int] = {}  # tick -> piece of all that is ``brief`` then
    for number, row in enumerate(trace.storages):
        if number in brief and row.birth in together:
            piece = together[row.birth]
            nbytes[piece] += row.nbytes
            paged[piece] += paged_bytes(trace, number, 0, row.nbytes, page_bytes)
            of.append(range(0))
            continue
        first = len(storage)
        for low, high in pairwise(cuts.get(number) or (0, row.nbytes)):
            storage.append(number)
            nbytes.append(high - low)
            paged.append(paged_bytes(trace, number, low, high, page_bytes))
            packed.append(packed_bytes(trace, number, low, high))
            moves.append(not row.scratch)
        of.append(range(first, len(storage)))
        if number in brief:
            together[row.birth] = first
        if not row.persistent:
            births[row.birth].extend(of[-1])
            deaths[row.death % n_ticks].extend(of[-1])
    first_use = [NOT_AT_ALL] * len(storage)
    uses = _uses(trace, of, first_use)
    n_used = [sum(use[0] not in born for use in used) for used, born in zip(uses, map(set, births), strict=True)]
    reads, writes = operand_bytes(trace)
    return Pieces(
        storage, nbytes, paged, packed, moves, first_use, uses, n_used, reads, writes, births, deaths, of, [], {}
    )


def _brief(trace: Trace) -> set[int]:
    """Scratch of one tick: what is born in the same one comes, stays and goes together, so it is one piece."""
    return {number for number, row in enumerate(trace.storages) if row.scratch and row.death - row.birth == 1}


def _cuts(schedule: Schedule, trace: Trace) -> dict[int, list[int]]:
    """Where storages are split: the bounds of their pieces, for those alone that have more than one."""
    found: dict[int, set[int]] = {}
    for rows in (schedule.commands, schedule.begins):
        for row in rows:
            whole = trace.storages[row.storage].nbytes
            if row.low or row.high != whole:
                found.setdefault(row.storage, {0, whole}).update((row.low, row.high))
    return {number: sorted(bounds) for number, bounds in found.items()}


def _covered(row: Command | Begin, of: list[range], cuts: dict[int, list[int]]) -> Sequence[int]:
    if row.storage not in cuts:
        return of[row.storage]
    places = zip(of[row.storage], cuts[row.storage][:-1], strict=True)
    return [piece for piece, low in places if row.low <= low < row.high]


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


def _uses(trace: Trace, of: list[range], first_use: list[int]) -> list[list[tuple[int, int, int]]]:
    """Scratch is read and written in each tick of its life, whatever its accesses say."""
    n_ticks, rows = len(trace.ticks), trace.accesses
    uses: list[list[tuple[int, int, int]]] = [[] for _ in range(n_ticks)]
    begins = np.flatnonzero(np.diff(rows.storage, prepend=-1))
    for number, tick in zip(rows.storage[begins].tolist(), rows.tick[begins].tolist(), strict=True):
        for piece in of[number]:
            first_use[piece] = tick
    young = rows.tick < lives(trace)[0][rows.storage] + n_ticks
    columns = (column[young].tolist() for column in (rows.storage, rows.tick % n_ticks, rows.mode, next_uses(trace)))
    for number, tick, mode, until in zip(*columns, strict=True):
        if not trace.storages[number].scratch:
            uses[tick].extend((piece, mode, until) for piece in of[number])
    both = int(Access.READ | Access.WRITE)
    for number, storage in enumerate(trace.storages):
        if storage.scratch:
            for tick in range(storage.birth, storage.death):
                uses[tick % n_ticks].extend((piece, both, 1) for piece in of[number])
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
