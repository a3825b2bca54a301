"""Computes a time that no plan can beat, nor a policy in the mean of many steps: one of its steps may be faster if the
next pays for it. It is the largest of three:

- the compute time, and what operations lose to the copies beside them (``lost_per_byte``): the least that any choice
  of intervals costs (``choice.least_cost``).
- *prices*: the least transfer time that any choice costs, counted in several ways (``ns_per_byte``).
- *windows*, after the bounds in the G10 traces' notes. During ticks [i, j), all that is used there and was there
  before comes in, except for a budget's worth that may be there when the window begins. All that is written there
  (used, on an exclusive machine) and outlives j goes out, except for a budget's worth that may stay. Room is also taken
  by whatever else an operation holds then: operation i as it begins or operation i - 1 as it ends, and j or j - 1
  likewise. So the time between is at least that of these copies, and of the compute between. The same holds for the
  first two tiers together against those beyond them, and so on. A step is a row of windows. Dynamic programming over a
  grid of ticks finds the best row.

Contents that can be made anew (``ir.remakes``) cost the lesser of their copies and of that. It takes compute time, and
copies take links' time: a step is as long as either, so as long as any mix of both. In windows they cost nothing.

Where operations may use a slower tier in place, nothing has to move, and only the compute time is left.

Left out: latencies, the granularity of storages and the order of copies, all of which only add time. Also left out:
windows that lie across the step's end.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain, combinations

import numpy as np

import ebbtide._planning as _planning
from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Link, Machine, Sharing
from ebbtide.ir.occupancy import PageSize, levels, live_bytes, needed_bytes, paged_sizes
from ebbtide.ir.of_trace import once_for_a_trace
from ebbtide.ir.remakes import remakes_of, without_remakes
from ebbtide.ir.trace import Access, Trace
from ebbtide.planners.base import page_size_of
from ebbtide.planners.search.choice import Demand, least_cost
from ebbtide.planners.search.idle_table import idle_table, remake_rows

_MIXES = (0.25, 0.5, 0.75)
"""Shares of compute time in a mix with the links' time, where something can be made anew."""
_MANY = 10
"""More links than these are not looked at in every combination."""
_GRID = 1536
"""The most places of a step at which windows begin and end. A shorter step has one at each tick."""


def total_rate(machine: Machine, links: list[Link]) -> float:
    """Return the bytes per ns that links could move together."""
    alone = sum(link.most_bytes_per_s for link in links if link.shares is None)
    for group in machine.groups:
        members = sum(link.most_bytes_per_s for link in links if link.shares == group.name)
        alone += min(members, group.bytes_per_s)
    return alone / 1e9


def lost_per_byte(machine: Machine, links: list[Link]) -> float:
    """Return the least time that compute loses to the copy of a byte over one of ``links``, in ns.

    A busy link that makes operations longer by s takes s / (1 + s) of the time from compute, if compute does not wait
    anyway. Several links that are busy at once take less in sum than each alone. They also move less if they share a
    group. The factor is the least that any set of links takes, relative to each alone. Of many links it is that of all
    of them, as if none shared a group, which is less.
    """
    slowing = [link for link in machine.links if link.slows_compute > 0]
    factor = 1.0
    if len(slowing) > _MANY:
        factor = _lost(sum(link.slows_compute for link in slowing)) / sum(_lost(link.slows_compute) for link in slowing)
    for busy in _sets_of(slowing, 2):
        alone = sum(_rate(machine, link, busy) / link.most_bytes_per_s * _lost(link.slows_compute) for link in busy)
        factor = min(factor, _lost(sum(link.slows_compute for link in busy)) / alone)
    return factor * min(_lost(link.slows_compute) * 1e9 / link.most_bytes_per_s for link in links)


def _sets_of(links: list[Link], at_least: int) -> Iterator[tuple[Link, ...]]:
    """Return all sets of so many links or more; none where there are too many."""
    sizes = range(at_least, len(links) + 1) if len(links) <= _MANY else ()
    return chain.from_iterable(combinations(links, count) for count in sizes)


def _lost(slows: float) -> float:
    return slows / (1.0 + slows)


