"""When the chosen idle intervals begin and end: their copies, as stays.

Evictions start at once, in the order of the last uses; the room is promised for when the copy should be done. Fetches
are placed as late as is safe on their link, last deadline first, and then moved forward by a lead where room permits:
real times jitter, and an idle link is a chance lost. Each takes room from what the choice left free, tick by tick, so
a plan never holds more than its budget. Where there is no room for a copy beside the compute, it stands between two
ticks, and compute may wait for it: [Note: stays].

Tick times are given, so that a planner can use those of the last simulation, stalls and all.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Link, Machine
from ebbtide.ir.occupancy import levels
from ebbtide.ir.plan import Stay
from ebbtide.ir.trace import Trace
from ebbtide.planners.search.idle_table import Flags, Floats, IdleTable


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A chosen interval, timed. Away in ticks [gone, back); its write, if it has one, lasts during [out, done).

    ``slow`` is the tier of the contents meanwhile. Without a fetch ``back`` is the storage's death.
    """

    row: int
    slow: str
    out: int
    done: int
    gone: int
    back: int


@dataclass(frozen=True, slots=True)
class Pace:
    """``margin`` by which a copy is assumed to take longer; ``lead_ns`` by which fetches go before they must.

    ``clean_early`` lets a write start as soon as the contents are final, while they are still being read, when its link
    has nothing more urgent to do: the storage is then dropped at once after its last use. ``lazy`` puts writes off as
    long as nobody else wants the room, so that fetches have a link that both directions share to themselves.
    """

    margin: float
    lead_ns: float
    clean_early: bool = True
    lazy: bool = False


class Headroom:
    """Free bytes of the fast tier at each tick of the circle, as moves take it."""

    def __init__(self, free: Ints) -> None:
        self.free = np.concatenate((free, free))  # twice, so that a window is one slice
        self.n_ticks = len(free)

    def _base(self, low: int, high: int) -> int:
        return low - low % self.n_ticks

    def earliest(self, low: int, high: int, nbytes: int) -> int:
        """The first tick of [low, high] from which up to ``high`` there is room throughout."""
        base = self._base(low, high)
        short = np.flatnonzero(self.free[low - base : high - base] < nbytes)
        return low + int(short[-1]) + 1 if len(short) else low

    def latest(self, low: int, high: int, nbytes: int) -> int:
        """The last tick of [low, high] up to which there is room throughout."""
        base = self._base(low, high)
        short = np.flatnonzero(self.free[low - base : high - base] < nbytes)
        return low + int(short[0]) if len(short) else high

    def take(self, low: int, high: int, nbytes: int) -> None:
        base, n_ticks = self._base(low, high), self.n_ticks
        low, high = low - base, high - base
        self.free[low:high] -= nbytes
        if high <= n_ticks:
            self.free[low + n_ticks : high + n_ticks] -= nbytes
        else:
            self.free[: high - n_ticks] -= nbytes
            if low < n_ticks:
                self.free[low + n_ticks :] -= nbytes


class Clock:
    """Times of ticks, in this step and its neighbours, from the times at which ticks of one step are reached."""

    def __init__(self, start_ns: Ints) -> None:
        self.n_ticks = len(start_ns) - 1
        self.step_ns = max(float(start_ns[-1]), 1.0)
        one = start_ns[:-1].astype(np.float64)
        self._all = np.concatenate([one + self.step_ns * step for step in range(-1, 4)])

    def of(self, ticks: Ints) -> Floats:
        """When ticks are reached; from -T to 4T."""
        result: Floats = self._all[ticks + self.n_ticks]
        return result

    def at_or_before(self, times: Floats) -> Ints:
        return np.searchsorted(self._all, times, "right").astype(np.int64) - 1 - self.n_ticks

    def at_or_after(self, times: Floats) -> Ints:
        return np.searchsorted(self._all, times, "left").astype(np.int64) - self.n_ticks


def copy_ns(link: Link, nbytes: Ints, margin: float) -> Floats:
    """How long copies take alone on the link, with a margin."""
    result: Floats = (link.latency_ns + nbytes.astype(np.float64) * (1e9 / link.bytes_per_s)) * margin
    return result


