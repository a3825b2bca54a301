"""Timeline: what happened in a step, or would: spans on lanes and levels of tiers, in ns from the step's start.

The runtime writes it (measured), and so does the simulator (simulated). So one overlay shows plan against reality. Left
out: which thread did what.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from ebbtide.ir.base import Origin, check_range
from ebbtide.ir.trace import Trace

COMPUTE_LANE = "compute"
"""Every other lane is a link's name."""


class SpanKind(StrEnum):
    """The cause of a span. Stalls of the compute lane are for room, for a late prefetch, or for a demand fetch."""

    COMPUTE = "compute"
    STALL_ROOM = "stall_room"
    STALL_LATE = "stall_late"
    STALL_DEMAND = "stall_demand"
    EVICT = "evict"
    FETCH = "fetch"


@dataclass(frozen=True, slots=True)
class Span:
    """A lane was busy during [start_ns, stop_ns). ``tick``, ``storage`` and its ``nbytes`` are there if it has them."""

    lane: str
    kind: SpanKind
    start_ns: int
    stop_ns: int
    tick: int | None = None
    storage: int | None = None
    nbytes: int = 0
    label: str = ""

    def __post_init__(self) -> None:
        check_range(self, "start_ns tick storage nbytes")
        check_range(self, "stop_ns", low=self.start_ns)
        if (self.lane == COMPUTE_LANE) == (self.kind in (SpanKind.EVICT, SpanKind.FETCH)):
            raise ValueError(f"a span of {self.kind} is not for lane {self.lane!r:.80}")


@dataclass(frozen=True, slots=True)
class Level:
    """The tier holds ``nbytes`` from ``time_ns`` until its next level."""

    tier: str
    time_ns: int
    nbytes: int

    def __post_init__(self) -> None:
        check_range(self, "time_ns nbytes")


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the time that at least one of the intervals [start, stop) covers."""
    covered = until = 0
    for start, stop in sorted(intervals):
        covered += max(0, stop - max(start, until))
        until = max(until, stop)
    return covered


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step under ``policy``. Spans are sorted by start, levels by time. The compute lane does one thing at a time.

    ``step_ns`` is the step's time. Copies may still be under way then, and their spans go on past it.
    """

    policy: str
    origin: Origin
    step_ns: int
    spans: tuple[Span, ...]
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        check_range(self, "step_ns")
        starts = [span.start_ns for span in self.spans]
        times = [level.time_ns for level in self.levels]
        if starts != sorted(starts) or times != sorted(times):
            raise ValueError("spans must be sorted by their start and levels by their time")
        compute = [span for span in self.spans if span.lane == COMPUTE_LANE]
        if any(before.stop_ns > after.start_ns for before, after in pairwise(compute)):
            raise ValueError("two spans of the compute lane overlap")
        if compute and compute[-1].stop_ns > self.step_ns:
            raise ValueError("the compute lane goes on past the step's end")

    def fits(self, trace: Trace) -> bool:
        """Tell whether the trace's step has all ticks and storages that the spans name."""
        ticks = [span.tick for span in self.spans if span.tick is not None]
        storages = [span.storage for span in self.spans if span.storage is not None]
        return max(ticks, default=-1) < len(trace.ticks) and max(storages, default=-1) < len(trace.storages)

    def time_ns(self, *kinds: SpanKind) -> int:
        """Return the time in spans of these kinds, summed over lanes."""
        return sum(span.stop_ns - span.start_ns for span in self.spans if span.kind in kinds)

    def busy_ns(self) -> dict[str, int]:
        """Return the time in which each link had a copy under way."""
        copies: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for span in self.spans:
            if span.lane != COMPUTE_LANE:
                copies[span.lane].append((span.start_ns, span.stop_ns))
        return {lane: union_ns(intervals) for lane, intervals in copies.items()}

    def moved_bytes(self) -> dict[str, int]:
        """Return the bytes that each link moved."""
        moved: dict[str, int] = defaultdict(int)
        for span in self.spans:
            if span.lane != COMPUTE_LANE:
                moved[span.lane] += span.nbytes
        return dict(moved)
