"""What does not change during a simulation: a step as pieces of storages, and what happens to them tick by tick.

A *piece* is a range of a storage's bytes that a schedule moves as one: all of it, unless the schedule splits it.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ebbtide.ir.occupancy import PageSize, paged_bytes
from ebbtide.ir.schedule import Begin, Command, Schedule
from ebbtide.ir.trace import Access, Trace

NEVER = 2
"""Steps until the next use of what is not used again in its life."""

NOT_AT_ALL = 2**62
"""The tick of the first use of what is never used."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Lists by piece, and by tick.

    ``moves``: whether it may move at all; scratch, and what lives for longer than a step, may not. ``uses`` of a tick
    are (piece, mode, ticks until its next use). ``commands`` of a tick are (command, piece) in their order.
    ``begins``: the ranks of the tiers with valid contents at the beginning, where the schedule says so.
    """

    storage: list[int]
    nbytes: list[int]
    room: list[int]
    moves: list[bool]
    first_use: list[int]
    uses: list[list[tuple[int, int, int]]]
    births: list[list[int]]
    deaths: list[list[int]]
    commands: list[list[tuple[Command, int]]]
    begins: dict[int, list[int]]

    def __len__(self) -> int:
        return len(self.storage)


def pieces_of(schedule: Schedule, trace: Trace, ranks: dict[str, int], page_bytes: PageSize) -> Pieces:
    """Raises ValueError for commands on storages that live for longer than a step."""
    n_ticks = len(trace.ticks)
    cuts = _cuts(schedule, trace)
    storage: list[int] = []
    nbytes: list[int] = []
    room: list[int] = []
    moves: list[bool] = []
    at: dict[tuple[int, int], int] = {}  # (storage, first byte) -> piece
    of: list[list[int]] = []
    births: list[list[int]] = [[] for _ in range(n_ticks)]
    deaths: list[list[int]] = [[] for _ in range(n_ticks)]
    for number, row in enumerate(trace.storages):
        bounds = cuts.get(number) or [0, row.nbytes]
        mine: list[int] = []
        for low, high in pairwise(bounds):
            at[number, low] = piece = len(storage)
            mine.append(piece)
            storage.append(number)
            nbytes.append(high - low)
            room.append(paged_bytes(trace, number, low, high, page_bytes))
            moves.append(not row.scratch and row.death - row.birth <= n_ticks)
        of.append(mine)
        if not row.persistent:
            births[row.birth].extend(mine)
            deaths[row.death % n_ticks].extend(mine)
    commands: list[list[tuple[Command, int]]] = [[] for _ in range(n_ticks)]
    for command in schedule.commands:
        row = trace.storages[command.storage]
        if row.death - row.birth > n_ticks:
            raise ValueError(f"storage {command.storage} lives for longer than a step and has commands")
        commands[command.at.tick].extend((command, piece) for piece in _covered(command, of, at, cuts))
    begins: dict[int, list[int]] = {}
    for begin in schedule.begins:
        for piece in _covered(begin, of, at, cuts):
            begins.setdefault(piece, []).append(ranks[begin.tier])
    first_use = [NOT_AT_ALL] * len(storage)
    uses = _uses(trace, of, first_use)
    return Pieces(storage, nbytes, room, moves, first_use, uses, births, deaths, commands, begins)


def _cuts(schedule: Schedule, trace: Trace) -> dict[int, list[int]]:
    """Where storages are split: the bounds of their pieces, for those alone that have more than one."""
    found: dict[int, set[int]] = {}
    for number, low, high in [
        *((row.storage, row.low, row.high) for row in schedule.commands),
        *((row.storage, row.low, row.high) for row in schedule.begins),
    ]:
        whole = trace.storages[number].nbytes
        if (low, high) != (0, whole):
            found.setdefault(number, {0, whole}).update((low, high))
    return {number: sorted(bounds) for number, bounds in found.items()}


def _covered(
    row: Command | Begin, of: list[list[int]], at: dict[tuple[int, int], int], cuts: dict[int, list[int]]
) -> list[int]:
    if row.storage not in cuts:
        return of[row.storage]
    return [at[row.storage, low] for low in cuts[row.storage][:-1] if row.low <= low < row.high]


def _uses(trace: Trace, of: list[list[int]], first_use: list[int]) -> list[list[tuple[int, int, int]]]:
    """Scratch is read and written in each tick of its life, whatever its accesses say."""
    n_ticks, rows = len(trace.ticks), trace.accesses
    never = NEVER * n_ticks
    uses: list[list[tuple[int, int, int]]] = [[] for _ in range(n_ticks)]
    if len(rows):
        same = rows.storage[1:] == rows.storage[:-1]
        gap = np.full(len(rows), never, dtype=np.int64)
        gap[:-1][same] = np.diff(rows.tick)[same]
        begins = np.flatnonzero(np.append(True, ~same))
        ends = np.append(begins[1:], len(rows)) - 1
        persistent = np.array([row.persistent for row in trace.storages], dtype=bool)[rows.storage[ends]]
        around = rows.tick[begins] + n_ticks - rows.tick[ends]
        gap[ends[persistent]] = around[persistent]
        for number, tick in zip(rows.storage[begins].tolist(), rows.tick[begins].tolist(), strict=True):
            for piece in of[number]:
                first_use[piece] = tick
        columns = (rows.storage.tolist(), (rows.tick % n_ticks).tolist(), rows.mode.tolist(), gap.tolist())
        for number, tick, mode, until in zip(*columns, strict=True):
            if not trace.storages[number].scratch:
                uses[tick].extend((piece, mode, until) for piece in of[number])
    both = int(Access.READ | Access.WRITE)
    for number, storage in enumerate(trace.storages):
        if storage.scratch:
            for tick in range(storage.birth, storage.death):
                uses[tick % n_ticks].extend((piece, both, 1) for piece in of[number])
    return uses
