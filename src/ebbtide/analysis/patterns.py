"""Finds whether events repeat, how often, and where one time differs from the next.

At the distance of a period, most events find their like. Candidates are distances between like *contexts* of 1, 2, 4,
8, ... events in a row. Some contexts recur within a period, as a layer's operators do. Once its context is long enough,
each stands alone, and the next like it is a period away. The period is the smallest candidate at which nearly as many
events match as at the best one. Pinpointing (ISPASS'21) shows in a Gantt chart, by eye, that training is iterative.
This module shows it in figures.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.ir.base import Flags, Ints
from ebbtide.ir.trace import Storage, StorageKind, Trace

LEAST_MATCH = 0.8
"""If a smaller share of events matches, there is no pattern."""
_NEARLY = 0.02
_MOST_CANDIDATES = 8


@dataclass(frozen=True, slots=True)
class Repetition:
    """A repetition from event ``start`` on: events repeat every ``period`` of them, ``repeats`` times in full.

    ``matched`` is the share of events from ``start`` on that equal the one a period later. ``differing`` are the places
    within the period at which some repeat differs from the one before it.
    """

    start: int
    period: int
    repeats: int
    matched: float
    differing: tuple[int, ...]


def repetition_of(events: Sequence[Hashable]) -> Repetition | None:
    """Find the period, or None if nothing repeats at least twice. O(n log^2 n)."""
    numbers: dict[Hashable, int] = {}
    tokens = np.array([numbers.setdefault(event, len(numbers)) for event in events], dtype=np.int64)
    candidates = _candidates(tokens)
    stretch = min(max(candidates, default=1), max(len(tokens) // 4, 1))
    matched = {period: _undisturbed(_matches(tokens, period), stretch) for period in candidates}
    best = max(matched.values(), default=0.0)
    if best < LEAST_MATCH:
        return None
    period = min(at for at, share in matched.items() if share >= best - _NEARLY)
    same = _matches(tokens, period)
    start = _steady_from(same, period)
    repeats = (len(tokens) - start) // period
    if repeats < 2 or same[start:].mean() < LEAST_MATCH:
        return None
    differing = np.unique(np.flatnonzero(~same[start:]) % period)
    return Repetition(start, period, repeats, float(same[start:].mean()), tuple(differing.tolist()))


def _matches(tokens: Ints, distance: int) -> Flags:
    same: Flags = tokens[:-distance] == tokens[distance:]
    return same


def _undisturbed(same: Flags, stretch: int) -> float:
    """Return the share of events that match in the better half of stretches of equal length.

    One event too many shifts all that follows for a whole period. That must not favour the period of a layer, with
    which few stretches agree entirely.
    """
    count = len(same) // stretch
    if count < 2:
        return float(same.mean())
    shares = np.sort(same[: count * stretch].reshape(count, stretch).mean(axis=1))
    return float(shares[count // 2 :].mean())


def _candidates(tokens: Ints) -> set[int]:
    """Return the distances, of at most half the events, at which like contexts most often recur."""
    found: set[int] = set()
    rank, length = tokens, 1
    while len(rank) > 1 and length <= len(tokens) // 2:
        order = np.argsort(rank, kind="stable")
        gaps = np.diff(order)[np.diff(rank[order]) == 0]
        gaps, votes = np.unique(gaps[gaps <= len(tokens) // 2], return_counts=True)
        if not len(gaps):
            break
        best = np.argsort(-votes, kind="stable")[:_MOST_CANDIDATES]
        found.update(gaps[best].tolist())
        # A context twice as long is the pair of this context and the one that follows it.
        pairs = rank[:-length] * (int(rank.max()) + 1) + rank[length:]
        rank = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
        length *= 2
    return found


def _steady_from(same: Flags, period: int) -> int:
    """Return the start of the first period that is like the next one. LEAST_MATCH of its events match, its first one
    too."""
    summed = np.concatenate(([0], np.cumsum(same)))
    width = min(period, len(same))
    like = (summed[width:] - summed[:-width] >= LEAST_MATCH * width) & same[: len(same) - width + 1]
    return int(like.argmax()) if like.any() else 0


def allocation_sizes(trace: Trace) -> list[int]:
    """Return the sizes of allocations, in the order of births."""
    rows = trace.storages.take(~trace.storages.persistent)
    order = np.lexsort((rows.allocation, rows.allocation < 0, rows.birth))
    sizes: list[int] = rows.nbytes[order].tolist()
    return sizes


def operations(trace: Trace) -> list[tuple[str, int]]:
    """Return each tick's operator, with the bytes that it accesses."""
    nbytes = np.zeros(len(trace.ticks), dtype=np.int64)
    np.add.at(nbytes, trace.accesses.tick % len(trace.ticks), trace.storages.nbytes[trace.accesses.storage])
    return list(zip(trace.ticks.operator.tolist(), nbytes.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Surplus:
    """Storages of one kind, module and size, of which one step has ``count`` more than the other."""

    kind: StorageKind
    module: str
    nbytes: int
    count: int


@dataclass(frozen=True, slots=True)
class StepDifference:
    """The difference between two steps. ``first_tick`` is the first whose operator or bytes differ, or None.

    ``more`` and ``fewer`` are the storages of which the second step has more or fewer, the most bytes first.
    ``step_ratio`` is the second step's time over the first one's. ``alike``: their signatures are equal, so a plan for
    one suits the other.
    """

    alike: bool
    ticks: tuple[int, int]
    first_tick: int | None
    step_ratio: float
    more: tuple[Surplus, ...]
    fewer: tuple[Surplus, ...]


def difference_of(first: Trace, second: Trace) -> StepDifference:
    mine, theirs = operations(first), operations(second)
    differs = [at for at, (one, other) in enumerate(zip(mine, theirs, strict=False)) if one != other]
    end = min(len(mine), len(theirs)) if len(mine) != len(theirs) else None
    had, has = (Counter(map(_likeness, trace.storages)) for trace in (first, second))
    return StepDifference(
        first.signature() == second.signature(),
        (len(mine), len(theirs)),
        differs[0] if differs else end,
        second.step_ns / first.step_ns if first.step_ns else 1.0,
        _surplus(has - had),
        _surplus(had - has),
    )


def _likeness(storage: Storage) -> tuple[StorageKind, str, int]:
    return storage.kind, storage.module, storage.nbytes


def _surplus(counted: "Counter[tuple[StorageKind, str, int]]") -> tuple[Surplus, ...]:
    rows = [Surplus(*key, count) for key, count in counted.items()]
    return tuple(sorted(rows, key=lambda row: (-row.nbytes * row.count, row.kind, row.module)))
