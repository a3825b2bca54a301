"""Measures the machine by a step's own moves: the time of a copy, and what copies cost the operations beside them.

A probe measures a machine at another moment, under another load, and with other operations beside it. The moves of a
planned step are the very ones that the next plan is about. Left out: all but the first two tiers.

A copy takes a latency, then its bytes at a rate, as in the simulator. Where several share a lane, each is charged its
part of the time. So what threads of the lane hide from each other is hidden in the latency too.
"""

from dataclasses import dataclass, replace

import numpy as np

from ebbtide.capture.tick_times import own_ns
from ebbtide.ir.base import Floats
from ebbtide.ir.machine import Machine
from ebbtide.ir.native import Lane
from ebbtide.ir.recording import Recording
from ebbtide.ir.trace import Trace

_ENOUGH_NS = 10_000_000  # the least time of copying one way for which its rate is believed
_ENOUGH_COPIES = 8  # the least number for which a latency is told apart from a rate
_ENOUGH_SHARE = 0.1  # the least share of operations, both beside copies and alone, for a slowdown
_MOST_LATENCY = 0.9  # the highest share of copies' time, so that bytes cost something


@dataclass(frozen=True, slots=True)
class Pace:
    """A copy of n bytes takes ``latency_ns`` and then n at ``bytes_per_s``. The latency is 0 where copies are too few
    or too alike to tell it apart. Then the rate includes it."""

    bytes_per_s: float
    latency_ns: float


@dataclass(frozen=True, slots=True)
class Rates:
    """The pace of copies out and back while the other link was idle, and the bytes per second of both together.

    ``slows_compute`` is how much longer operations took per busy link. A field is None where the step showed too little
    of it.
    """

    out: Pace | None
    back: Pace | None
    both: float | None
    slows_compute: float | None

    def applied_to(self, machine: Machine) -> Machine:
        """Replace the figures of the machine's file or probe by the measured ones."""
        fast, slow = (tier.name for tier in machine.tiers[:2])
        links = []
        for link in machine.links:
            pace = {(fast, slow): self.out, (slow, fast): self.back}.get((link.source, link.target))
            if pace is not None:
                link = replace(
                    link,
                    bytes_per_s=max(1, round(pace.bytes_per_s)),
                    latency_ns=round(pace.latency_ns),
                )
            if {link.source, link.target} == {fast, slow} and self.slows_compute is not None:
                link = replace(link, slows_compute=self.slows_compute)
            links.append(link)
        shared = {link.shares for link in links if {link.source, link.target} == {fast, slow}}
        groups = tuple(
            replace(group, bytes_per_s=max(1, round(self.both)))
            if group.name in shared and self.both is not None
            else group
            for group in machine.groups
        )
        return replace(machine, links=tuple(links), groups=groups)


def rates(recording: Recording, trace: Trace) -> Rates:
    """Measure a step that did what ``trace`` shows and moved storages meanwhile."""
    lanes, begin, end = recording.span_lane, recording.span_begin_ns, recording.span_end_ns
    first_two = (recording.span_source <= 1) & (recording.span_target <= 1)
    moves = (lanes <= Lane.BACK) & first_two & (end > begin)
    nbytes = recording.nbytes[recording.span_storage[moves]].astype(float)
    lanes, begin, end = lanes[moves], begin[moves], end[moves]
    edges = np.unique(np.concatenate([begin, end]))
    if len(edges) < 2:
        return Rates(None, None, None, None)
    outward, inward = (_at_once(edges, begin[lanes == lane], end[lanes == lane]) for lane in (Lane.OUT, Lane.BACK))

    def way(lane: Lane, mine: Floats, other: Floats) -> _Way:
        own = lanes == lane
        part = np.divide(1.0, mine, out=np.zeros_like(mine), where=mine > 0)
        took = _during(edges, part, begin[own], end[own])
        return _Way(nbytes[own], took, _during(edges, part * (other == 0), begin[own], end[own]))

    ways = way(Lane.OUT, outward, inward), way(Lane.BACK, inward, outward)
    out, back = (each.pace() for each in ways)
    beside_ns = float(np.diff(edges)[(outward > 0) & (inward > 0)].sum())
    links = (outward > 0).astype(float) + (inward > 0)
    return Rates(out, back, _both(ways, out, back, beside_ns), _slowdown(recording, trace, edges, links))


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """The copies of one lane, the time charged to each, and the part of it while the other lane was idle."""

    nbytes: Floats
    took_ns: Floats
    alone_ns: Floats

    def pace(self) -> Pace | None:
        """Fit by least squares each copy's part alone, then scale so that all copies take as long as they did."""
        if self.alone_ns.sum() < _ENOUGH_NS:
            return None
        share = self.alone_ns / self.took_ns
        copies, moved, alone = share.sum(), float(share @ self.nbytes), self.alone_ns.sum()
        mean = moved / copies
        latency = 0.0
        if copies >= _ENOUGH_COPIES and float(share @ (self.nbytes - mean) ** 2) > 0.01 * copies * mean**2:
            fitted, *_ = np.linalg.lstsq(np.stack([share, share * self.nbytes / mean], 1), self.alone_ns, rcond=None)
            latency = float(np.clip(fitted[0], 0.0, _MOST_LATENCY * alone / copies))
        return Pace(float(moved / (alone - latency * copies) * 1e9), latency)

    def beside(self) -> tuple[float, float]:
        """Return the copies and bytes while the other lane was busy too."""
        share = 1 - self.alone_ns / self.took_ns
        return float(share.sum()), float(share @ self.nbytes)


