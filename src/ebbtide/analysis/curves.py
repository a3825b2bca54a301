"""What moving would buy: the peak after the best k moves, and bytes freed against bandwidth.

Moves are those of ``swapping`` in its queue, so none of them slows compute by itself, and the best are those with the
most bytes x ATI. This is a reading of the trace, not a plan: a planner knows a budget, moves what is short where it is
short, and accepts stalls. What was moved counts as room from the tick after its copy out to the tick of its copy back.
"""

from collections.abc import Sequence
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
    """The peak of live bytes once the best ``moves`` are made, which copy ``moved_bytes`` out and back a step."""

    moves: int
    moved_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class BandwidthPoint:
    """What a link of ``bytes_per_s`` each way frees on average over the step: by the rule alone, and in the queue.

    Of each, the number of intervals that fit and the mean of bytes that are away. The queue is asked for the 4,096 best
    intervals only. ``peak_bytes`` is the peak left when all that fits in the queue moves.
    """

    bytes_per_s: int
    alone: int
    alone_bytes: int
    queued: int
    queued_bytes: int
    peak_bytes: int


def moves_curve(trace: Trace, candidates: Candidates) -> tuple[MovesPoint, ...]:
    """From no moves to all; of more than 200 moves, that many points, close together where there are few moves."""
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
    """Bytes of room at each tick that these moves give."""
    low, high = candidates.gone[rows], candidates.back[rows]
    return levels(low, high, candidates.nbytes[rows], len(trace.ticks))


def bandwidth_curve(trace: Trace, bandwidths: Sequence[int] = BANDWIDTHS) -> tuple[BandwidthPoint, ...]:
    """For links without latency, of the same speed both ways, that do not share."""
    live = live_bytes(trace)
    found = []
    for bytes_per_s in bandwidths:
        route = assumed_route(bytes_per_s)
        candidates = candidates_of(trace, route, _MOST_QUEUED)
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
    """Bytes that the chosen intervals keep away, averaged over the step's time, if nothing but their own copies delays
    them."""
    away_ns = np.maximum(candidates.idle_ns - candidates.out_ns - candidates.back_ns, 0)[chosen].astype(np.float64)
    return round(float(candidates.nbytes[chosen] @ away_ns) / trace.step_ns) if trace.step_ns else 0


def break_even_bytes_per_s(nbytes: int, idle_ns: int, route: Route) -> int | None:
    """The bandwidth each way at which a storage could just move in an interval; None if latencies alone fill it."""
    left = idle_ns - route.out.latency_ns - route.back.latency_ns
    return -(-2 * nbytes * 10**9 // left) if left > 0 else None
