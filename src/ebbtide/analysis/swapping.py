"""Finds the idle intervals that are long enough to move a storage out and back, alone and in a queue for the links.

The swap rule is our reconstruction of the one that Pinpointing describes. A storage of S bytes that is idle for A moves
without slowing compute if ``A >= latency_out + S / bytes_per_s_out + latency_back + S / bytes_per_s_back``. It looks at
each interval alone.

In a queue, the links are also busy with other storages. The intervals with the most bytes x ATI book first. Each copy
out is as early, and each copy back as late, as its link has time. An interval fits if its copy out ends before its copy
back has to start. A link can interrupt one copy for another, as the runtime does with chunks. Steps repeat, so time is
a circle. No storage that fits is late, whatever else fits.

Left out: clean storages need no copy out; copies slow compute; the slow tier may lack room. Two links of one group take
turns, even where both together could carry more than one alone.
"""

from dataclasses import dataclass

import numpy as np

from ebbtide.analysis.intervals import byte_seconds
from ebbtide.ir.base import Flags, Floats, Ints, Origin
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.trace import Trace, idle_intervals

_AT_ONCE = 256
"""So many intervals are checked together for hopeless ones, before the others are booked one by one."""
OUTLIER_PERCENTILE = 99
"""An outlier moves without slowing compute. It has more bytes x ATI than this percentage of all intervals."""


@dataclass(frozen=True, slots=True)
class Route:
    """The way from the fastest tier to a slow one and back. ``shared``: both directions are one server."""

    tier: str
    out: Link
    back: Link
    shared: bool

    def most_bytes(self, idle_ns: float) -> int:
        """Return the largest storage that may move in an interval: the swap line of a chart of size against ATI."""
        left = idle_ns - self.out.latency_ns - self.back.latency_ns
        return max(0, int(left / 1e9 / (1 / self.out.bytes_per_s + 1 / self.back.bytes_per_s)))


def route_of(machine: Machine, tier: str | None = None) -> Route | None:
    """Return the route to ``tier``, or to the first slow tier that has links both ways, or None."""
    fast = machine.tiers[0].name
    limits = {group.name: group.bytes_per_s for group in machine.groups}
    for slow in machine.tiers[1:]:
        out, back = machine.link(fast, slow.name), machine.link(slow.name, fast)
        if out is None or back is None or tier not in (None, slow.name) or (slow.packs and tier is None):
            continue
        if out.shares is None or out.shares != back.shares:
            return Route(slow.name, out, back, shared=False)
        return Route(slow.name, out, back, limits[out.shares] < out.bytes_per_s + back.bytes_per_s)
    return None


