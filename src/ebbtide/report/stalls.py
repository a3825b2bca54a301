"""Finds what each stall of a timeline waited for: the copies that ran meanwhile and could end it.

A stall for room waits for evictions, and one for contents waits for fetches. If the trace is known, only fetches of the
storages that its tick uses count. The timeline has to show this, since a recorded stall does not say it. A stall that
names its storage is believed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.ir.timeline import Span, SpanKind, Timeline
from ebbtide.ir.trace import Trace

STALLS = (SpanKind.STALL_ROOM, SpanKind.STALL_LATE, SpanKind.STALL_DEMAND)


@dataclass(frozen=True, slots=True)
class Awaited:
    """A copy of ``nbytes`` on ``lane``. ``storage`` is None if the timeline does not name it."""

    storage: int | None
    lane: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Stall:
    """Compute stood still at ``tick``. ``awaited`` lists the copies in the order in which they ended."""

    kind: SpanKind
    start_ns: int
    stop_ns: int
    tick: int | None
    label: str
    awaited: tuple[Awaited, ...]


def stalls_of(timeline: Timeline, trace: Trace | None = None) -> tuple[Stall, ...]:
    """Return the stalls in the order of time. ``trace`` is the step's, or None."""
    used = _used(trace)
    copies = {kind: _Copies(timeline, kind) for kind in (SpanKind.EVICT, SpanKind.FETCH)}
    found = []
    for span in _joined(timeline):
        direction = SpanKind.EVICT if span.kind is SpanKind.STALL_ROOM else SpanKind.FETCH
        wanted = None if direction is SpanKind.EVICT or trace is None or span.tick is None else used[span.tick]
        awaited: tuple[Awaited, ...]
        if span.storage is not None:
            own = {span.storage}
            none = Awaited(span.storage, copies[direction].lane_of(span.storage), span.nbytes)
            awaited = tuple(copies[direction].during(span, own)) or (none,)
        else:
            awaited = tuple(copies[direction].during(span, wanted))
        found.append(Stall(span.kind, span.start_ns, span.stop_ns, span.tick, span.label, awaited))
    return tuple(found)


def _used(trace: Trace | None) -> Mapping[int, set[int]]:
    used: dict[int, set[int]] = defaultdict(set)
    if trace is not None:
        rows, n_ticks = trace.accesses, len(trace.ticks)
        for storage, tick in zip(rows.storage.tolist(), (rows.tick % n_ticks).tolist(), strict=True):
            used[tick].add(storage)
    return used


def _joined(timeline: Timeline) -> Iterator[Span]:
    """Join stalls of the same tick, kind and storage that have no gap between them."""
    last: Span | None = None
    for span in timeline.spans:
        if span.kind not in STALLS:
            continue
        if last is not None:
            alike = (last.kind, last.tick, last.storage) == (span.kind, span.tick, span.storage)
            if alike and last.stop_ns == span.start_ns:
                last = replace(last, stop_ns=span.stop_ns)
                continue
            yield last
        last = span
    if last is not None:
        yield last


class _Copies:
    def __init__(self, timeline: Timeline, kind: SpanKind) -> None:
        self._spans = sorted((span for span in timeline.spans if span.kind is kind), key=lambda span: span.stop_ns)
        self._start = np.array([span.start_ns for span in self._spans], dtype=np.int64)
        self._stop = np.array([span.stop_ns for span in self._spans], dtype=np.int64)
        self._lanes = {span.storage: span.lane for span in self._spans}

    def during(self, stall: Span, wanted: set[int] | None) -> Iterator[Awaited]:
        for place in np.flatnonzero((self._start < stall.stop_ns) & (self._stop > stall.start_ns)).tolist():
            span = self._spans[place]
            if wanted is None or span.storage is None or span.storage in wanted:
                yield Awaited(span.storage, span.lane, span.nbytes)

    def lane_of(self, storage: int) -> str:
        return self._lanes.get(storage, "a link")