def _rate(machine: Machine, link: Link, busy: tuple[Link, ...]) -> float:
    """Return the most that a link moves while all of ``busy`` are, in bytes per s."""
    limits = {group.name: group for group in machine.groups}
    if link.shares is None or limits[link.shares].sharing is Sharing.IN_ORDER:
        return link.most_bytes_per_s
    together = sum(other.most_bytes_per_s for other in busy if other.shares == link.shares)
    return link.most_bytes_per_s * min(1.0, limits[link.shares].bytes_per_s / together)


def ns_per_byte(machine: Machine, inward: list[Link], outward: list[Link]) -> list[tuple[float, float]]:
    """Return ways to count the links' time: ns for a byte in and ns for a byte out. None exceeds the links' busy time.

    One way counts both directions at the rate of all together. The others count one direction at its own rate, and the
    other at the rest of the time while both are busy. Where links share fairly, that is most of the time: by turns they
    may be as fast as both at once. Of many links the other direction is not counted there.
    """
    both = 1.0 / total_rate(machine, [*inward, *outward])
    found = [(both, both)]
    for mine, others in ((inward, outward), (outward, inward)):
        first = 1.0 / total_rate(machine, mine)
        links = [*mine, *others]
        second = 1.0 / total_rate(machine, others) if len(links) <= _MANY else 0.0
        for busy in _sets_of(links, 1):
            my_rate = sum(_rate(machine, link, busy) for link in busy if link in mine) / 1e9
            rate = sum(_rate(machine, link, busy) for link in busy if link in others) / 1e9
            if rate:
                second = min(second, max(1.0 - my_rate * first, 0.0) / rate)
        found.append((first, second) if mine is inward else (second, first))
    return found


@once_for_a_trace
def lower_bound_ns(trace: Trace, machine: Machine, budget_bytes: int) -> int:
    """Return a lower bound of the step's time under any plan that keeps the budget."""
    fast = machine.tiers[0].name
    inward = [link for link in machine.links if link.target == fast]
    outward = [link for link in machine.links if link.source == fast]
    if not inward or not outward or any(tier.in_place.reads for tier in machine.tiers[1:]):
        return trace.step_ns
    # Prices are not at their best. So those of a step that makes nothing anew may show the lesser time.
    priced = min(_by_prices(step, machine, budget_bytes) for step in (trace, without_remakes(trace)))
    windowed = _by_windows(trace, machine, budget_bytes)
    return max(trace.step_ns, int(priced * (1 - 1e-9)), int(windowed * (1 - 1e-9)))


def _by_prices(trace: Trace, machine: Machine, budget_bytes: int) -> float:
    """Return the longest bound of any wall and any way to count time, each with its own prices."""
    longest = 0.0
    for nbytes, ways, lost_in, lost_out in _walls(machine, budget_bytes):
        asked = partial(_least_cost, trace, machine.exclusive, page_size_of(machine), nbytes)
        counted = [asked(*way) for way in not_beaten(ways)]
        if len(remakes_of(trace)):
            counted += [
                mix * trace.step_ns
                + asked((1 - mix) * read_ns + mix * lost_in, (1 - mix) * write_ns + mix * lost_out, mix)
                for read_ns, write_ns in not_beaten(ways)
                for mix in _MIXES
            ]
        longest = max(longest, *counted, trace.step_ns + asked(lost_in, lost_out, 1.0))
    return longest


