"""What a step's own moves tell of the machine: bandwidths, and what copies cost the operations beside them.

A probe measures a machine at another moment, under another load, and with other operations beside it. The moves of a
planned step are the very ones that the next plan is about. Only between the first two tiers.

Left out: latency, and bandwidth by block size.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ebbtide.capture.tick_times import own_ns
from ebbtide.ir.machine import Machine
from ebbtide.ir.native import Lane
from ebbtide.ir.recording import Recording
from ebbtide.ir.trace import Trace

Floats: TypeAlias = NDArray[np.float64]

_ENOUGH_NS = 50_000_000  # of copying one way, before its rate is believed
_ENOUGH_SHARE = 0.1  # of the step's operations, both beside copies and alone, before a slowdown is


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second out and back while the other link was idle, and of both together while neither was.

    ``slows_compute`` is how much longer operations took per busy link. None where the step showed too little of it.
    """

    out: float | None
    back: float | None
    both: float | None
    slows_compute: float | None

    def applied_to(self, machine: Machine) -> Machine:
        """The machine with what was measured in place of what its file or probe says."""
        fast, slow = (tier.name for tier in machine.tiers[:2])
        links = []
        for link in machine.links:
            rate = {(fast, slow): self.out, (slow, fast): self.back}.get((link.source, link.target))
            if rate is not None:
                link = replace(link, bytes_per_s=max(1, round(rate)), bytes_per_s_spread=0)
            if {link.source, link.target} == {fast, slow} and self.slows_compute is not None:
                link = replace(link, slows_compute=self.slows_compute)
            links.append(link)
        shared = {link.shares for link in links if {link.source, link.target} == {fast, slow}}
        groups = tuple(
            replace(group, bytes_per_s=max(1, round(self.both)), bytes_per_s_spread=0)
            if group.name in shared and self.both is not None
            else group
            for group in machine.groups
        )
        return replace(machine, links=tuple(links), groups=groups)


def rates(recording: Recording, trace: Trace) -> Rates:
    """Of a step that did what ``trace`` shows, and moved storages meanwhile."""
    lanes, begin, end = recording.span_lane, recording.span_begin_ns, recording.span_end_ns
    first_two = (recording.span_source <= 1) & (recording.span_target <= 1)
    moves = (lanes <= Lane.BACK) & first_two & (end > begin)
    nbytes = recording.nbytes[recording.span_storage[moves]]
    lanes, begin, end = lanes[moves], begin[moves], end[moves]
    edges = np.unique(np.concatenate([begin, end]))
    if len(edges) < 2:
        return Rates(None, None, None, None)
    width = np.diff(edges).astype(float)
    busy, moved = np.zeros((2, len(width))), np.zeros((2, len(width)))
    for lane in (Lane.OUT, Lane.BACK):
        own = lanes == lane
        speed = nbytes[own] / (end[own] - begin[own])
        busy[lane] = _sums(edges, begin[own], end[own], np.ones(int(own.sum())))
        moved[lane] = _sums(edges, begin[own], end[own], speed) * width
    out, back = busy[Lane.OUT] > 0, busy[Lane.BACK] > 0

    def rate(when: "NDArray[np.bool_]", *ways: int) -> float | None:
        time_ns = float(width[when].sum())
        return sum(float(moved[way][when].sum()) for way in ways) / time_ns * 1e9 if time_ns >= _ENOUGH_NS else None

    slows = _slowdown(recording, trace, edges, out.astype(float) + back)
    both = rate(out & back, Lane.OUT, Lane.BACK)
    return Rates(rate(out & ~back, Lane.OUT), rate(back & ~out, Lane.BACK), both, slows)


def _sums(edges: Floats, begin: Floats, end: Floats, values: Floats) -> Floats:
    """Sum, in each interval between two edges, of the values whose [begin, end) covers it."""
    change = np.zeros(len(edges))
    np.add.at(change, np.searchsorted(edges, begin), values)
    np.add.at(change, np.searchsorted(edges, end), -values)
    return np.maximum(np.cumsum(change)[:-1], 0.0)


def _slowdown(recording: Recording, trace: Trace, edges: Floats, links: Floats) -> float | None:
    """From the operations beside copies and those alone, each against its own time in the trace.

    Their ratio leaves out what slows both alike: another program, a lower clock.
    """
    begins = np.append(recording.tick_begin_ns, recording.time_ns).astype(float)
    took = own_ns(recording)
    alone_ns = np.array([tick.time_ns for tick in trace.ticks], dtype=float)
    covered = np.concatenate([[0.0], np.cumsum(links * np.diff(edges))])
    beside = np.diff(np.interp(begins, edges, covered)) / np.maximum(np.diff(begins), 1.0)  # links busy on average
    quiet, busy = beside < 0.1, beside >= 0.5
    total = float(alone_ns.sum())
    if min(alone_ns[quiet].sum(), alone_ns[busy].sum()) < max(_ENOUGH_SHARE * total, 1.0):
        return None
    ratio = (took[busy].sum() / alone_ns[busy].sum()) / max(took[quiet].sum() / alone_ns[quiet].sum(), 1e-9)
    return float(np.clip((ratio - 1.0) / np.average(beside[busy], weights=alone_ns[busy]), 0.0, 1.0))