def _both(ways: tuple[_Way, _Way], out: Pace | None, back: Pace | None, time_ns: float) -> float | None:
    """Return bytes per second while neither link was in its latency. In the rest of the time one link ran alone."""
    if time_ns < _ENOUGH_NS:
        return None
    moved, idle, alone = 0.0, list[float](), list[float]()
    for way, pace in zip(ways, (out, back), strict=True):
        copies, nbytes = way.beside()
        moved += nbytes
        idle.append(min(copies * pace.latency_ns / time_ns, _MOST_LATENCY) if pace is not None else 0.0)
        alone.append(pace.bytes_per_s if pace is not None else 0.0)
    flowing = (1 - idle[0]) * (1 - idle[1])
    by_one = (1 - idle[0]) * idle[1] * alone[0] + (1 - idle[1]) * idle[0] * alone[1]
    return max(moved / time_ns * 1e9 - by_one, moved / time_ns * 1e9 * flowing) / flowing


def _at_once(edges: Floats, begin: Floats, end: Floats) -> Floats:
    """Count how many of [begin, end) cover each interval between two edges."""
    change = np.zeros(len(edges))
    np.add.at(change, np.searchsorted(edges, begin), 1.0)
    np.add.at(change, np.searchsorted(edges, end), -1.0)
    counts: Floats = np.cumsum(change)[:-1]
    return counts


def _during(edges: Floats, density: Floats, begin: Floats, end: Floats) -> Floats:
    """Integrate a density over each [begin, end). The density holds one value between each two edges."""
    total = np.concatenate([[0.0], np.cumsum(density * np.diff(edges))])
    found: Floats = total[np.searchsorted(edges, end)] - total[np.searchsorted(edges, begin)]
    return found


def _slowdown(recording: Recording, trace: Trace, edges: Floats, links: Floats) -> float | None:
    """Compare operations beside copies with those alone, each against its own time in the trace.

    The ratio of the two leaves out what slows both alike: another program, a lower clock.
    """
    begins = np.append(recording.tick_begin_ns, recording.time_ns).astype(float)
    took = own_ns(recording)
    alone_ns = trace.ticks.time_ns.astype(float)
    covered = np.concatenate([[0.0], np.cumsum(links * np.diff(edges))])
    beside = np.diff(np.interp(begins, edges, covered)) / np.maximum(np.diff(begins), 1.0)  # links busy on average
    quiet, busy = beside < 0.1, beside >= 0.5
    total = float(alone_ns.sum())
    if min(alone_ns[quiet].sum(), alone_ns[busy].sum()) < max(_ENOUGH_SHARE * total, 1.0):
        return None
    ratio = (took[busy].sum() / alone_ns[busy].sum()) / max(took[quiet].sum() / alone_ns[quiet].sum(), 1e-9)
    return float(np.clip((ratio - 1.0) / np.average(beside[busy], weights=alone_ns[busy]), 0.0, 1.0))
