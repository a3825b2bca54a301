"""Times the copies of the chosen idle intervals, and turns them into stays.

Evictions start at once, in the order of the last uses. Their room is promised for when the copy should be done. Fetches
are placed as late as is safe on their link, the last deadline first. They are then moved forward by a lead where room
permits, since real times jitter and an idle link is a lost chance. Each copy takes room from what the choice left free,
tick by tick, so a plan never holds more than its budget. Where there is no room for a copy beside the compute, it
stands between two ticks, and compute may wait for it: [Note: stays].

Tick times are arguments, so that a planner can use those of the last simulation, stalls and all.
"""

from dataclasses import dataclass

import numpy as np

import ebbtide._planning as _planning
from ebbtide.ir.base import Flags, Floats, Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.of_trace import once_for_a_trace
from ebbtide.ir.plan import Stay
from ebbtide.ir.stay_columns import StayColumns
from ebbtide.ir.trace import Trace
from ebbtide.planners.search.idle_table import IdleTable


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A timed interval. It is away in ticks [gone, back). Its write, if it has one, lasts during [out, done).

    ``slow`` is the tier of the contents meanwhile. Without a fetch, ``back`` is the storage's death.
    """

    row: int
    slow: str
    out: int
    done: int
    gone: int
    back: int


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Many moves as columns, in the order of their rows. ``tier`` is the rank of ``Move.slow``."""

    row: Ints
    tier: Ints
    out: Ints
    done: Ints
    gone: Ints
    back: Ints

    def of(self, rows: Flags) -> "Moves":
        columns = (self.row, self.tier, self.out, self.done, self.gone, self.back)
        return Moves(*(column[rows] for column in columns))


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of copies: their times count ``margin`` times, and fetches go ``lead_ns`` before they must.

    ``clean_early`` lets a write start as soon as the contents are final, while they are still being read, if its link
    has nothing more urgent to do. The storage is then dropped right after its last use. ``lazy`` puts writes off as
    long as nothing else needs the room. Fetches then have a link to themselves that both directions share.
    """

    margin: float
    lead_ns: float
    clean_early: bool = True
    lazy: bool = False


class Headroom:
    """The free bytes of the fast tier at each tick of the circle, as moves take them."""

    def __init__(self, free: Ints) -> None:
        self.free = np.concatenate((free, free))  # twice, so that a window is one slice
        self.n_ticks = len(free)

    def has_room(self, low: int, high: int, nbytes: int) -> bool:
        """Say whether there is room at each of ticks [low, high)."""
        base = low - low % self.n_ticks
        return bool(np.all(self.free[low - base : high - base] >= nbytes))

    def take(self, low: int, high: int, nbytes: int) -> None:
        n_ticks, base = self.n_ticks, low - low % self.n_ticks
        low, high = low - base, high - base
        self.free[low:high] -= nbytes
        if high <= n_ticks:
            self.free[low + n_ticks : high + n_ticks] -= nbytes
        else:
            self.free[: high - n_ticks] -= nbytes
            if low < n_ticks:
                self.free[low + n_ticks :] -= nbytes


class Clock:
    """The times of ticks in this step and its neighbours, from the times at which ticks of one step are reached.

    ``reached`` has those from the step before to three steps after.
    """

    def __init__(self, start_ns: Ints) -> None:
        self.n_ticks = len(start_ns) - 1
        self.step_ns = max(float(start_ns[-1]), 1.0)
        one = start_ns[:-1].astype(np.float64)
        self.reached = np.concatenate([one + self.step_ns * step for step in range(-1, 4)])

    def of(self, ticks: Ints) -> Floats:
        """Return when ticks are reached, from -T to 4T."""
        result: Floats = self.reached[ticks + self.n_ticks]
        return result

    def at_or_before(self, times: Floats) -> Ints:
        return np.searchsorted(self.reached, times, "right").astype(np.int64) - 1 - self.n_ticks

    def at_or_after(self, times: Floats) -> Ints:
        return np.searchsorted(self.reached, times, "left").astype(np.int64) - self.n_ticks


def time_moves(
    idle: IdleTable, chosen: Ints, slow: list[str], free: Ints, machine: Machine, clock: Clock, pace: Pace
) -> Moves:
    """Time the moves of the ``chosen`` rows, whose contents go to ``slow[i]``, in ``native/search/timing.cpp``.

    ``free`` is the room with all of them away.
    """
    after = idle.after[chosen]
    tier = _ranks(slow, machine)
    in_ns, out_ns = np.zeros(len(chosen)), np.zeros(len(chosen))
    for rank in np.unique(tier).tolist():
        here, (inward, outward) = tier == rank, machine.ways(machine.tiers[rank].name)
        in_ns[here] = inward.copy_ns(idle.nbytes[chosen][here]) * pace.margin
        out_ns[here] = outward.copy_ns(idle.nbytes[chosen][here]) * pace.margin
    times = _planning.time_moves(
        after=after,
        until=idle.until[chosen],
        ready=idle.written[idle.group[chosen]] + 1 if pace.clean_early else after + 1,
        paged=idle.paged_bytes[chosen],
        tier=tier,
        pays=idle.payers(chosen),
        returns=idle.returns[chosen],
        in_ns=in_ns,
        out_ns=out_ns,
        free=free,
        reached=clock.reached,
        step_ns=clock.step_ns,
        lead_ns=pace.lead_ns,
        lazy=pace.lazy,
    )
    return Moves(chosen, tier, *times)


def _ranks(tiers: list[str], machine: Machine) -> Ints:
    rank = {tier.name: at for at, tier in enumerate(machine.tiers)}
    return np.fromiter((rank[tier] for tier in tiers), dtype=np.int64, count=len(tiers))


@once_for_a_trace
def still_stays(trace: Trace, homeless: int = 0) -> StayColumns:
    """Return each storage's stay if it never moves, in their order: on the fastest tier. Storages that are never used
    lie on the tier with the number ``homeless``."""
    rows, numbers = trace.storages, np.arange(len(trace.storages))
    away = rows.persistent & ~rows.scratch & ~np.isin(numbers, trace.accesses.storage)
    return StayColumns(numbers, np.where(away, homeless, 0), rows.birth, rows.birth, rows.death)


def stays_of(trace: Trace, idle: IdleTable, moves: list[Move], still: StayColumns, machine: Machine) -> list[Stay]:
    """Return the stays of every storage. Those without moves have their ``still_stays``."""
    ordered = sorted(moves, key=lambda move: move.row)
    times = [(move.row, move.out, move.done, move.gone, move.back) for move in ordered]
    row, *columns = np.array(times, dtype=np.int64).reshape(-1, 5).T
    tier = _ranks([move.slow for move in ordered], machine)
    moved = moved_stays(trace, idle, Moves(row, tier, *columns))
    return with_still(machine, still, moved)


def with_still(machine: Machine, still: StayColumns, moved: StayColumns) -> list[Stay]:
    """Return the stays of the storages that move, and the ``still_stays`` of all others."""
    return (still.without(moved.storage) + moved).stays([tier.name for tier in machine.tiers])


def moved_stays(trace: Trace, idle: IdleTable, moves: Moves) -> StayColumns:
    """Return the stays of the storages that move, made by ``native/search/stays.cpp``.

    A storage is in fast memory between one interval and the next. It is in a slow tier from the write that a group pays
    for to its last fetch, or for ever if it is never written. An elder leaves before its successor is born ([Note:
    elders] in ``idle_table``).
    """
    rows = trace.storages
    return StayColumns(
        *_planning.stays_of(
            storage=idle.storage[moves.row],
            group=idle.group[moves.row],
            until=idle.until[moves.row],
            tier=moves.tier,
            returns=idle.returns[moves.row],
            moves=(moves.out, moves.done, moves.gone, moves.back),
            birth=rows.birth,
            death=rows.death,
            persistent=rows.persistent,
            dirty=idle.dirty,
            n_ticks=len(trace.ticks),
        )
    )