def time_moves(
    idle: IdleTable, chosen: Ints, slow: list[str], free: Ints, machine: Machine, clock: Clock, pace: Pace
) -> list[Move]:
    """Moves of the ``chosen`` rows, whose contents go to ``slow[i]``; ``free`` is the room with all of them away."""
    fast, headroom = machine.tiers[0].name, Headroom(free)
    after, until = idle.after[chosen], idle.until[chosen]
    pages = idle.paged_bytes[chosen]
    ready = idle.written[idle.group[chosen]] + 1 if pace.clean_early else after + 1
    pays, returns = idle.payers(chosen), idle.returns[chosen]
    in_ns, out_ns = np.zeros(len(chosen)), np.zeros(len(chosen))
    tier_of = np.array(slow)
    for tier in sorted(set(slow)):
        here = tier_of == tier
        inward, outward = machine.link(tier, fast), machine.link(fast, tier)
        assert inward is not None
        assert outward is not None
        in_ns[here] = copy_ns(inward, idle.nbytes[chosen][here], pace.margin)
        out_ns[here] = copy_ns(outward, idle.nbytes[chosen][here], pace.margin)
    begin, out, done = until.copy(), after + 1, after + 1
    for tier in sorted(set(slow)):
        here = np.flatnonzero((tier_of == tier) & returns)
        begin[here] = _as_late_as_is_safe(clock, until[here], in_ns[here])
        here = np.flatnonzero((tier_of == tier) & pays)
        out[here], done[here] = _as_soon_as_can_be(clock, ready[here], after[here] + 1, out_ns[here])
    gone = after + 1
    by_deadline = np.flatnonzero(returns)[np.argsort(until[returns] % clock.n_ticks, kind="stable")].tolist()
    for at in by_deadline:
        low = min(max(int(begin[at]), int(after[at]) + 1), int(until[at]))
        begin[at] = headroom.earliest(low, int(until[at]), int(pages[at]))
        headroom.take(int(begin[at]), int(until[at]), int(pages[at]))
    for at in np.flatnonzero(pays)[np.argsort(after[pays] % clock.n_ticks, kind="stable")].tolist():
        low, high = int(after[at]) + 1, min(int(done[at]), int(begin[at]))
        gone[at] = headroom.latest(low, max(low, high), int(pages[at]))
        headroom.take(low, int(gone[at]), int(pages[at]))
        done[at] = min(done[at], gone[at])
        out[at] = min(out[at], done[at])
    if pace.lead_ns > 0:
        wanted = clock.at_or_before(clock.of(begin) - pace.lead_ns)
        for at in by_deadline:
            low, high = max(int(wanted[at]), int(gone[at])), int(begin[at])
            if low < high:
                begin[at] = headroom.earliest(low, high, int(pages[at]))
                headroom.take(int(begin[at]), high, int(pages[at]))
    if pace.lazy:
        out, done, gone = _put_off(headroom, clock, begin, out, done, gone, pays, pages, out_ns)
    return [
        Move(row, slow[at], int(out[at]), int(done[at]), int(gone[at]), int(begin[at]))
        for at, row in enumerate(chosen.tolist())
    ]


def _put_off(
    headroom: Headroom,
    clock: Clock,
    begin: Ints,
    out: Ints,
    done: Ints,
    gone: Ints,
    pays: Flags,
    pages: Ints,
    out_ns: Floats,
) -> tuple[Ints, Ints, Ints]:
    """Writes as late as the room that is still free allows."""
    order = np.flatnonzero(pays)[np.argsort(gone[pays] % clock.n_ticks, kind="stable")].tolist()
    later = gone.copy()
    for at in order:
        later[at] = headroom.latest(int(gone[at]), int(begin[at]), int(pages[at]))
        headroom.take(int(gone[at]), int(later[at]), int(pages[at]))
    rows = np.flatnonzero(pays)
    latest = out.copy()
    latest[rows] = _as_late_as_is_safe(clock, later[rows], out_ns[rows])
    latest = np.minimum(np.maximum(latest, out), later)
    return latest, np.maximum(later, latest), later


def _as_late_as_is_safe(clock: Clock, until: Ints, needed_ns: Floats) -> Ints:
    """Ticks at which fetches over one link must start at the latest, the queue of the next step included."""
    due = clock.of(until)
    base = np.floor(due / clock.step_ns) * clock.step_ns
    order = np.argsort(due - base, kind="stable")[::-1].tolist()
    offset, needed = (due - base).tolist(), needed_ns.tolist()
    start, free_from = np.zeros(len(until)), np.inf
    for ahead in (clock.step_ns, 0.0):
        for at in order:
            free_from = min(offset[at] + ahead, free_from) - needed[at]
            start[at] = free_from
    return np.maximum(clock.at_or_before(np.maximum(start + base, -clock.step_ns)), -clock.n_ticks)


def _as_soon_as_can_be(clock: Clock, ready: Ints, wanted: Ints, needed_ns: Floats) -> tuple[Ints, Ints]:
    """Ticks at which evictions over one link start and before which they are done.

    Of those that are ready, the link takes the one whose room is wanted first; the step before leaves its queue.
    """
    since, due = clock.of(ready), clock.of(wanted)
    base = np.floor(since / clock.step_ns) * clock.step_ns
    order = np.argsort(since - base, kind="stable").tolist()
    offset, urgency, needed = (since - base).tolist(), (due - base).tolist(), needed_ns.tolist()
    start, done, now = np.zeros(len(ready)), np.zeros(len(ready)), -np.inf
    waiting: list[tuple[float, float, int]] = []
    for behind in (-clock.step_ns, 0.0):
        for place, at in enumerate(order):
            heapq.heappush(waiting, (urgency[at] + behind, behind, at))
            following = offset[order[place + 1]] + behind if place + 1 < len(order) else behind + clock.step_ns
            now = max(now, offset[at] + behind)
            while waiting and (now < following or (behind == 0.0 and place + 1 == len(order))):
                _, _, job = heapq.heappop(waiting)
                start[job], now = now, now + needed[job]
                done[job] = now
    first = np.maximum(clock.at_or_before(start + base), ready)
    return first, np.maximum(clock.at_or_after(np.minimum(done + base, 3.5 * clock.step_ns)), first)