def assumed_route(out_bytes_per_s: int, back_bytes_per_s: int | None = None) -> Route:
    """Return a route to a slow tier with the given bandwidths: one for both directions, or one each."""
    back = back_bytes_per_s or out_bytes_per_s
    tiers = (Tier("fast", InPlace.ALL), Tier("slow", InPlace.NOTHING))
    links = (Link("fast", "slow", out_bytes_per_s), Link("slow", "fast", back))
    found = route_of(Machine("given bandwidths", Origin.ASSUMED, tiers, links))
    assert found is not None
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Every idle interval, the most ``byte_seconds`` first: ``storage`` of ``nbytes`` is idle in ticks (after, until).

    ``alone``: fits by the swap rule. ``queued``: fits along with all before it in the queue. The storage's room is then
    free during ticks [gone, back). For all other intervals that span is empty: gone == back == after + 1.
    """

    storage: Ints
    after: Ints
    until: Ints
    idle_ns: Ints
    nbytes: Ints
    byte_seconds: Floats
    out_ns: Ints
    back_ns: Ints
    alone: Flags
    queued: Flags
    outlier: Flags
    gone: Ints
    back: Ints

    def __len__(self) -> int:
        return len(self.storage)


def candidates_of(trace: Trace, route: Route, most: int | None = None) -> Candidates:
    """Return all idle intervals. Only the best ``most`` of those that fit alone enter the queue, by default all."""
    found = idle_intervals(trace)
    nbytes = trace.storages.nbytes[found.storage]
    weight = byte_seconds(found.idle_ns, nbytes)
    order = np.lexsort((found.after, found.storage, -weight))
    storage, after, until = found.storage[order], found.after[order], found.until[order]
    idle_ns, nbytes, weight = found.idle_ns[order], nbytes[order], weight[order]
    out_ns, back_ns = (
        np.minimum(np.ceil(link.copy_ns(nbytes)), 2.0**61).astype(np.int64) for link in (route.out, route.back)
    )
    alone = out_ns + back_ns <= idle_ns
    threshold = np.quantile(weight, OUTLIER_PERCENTILE / 100, method="inverted_cdf") if len(weight) else 0.0
    gone, back, queued = after + 1, after + 1, np.zeros(len(alone), dtype=bool)
    queue = _Queue(trace, route.shared)
    asked = np.flatnonzero(alone)[:most]
    for start in range(0, len(asked), _AT_ONCE):
        rows = asked[start : start + _AT_ONCE]
        for row in rows[queue.may_fit(after[rows] + 1, until[rows], out_ns[rows], back_ns[rows])].tolist():
            booked = queue.book(int(after[row]) + 1, int(until[row]), int(out_ns[row]), int(back_ns[row]))
            if booked is not None:
                queued[row] = True
                gone[row], back[row] = booked
    return Candidates(
        storage,
        after,
        until,
        idle_ns,
        nbytes,
        weight,
        out_ns,
        back_ns,
        alone,
        queued,
        alone & (weight >= threshold),
        gone,
        back,
    )


class _Queue:
    """The time of the links that is taken in each tick of the circle.

    Within a tick, copies out come first and copies back last, each kind in the order of booking. So a booked copy keeps
    its place. Copies share a tick's time if the links are one server.
    """

    def __init__(self, trace: Trace, shared: bool) -> None:
        self._times = trace.ticks.time_ns
        self._out = np.zeros_like(self._times)
        self._back = np.zeros_like(self._times)
        self._shared = shared

    def may_fit(self, low: Ints, high: Ints, out_ns: Ints, back_ns: Ints) -> Flags:
        """Check many at once. False means that ticks [low, high) have no time for the copies now, and never will."""
        n_ticks = len(self._times)
        free_out, free_back = self._free()
        sent = np.concatenate(([0], np.cumsum(np.concatenate((free_out, free_out)))))
        fetched = np.concatenate(([0], np.cumsum(np.concatenate((free_back, free_back)))))
        first, stop = low % n_ticks, low % n_ticks + np.minimum(high - low, n_ticks)
        out_ends = np.searchsorted(sent, sent[first] + out_ns) - 1
        back_begins = np.searchsorted(fetched, fetched[stop] - back_ns, side="right") - 1
        fits: Flags = (out_ends <= back_begins) & (out_ends < stop) & (back_begins >= first)
        return fits

    def _free(self, ticks: Ints | slice = slice(None)) -> tuple[Ints, Ints]:
        """Return the time left for copies out and for copies back."""
        times, outs, backs = self._times[ticks], self._out[ticks], self._back[ticks]
        if self._shared:
            return times - outs - backs, times - outs - backs
        return times - outs, times - backs

    def book(self, low: int, high: int, out_ns: int, back_ns: int) -> tuple[int, int] | None:
        """Book copies of at least 1 ns within ticks [low, high). Returns [gone, back), free of them, or None without
        time."""
        n_ticks = len(self._times)
        high = min(high, low + n_ticks)
        outward = self._take(np.arange(low, high) % n_ticks, out_ns, outward=True)
        inward = self._take(np.arange(high - 1, low - 1, -1) % n_ticks, back_ns, outward=False)
        if outward is None or inward is None:
            return None
        (sent, out_rest), (fetched, back_rest) = outward, inward
        last, first = low + len(sent), high - 1 - len(fetched)  # where the copy out ends and the copy back begins
        ends, begins = last % n_ticks, first % n_ticks
        if last > first or (
            last == first and self._out[ends] + out_rest + self._back[begins] + back_rest > self._times[ends]
        ):
            return None
        free_out, free_back = self._free(sent)[0], self._free(fetched)[1]
        self._out[sent] += free_out
        self._out[ends] += out_rest
        self._back[fetched] += free_back
        self._back[begins] += back_rest
        return last + 1, max(first, last + 1)

    def _take(self, ticks: Ints, needed_ns: int, outward: bool) -> tuple[Ints, int] | None:
        """Return the first of ``ticks``, which a copy takes whole, and the copy's time in the tick after them."""
        length = 16
        while True:
            free = self._free(ticks[:length])[0 if outward else 1]
            summed = np.cumsum(free)
            whole = int(np.searchsorted(summed, needed_ns))
            if whole < len(free):
                return ticks[:whole], needed_ns - (int(summed[whole - 1]) if whole else 0)
            if length >= len(ticks):
                return None
            length *= 8
