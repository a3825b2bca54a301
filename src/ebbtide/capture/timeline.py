"""Makes a Timeline of a recorded step under a budget: it shows how the plan worked out.

Left out: which thread did what. Overlapping stalls are one, as everywhere. Copies that were under way when the step
began are cut off there. Those that outlast the step belong to the next.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ebbtide.ir.base import Ints, Origin
from ebbtide.ir.machine import Machine
from ebbtide.ir.native import NEVER, Lane
from ebbtide.ir.recording import Recording
from ebbtide.ir.timeline import COMPUTE_LANE, Level, Span, SpanKind, Timeline, union_ns
from ebbtide.ir.trace import Trace

_STALLS: dict[int, SpanKind] = {lane: SpanKind(lane.name.lower()) for lane in Lane if lane > Lane.BACK}


def timeline(recording: Recording, trace: Trace, numbers: Ints, machine: Machine, policy: str) -> Timeline:
    """Make the timeline. ``numbers`` has by row of the recording the storage of ``trace``, -1 for none. The machine's
    tiers are the arena's."""
    tiers = [tier.name for tier in machine.tiers]
    columns = (
        recording.span_lane,
        recording.span_begin_ns,
        recording.span_end_ns,
        recording.span_tick,
        recording.span_storage,
        recording.span_source,
        recording.span_target,
    )
    rows = sorted(zip(*(column.tolist() for column in columns), strict=True), key=lambda row: row[1])
    copies, stalls = [], []
    for lane, begin, end, tick, row, source, target in rows:
        storage = None if row == NEVER or numbers[row] == NEVER else int(numbers[row])
        if lane in _STALLS:
            stalls.append(Span(COMPUTE_LANE, _STALLS[lane], begin, end, tick, storage))
        else:
            kind = SpanKind.EVICT if lane == Lane.OUT else SpanKind.FETCH
            link = f"{tiers[source]}->{tiers[target]}"
            copies.append(Span(link, kind, begin, end, tick, storage, int(recording.nbytes[row])))
    compute = _compute(recording, trace, stalls)
    spans = sorted((*copies, *compute), key=lambda span: span.start_ns)
    levels = _levels(tiers[0], recording.tick_begin_ns, recording.tick_reserved)
    return Timeline(policy, Origin.MEASURED, int(recording.time_ns), tuple(spans), levels)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The time that a step took and, by link, the bytes copied and the time in which a copy was under way."""

    step_ns: int
    links: dict[str, tuple[int, int]]


def traffic(recording: Recording, machine: Machine) -> Traffic:
    """Sum up a step's copies. The machine's tiers are the arena's."""
    tiers = [tier.name for tier in machine.tiers]
    nbytes: dict[str, int] = defaultdict(int)
    copies: dict[str, list[tuple[int, int]]] = defaultdict(list)
    columns = (recording.span_lane, recording.span_begin_ns, recording.span_end_ns, recording.span_storage)
    ways = (recording.span_source, recording.span_target)
    for lane, begin, end, row, source, target in zip(*(column.tolist() for column in (*columns, *ways)), strict=True):
        if lane not in _STALLS:
            link = f"{tiers[source]}->{tiers[target]}"
            nbytes[link] += int(recording.nbytes[row])
            copies[link].append((begin, end))
    return Traffic(int(recording.time_ns), {link: (nbytes[link], union_ns(copies[link])) for link in nbytes})


def _compute(recording: Recording, trace: Trace, stalls: list[Span]) -> list[Span]:
    """Make the spans of the compute lane: ticks, with the stalls cut out of them."""
    begins = recording.tick_begin_ns.tolist()
    ends = [*begins[1:], int(recording.time_ns)]
    spans: list[Span] = []
    waiting = iter(stalls)
    stall = next(waiting, None)
    rows = zip(begins, ends, trace.ticks.operator.tolist(), strict=True)
    for tick, (start, end, label) in enumerate(rows):
        while stall is not None and stall.start_ns < end:
            if stall.start_ns > start:
                spans.append(Span(COMPUTE_LANE, SpanKind.COMPUTE, start, stall.start_ns, tick, label=label))
            spans.append(stall)
            start = max(start, stall.stop_ns)
            stall = next(waiting, None)
        if end > start:
            spans.append(Span(COMPUTE_LANE, SpanKind.COMPUTE, start, end, tick, label=label))
    return spans


def _levels(tier: str, times: Ints, held: Ints) -> tuple[Level, ...]:
    changes = np.flatnonzero(np.diff(held, prepend=-1))
    return tuple(Level(tier, int(times[at]), int(held[at])) for at in changes)