def still_stays(trace: Trace, fast: str, homeless: str) -> tuple[Stay, ...]:
    """Of each storage, its stay if it never moves. What is never used lies on tier ``homeless``."""
    used = np.zeros(len(trace.storages), dtype=bool)
    used[trace.accesses.storage] = True
    return tuple(
        Stay(
            number,
            0,
            storage.nbytes,
            homeless if storage.persistent and not used[number] and not storage.scratch else fast,
            storage.birth,
            storage.birth,
            storage.death,
        )
        for number, storage in enumerate(trace.storages)
    )


def stays_of(trace: Trace, idle: IdleTable, moves: list[Move], still: tuple[Stay, ...], fast: str) -> list[Stay]:
    """The stays of every storage: of those that have no moves, their ``still_stays``."""
    moved = moved_stays(trace, idle, moves, fast)
    return [*without(still, moved), *moved]


def without(still: tuple[Stay, ...], moved: list[Stay]) -> list[Stay]:
    """The ``still_stays`` of the storages that have no other."""
    movers = {stay.storage for stay in moved}
    return [stay for stay in still if stay.storage not in movers]


def moved_stays(trace: Trace, idle: IdleTable, moves: list[Move], fast: str) -> list[Stay]:
    """The stays of the storages that move."""
    of_storage: dict[int, list[Move]] = {}
    for move in moves:
        of_storage.setdefault(int(idle.storage[move.row]), []).append(move)
    n_ticks, found = len(trace.ticks), list[Stay]()
    for number, mine in of_storage.items():
        storage = trace.storages[number]
        if storage.death - storage.birth > n_ticks:
            mine = [_before(storage.birth + n_ticks, move) for move in mine]
        mine.sort(key=lambda move: move.gone)
        rows = [*_in_fast(trace, idle, number, mine, fast), *_in_slow(trace, idle, number, mine)]
        for tier, start, valid_from, stop in rows:
            shift = start // n_ticks * n_ticks if storage.persistent else 0
            times = (start - shift, valid_from - shift, stop - shift)
            found.append(Stay(number, 0, storage.nbytes, tier, *times))
    return found


def _before(tick: int, move: Move) -> Move:
    """Gone by then, when a command would mean its successor ([Note: elders] in ``idle_table``)."""
    gone = min(move.gone, tick)
    done = min(move.done, gone)
    return replace(move, out=min(move.out, done), done=done, gone=gone)


def _in_fast(
    trace: Trace, idle: IdleTable, number: int, moves: list[Move], fast: str
) -> Iterator[tuple[str, int, int, int]]:
    """Room between one interval and the next."""
    storage, n_ticks = trace.storages[number], len(trace.ticks)
    if storage.persistent:
        for before, move in zip(moves, [*moves[1:], moves[0]], strict=True):
            stop = move.gone if move.gone > before.back else move.gone + n_ticks
            yield fast, before.back, int(idle.until[before.row]), stop
        return
    start, valid_from = storage.birth, storage.birth
    for move in moves:
        yield fast, start, valid_from, move.gone
        start, valid_from = move.back, int(idle.until[move.row])
    if idle.returns[moves[-1].row]:
        yield fast, start, valid_from, storage.death


def _in_slow(trace: Trace, idle: IdleTable, number: int, moves: list[Move]) -> Iterator[tuple[str, int, int, int]]:
    """A replica from the write that a group pays for to its last fetch; of what is never written, for ever."""
    storage, n_ticks = trace.storages[number], len(trace.ticks)
    if not idle.dirty[idle.group[moves[0].row]]:
        yield moves[0].slow, 0, 0, n_ticks
        return
    groups: dict[int, list[Move]] = {}
    for move in moves:
        groups.setdefault(int(idle.group[move.row]), []).append(move)
    for members in groups.values():
        first, last = members[0], members[-1]
        stop = int(idle.until[last.row]) if idle.returns[last.row] else storage.death
        yield first.slow, first.out, first.done, stop


def all_away(idle: IdleTable, chosen: Flags, live: Ints, budget_bytes: int) -> Ints:
    """Free room at each tick when the chosen intervals take no time at all."""
    rows = np.flatnonzero(chosen)
    away = levels(idle.after[rows] + 1, idle.until[rows], idle.paged_bytes[rows], len(live))
    free: Ints = budget_bytes - live + away
    return free
