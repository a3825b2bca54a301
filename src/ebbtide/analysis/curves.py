"""The gain from moving storages: the peak after the best k moves, and freed bytes against bandwidth.

The moves are those that fit in the queue of ``swapping``, so none of them slows compute by itself. The best are those
with the most bytes x ATI. A moved storage's bytes count as free room from the tick after its copy out to the tick of
its copy back.

This describes the trace and is no plan. A planner knows a budget, moves storages where bytes are short, and accepts
stalls.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ebbtide.analysis.swapping import Candidates, Route, assumed_route, candidates_of
from ebbtide.ir.base import Flags, Ints
from ebbtide.ir.occupancy import levels, live_bytes
from ebbtide.ir.trace import Trace

_MOST_POINTS = 200
_MOST_QUEUED = 4096
BANDWIDTHS = tuple(round(10 ** (8 + place / 2)) for place in range(9))
"""Bytes per s, two to a decade: from 100 MB/s, an old disk, to 1 TB/s."""


@dataclass(frozen=True, slots=True)
class MovesPoint:
    """The peak of live bytes after the best ``moves``, which copy ``moved_bytes`` out and back in each step."""

    moves: int
    moved_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class BandwidthPoint:
    """The bytes that a link of ``bytes_per_s`` each way frees on average over the step.

    ``alone`` counts the intervals that fit by the swap rule, and ``queued`` those that fit in the queue.
    ``alone_bytes`` and ``queued_bytes`` are their mean bytes away. Only the 4,096 best intervals enter the queue.
    ``peak_bytes`` is the peak once all that fit in the queue have moved.
    """

    bytes_per_s: int
    alone: int
    alone_bytes: int
    queued: int
    queued_bytes: int
    peak_bytes: int


def moves_curve(trace: Trace, candidates: Candidates) -> tuple[MovesPoint, ...]:
    """Return points from no moves to all, at most 200 of them, which lie closer together where there are few moves."""
    rows = np.flatnonzero(candidates.queued)
    live = live_bytes(trace)
    moved = [0, *accumulate(candidates.nbytes[rows].tolist())]
    return tuple(
        MovesPoint(count, moved[count], int((live - relief(trace, candidates, rows[:count])).max()))
        for count in _counts(len(rows))
    )


def _counts(n_moves: int) -> list[int]:
    if n_moves < _MOST_POINTS:
        return list(range(n_moves + 1))
    return sorted({0, *np.geomspace(1, n_moves, _MOST_POINTS - 1).round().astype(int).tolist()})


def relief(trace: Trace, candidates: Candidates, rows: Ints) -> Ints:
    """Return the bytes of room that these moves free at each tick."""
    low, high = candidates.gone[rows], candidates.back[rows]
    return levels(low, high, candidates.nbytes[rows], len(trace.ticks))


def bandwidth_curve(trace: Trace) -> tuple[BandwidthPoint, ...]:
    """Return a point for each bandwidth. Links have no latency, the same speed both ways, and no shared group."""
    live = live_bytes(trace)
    found = []
    for bytes_per_s in BANDWIDTHS:
        candidates = candidates_of(trace, assumed_route(bytes_per_s), _MOST_QUEUED)
        rows = np.flatnonzero(candidates.queued)
        found.append(
            BandwidthPoint(
                bytes_per_s,
                int(candidates.alone.sum()),
                mean_freed_bytes(trace, candidates, candidates.alone),
                len(rows),
                mean_freed_bytes(trace, candidates, candidates.queued),
                int((live - relief(trace, candidates, rows)).max()),
            )
        )
    return tuple(found)


def mean_freed_bytes(trace: Trace, candidates: Candidates, chosen: Flags) -> int:
    """Return the mean over the step's time of the bytes that the chosen intervals keep away.

    Only an interval's own copies shorten its time away.
    """
    away_ns = np.maximum(candidates.idle_ns - candidates.out_ns - candidates.back_ns, 0)[chosen].astype(np.float64)
    return round(float(candidates.nbytes[chosen] @ away_ns) / trace.step_ns) if trace.step_ns else 0


def break_even_bytes_per_s(nbytes: int, idle_ns: int, route: Route) -> int | None:
    """Return the bandwidth each way at which a storage could just move in an interval, or None if latencies fill it."""
    left = idle_ns - route.out.latency_ns - route.back.latency_ns
    return -(-2 * nbytes * 10**9 // left) if left > 0 else None
