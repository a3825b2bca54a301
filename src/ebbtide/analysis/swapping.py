"""Which idle intervals are long enough to move a storage out and back: alone, and when all of them share the links.

The swap rule: a storage of S bytes that is idle for A moves without slowing compute if
``A >= latency_out + S / bytes_per_s_out + latency_back + S / bytes_per_s_back`` (Pinpointing gives no such formula in
print; this is its standard form). It looks at each interval alone. In a queue the links are busy with other storages:
the intervals with the most bytes x ATI book first, each out as early and back as late as its links have time, and an
interval fits if it is out before it has to start back. A link carries on with one copy where another left off, as the
runtime's chunks do, and steps repeat, so time is a circle. No storage that fits is late, whatever else fits.

Left out: that a storage which was not written needs no copy out, the slowdown of compute by copies, room on the slow
tier, and what two links of one group could carry more than each of them alone: they take turns.
"""

from dataclasses import dataclass

import numpy as np

from ebbtide.analysis.columns import Flags, Floats, columns_of
from ebbtide.analysis.intervals import byte_seconds
from ebbtide.ir.base import Ints, Origin
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.trace import Trace, idle_intervals

OUTLIER_PERCENTILE = 99
"""An outlier moves without slowing compute and has more bytes x ATI than this part of all intervals."""


@dataclass(frozen=True, slots=True)
class Route:
    """The way from the fastest tier to a slow one and back. ``shared``: both directions are one server."""

    tier: str
    out: Link
    back: Link
    shared: bool

    def out_ns(self, nbytes: Ints) -> Ints:
        return copy_ns(self.out, nbytes)

    def back_ns(self, nbytes: Ints) -> Ints:
        return copy_ns(self.back, nbytes)

    def most_bytes(self, idle_ns: float) -> int:
        """The largest storage that may move in an interval; the swap line of a chart of size against ATI."""
        left = idle_ns - self.out.latency_ns - self.back.latency_ns
        return max(0, int(left / 1e9 / (1 / self.out.bytes_per_s + 1 / self.back.bytes_per_s)))


def route_of(machine: Machine, tier: str | None = None) -> Route | None:
    """To ``tier``, or to the first slow tier that has links both ways; None if there is none."""
    fast = machine.tiers[0].name
    limits = {group.name: group.bytes_per_s for group in machine.groups}
    for slow in machine.tiers[1:]:
        out, back = machine.link(fast, slow.name), machine.link(slow.name, fast)
        if out is None or back is None or tier not in (None, slow.name):
            continue
        if out.shares is None or out.shares != back.shares:
            return Route(slow.name, out, back, shared=False)
        return Route(slow.name, out, back, limits[out.shares] < out.bytes_per_s + back.bytes_per_s)
    return None


def assumed_route(out_bytes_per_s: int, back_bytes_per_s: int | None = None) -> Route:
    """A slow tier of which only the bandwidths are known (one for both directions, or one each)."""
    back = back_bytes_per_s or out_bytes_per_s
    tiers = (Tier("fast", InPlace.ALL), Tier("slow", InPlace.NOTHING))
    links = (Link("fast", "slow", out_bytes_per_s), Link("slow", "fast", back))
    found = route_of(Machine("given bandwidths", Origin.ASSUMED, tiers, links))
    assert found is not None
    return found


def copy_ns(link: Link, nbytes: Ints) -> Ints:
    """A copy's time alone on its link, rounded up."""
    time = np.ceil(nbytes.astype(np.float64) * (1e9 / link.bytes_per_s))
    result: Ints = link.latency_ns + np.minimum(time, 2.0**61).astype(np.int64)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Every idle interval, the most ``byte_seconds`` first: ``storage`` of ``nbytes`` is idle in ticks (after, until).

    ``alone``: fits by the swap rule. ``queued``: fits with all that come before it in the queue. During ticks
    [gone, back) its room is then free, and that is empty (gone == back == after + 1) for all others.
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


def candidates_of(trace: Trace, route: Route) -> Candidates:
    found = idle_intervals(trace)
    nbytes = columns_of(trace).nbytes[found.storage]
    weight = byte_seconds(found.idle_ns, nbytes)
    order = np.lexsort((found.after, found.storage, -weight))
    storage, after, until = found.storage[order], found.after[order], found.until[order]
    idle_ns, nbytes, weight = found.idle_ns[order], nbytes[order], weight[order]
    out_ns, back_ns = route.out_ns(nbytes), route.back_ns(nbytes)
    alone = out_ns + back_ns <= idle_ns
    threshold = np.quantile(weight, OUTLIER_PERCENTILE / 100, method="inverted_cdf") if len(weight) else 0.0
    gone, back, queued = after + 1, after + 1, np.zeros(len(alone), dtype=bool)
    queue = _Queue(trace, route.shared)
    for row in np.flatnonzero(alone).tolist():
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
    """The links' time in each tick of the circle that is taken.

    Within a tick, copies out come first and copies back last, each kind in the order of booking, so that what was
    booked stays where it is. Copies share a tick's time if the links are one server.
    """

    def __init__(self, trace: Trace, shared: bool) -> None:
        self._times = np.array([tick.time_ns for tick in trace.ticks], dtype=np.int64)
        self._out = np.zeros_like(self._times)
        self._back = np.zeros_like(self._times)
        self._shared = shared

    def book(self, low: int, high: int, out_ns: int, back_ns: int) -> tuple[int, int] | None:
        """Copies of at least 1 ns within ticks [low, high); [gone, back) are free of them. None if there is no time."""
        n_ticks = len(self._times)
        window = np.arange(low, min(high, low + n_ticks)) % n_ticks
        times, outs, backs = self._times[window], self._out[window], self._back[window]
        free_out = times - outs - (backs if self._shared else 0)
        free_back = times - backs - (outs if self._shared else 0)
        sent, fetched = np.cumsum(free_out), np.cumsum(free_back[::-1])[::-1]
        last = int(np.searchsorted(sent, out_ns))  # the tick in which the copy out ends
        first = len(window) - 1 - int(np.searchsorted(fetched[::-1], back_ns))  # in which the copy back begins
        if last > first:
            return None
        out_rest = out_ns - (int(sent[last - 1]) if last else 0)
        back_rest = back_ns - (int(fetched[first + 1]) if first + 1 < len(window) else 0)
        if last == first and outs[last] + out_rest + backs[first] + back_rest > times[last]:
            return None
        self._out[window[:last]] += free_out[:last]
        self._out[window[last]] += out_rest
        self._back[window[first + 1 :]] += free_back[first + 1 :]
        self._back[window[first]] += back_rest
        return low + last + 1, max(low + first, low + last + 1)