def not_beaten(ways: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the ways that some choice of bytes may make the longest."""
    ways = list(dict.fromkeys(ways))
    return [
        way for way in ways if not any(other != way and other[0] >= way[0] and other[1] >= way[1] for other in ways)
    ]


@once_for_a_trace
def _least_cost(
    trace: Trace,
    exclusive: bool,
    page_bytes: PageSize,
    budget_bytes: int,
    read_ns: float,
    write_ns: float,
    remake_share: float = 0.0,
) -> float:
    """Return a lower bound of the cost of intervals that keep the budget, at so many ns for a byte in and out. What is
    made anew costs this share of the time that it takes."""
    idle = idle_table(trace, exclusive, page_bytes)
    never = never_used_bytes(trace, page_bytes)
    demand = Demand(idle.after + 1, idle.until, live_bytes(trace, page_bytes) - never - budget_bytes)
    read = np.where(idle.returns, idle.nbytes, 0).astype(np.float64)
    write = np.zeros(len(idle.dirty))
    write[idle.group] = idle.nbytes
    write *= idle.dirty
    remakes, anew = remakes_of(trace), None
    if len(remakes):
        anew = np.full(len(idle), np.inf)
        anew[remake_rows(trace, exclusive, page_bytes)] = remakes.time_ns * remake_share
    return least_cost(idle, demand, read * read_ns, write * write_ns, anew)


@once_for_a_trace
def never_used_bytes(trace: Trace, page_bytes: PageSize) -> int:
    """Return the bytes of persistent storages that no tick uses. They need not be in fast memory at all."""
    used = np.zeros(len(trace.storages), dtype=bool)
    used[trace.accesses.storage] = True
    never = ~used & trace.storages.persistent & ~trace.storages.scratch
    return int(paged_sizes(trace, page_bytes)[never].sum())


def _by_windows(trace: Trace, machine: Machine, budget_bytes: int) -> float:
    n_ticks = len(trace.ticks)
    starts = trace.start_ns(np.arange(n_ticks + 1)).astype(np.float64)
    cuts = np.arange(n_ticks + 1)
    if n_ticks >= _GRID:
        even = np.searchsorted(starts, np.linspace(0, starts[-1], _GRID // 2))
        cuts = np.sort(np.concatenate((even, np.linspace(0, n_ticks, _GRID // 2).astype(np.int64))))
        cuts = cuts[np.diff(cuts, prepend=-1) != 0]
    uses, held = _uses(trace), needed_bytes(trace)
    fresh = held - levels(uses[1], uses[1] + 1, uses[2], n_ticks)  # comes from nowhere
    fresh, held = np.append(fresh, fresh[0]), np.append(held, fresh[0])  # the next step's first
    used, outlived = _used_and_outlived(trace, machine.exclusive)
    return _planning.longest_windows(
        cuts=cuts,
        begins_ns=starts[cuts],
        fresh=fresh[cuts],
        held=held[cuts],
        held_before=held[cuts - 1],
        uses=uses,
        rests=_rests(trace, machine.exclusive),
        used=used,
        outlived=outlived,
        walls=list(_walls(machine, budget_bytes)),
    )


def _touches(trace: Trace) -> tuple[Ints, Ints]:
    """Return storage and tick of each access but those to scratch."""
    rows = trace.accesses
    keep = ~trace.storages.scratch[rows.storage]
    return rows.storage[keep], rows.tick[keep]


_Wall = tuple[int, list[tuple[float, float]], float, float]
"""A wall between the first tiers, which hold so many bytes, and the others.

It has the links' time for bytes in and out, counted in several ways, and the ns that compute loses for each byte, in
and out.
"""


def _walls(machine: Machine, budget_bytes: int) -> Iterator[_Wall]:
    nbytes: int | None = budget_bytes
    for n_inside in range(1, len(machine.tiers)):
        if n_inside > 1:
            added = machine.tiers[n_inside - 1]
            capacity = None if added.packs else added.capacity_bytes  # its room depends on its contents
            nbytes = None if capacity is None or nbytes is None else nbytes + capacity
        inside = {tier.name for tier in machine.tiers[:n_inside]}
        inward = [link for link in machine.links if link.target in inside and link.source not in inside]
        outward = [link for link in machine.links if link.source in inside and link.target not in inside]
        if nbytes is not None and inward and outward:
            lost_in, lost_out = lost_per_byte(machine, inward), lost_per_byte(machine, outward)
            yield nbytes, ns_per_byte(machine, inward, outward), lost_in, lost_out


@once_for_a_trace
def _uses(trace: Trace) -> tuple[Ints, Ints, Ints]:
    """Return all uses in the step of contents that were there before: tick of the use before, tick of the use, bytes.

    A storage born in the step comes from nowhere, and its birth counts as a use.
    """
    n_ticks = len(trace.ticks)
    birth, persistent = trace.storages.birth, trace.storages.persistent
    storage, tick = _touches(trace)
    begins = np.diff(storage, prepend=-1) != 0
    ends = np.append(begins[1:], True)[: len(storage)]
    before = np.append(0, tick[:-1])[: len(storage)]
    before[begins] = np.where(persistent[storage[begins]], tick[ends] - n_ticks, birth[storage[begins]])
    came = ~(begins & ~persistent[storage] & (tick == birth[storage]))
    remakes = remakes_of(trace)
    if len(remakes):
        most = 2 * n_ticks + 1
        came &= ~np.isin(storage * most + tick, remakes.storage * most + remakes.until)
    shift = tick // n_ticks * n_ticks
    return (before - shift)[came], (tick - shift)[came], trace.storages.nbytes[storage][came]


def _rests(trace: Trace, exclusive: bool) -> tuple[Ints, Ints, Ints]:
    """Return all contents that must be somewhere: the tick of their start, the last tick that needs them, bytes."""
    storage, start, end = _contents(trace, exclusive)
    return *_within(trace, start, end), trace.storages.nbytes[storage]


def _within(trace: Trace, first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Move pairs of ticks by whole steps, so that the first lies in this one."""
    shift = first // len(trace.ticks) * len(trace.ticks)
    return first - shift, second - shift


@once_for_a_trace
def _contents(trace: Trace, exclusive: bool) -> tuple[Ints, Ints, Ints]:
    """Return all contents that must be somewhere, sorted: storage, the tick of their start, the last tick that needs
    them.

    They begin with a write or birth, and are needed up to and including the next write, or to death. Those that can be
    made anew are needed until they may be left. On an exclusive machine every use begins them anew: if they are away
    before the next, they have left since.
    """
    rows, n_ticks = trace.accesses, len(trace.ticks)
    birth, death = trace.storages.birth, trace.storages.death
    persistent, scratch = trace.storages.persistent, trace.storages.scratch
    born = np.flatnonzero(~scratch & ~persistent)
    keep = ~scratch[rows.storage] & (exclusive | (rows.mode & int(Access.WRITE) != 0))
    keep &= persistent[rows.storage] | (rows.tick != birth[rows.storage])
    storage = np.concatenate((born, rows.storage[keep]))
    tick = np.concatenate((birth[born], rows.tick[keep]))
    order = np.lexsort((tick, storage))
    storage, tick = storage[order], tick[order]
    begins = np.diff(storage, prepend=-1) != 0
    ends = np.append(begins[1:], True)[: len(storage)]
    end = np.append(tick[1:], 0)[: len(storage)]
    end[ends] = np.where(persistent[storage[ends]], tick[begins] + n_ticks, death[storage[ends]] - 1)
    remakes = remakes_of(trace)
    for number, gone in zip(remakes.storage.tolist(), remakes.gone.tolist(), strict=True):
        low, high = np.searchsorted(storage, [number, number + 1])
        end[low:high] = np.where((tick[low:high] < gone) & (gone <= end[low:high]), gone - 1, end[low:high])
    return storage, tick, end


@once_for_a_trace
def _used_and_outlived(trace: Trace, exclusive: bool) -> tuple[tuple[Ints, Ints, Ints], tuple[Ints, Ints, Ints]]:
    """Return where an operation holds contents, as it begins and as it ends, if they last so long: the tick of their
    start, the operation's and the one after it respectively, bytes."""
    found = _contents(trace, exclusive)
    of, start, end = (np.append(none, column) for none, column in zip((-1, 0, 0), found, strict=True))
    storage, tick = _touches(trace)
    most = int(max(start.max(), tick.max(initial=0))) + 1
    row = np.searchsorted(of * most + start, storage * most + tick) - 1  # what was there before
    there = (of[row] == storage) & (tick <= end[row])
    row, tick = row[there], tick[there]
    second, first = _within(trace, tick, start[row])
    lasts, made = tick < end[row], np.flatnonzero(start < end)
    begin, _ = _within(trace, start[made], end[made])
    nbytes = trace.storages.nbytes[of[row]]
    outlived = (
        np.append(first[lasts], begin),
        np.append(second[lasts], begin) + 1,
        np.append(nbytes[lasts], trace.storages.nbytes[of[made]]),
    )
    return (first, second, nbytes), outlived
