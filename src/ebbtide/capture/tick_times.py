"""The time of each tick by itself, from several recorded steps that are alike.

One step alone does not show it. The first after the warm-up touches memory for the first time. A later one has copies
beside it, and any has other programs beside it. So the cost of copies, as the machine states it, is taken off. Then the
lower median of a tick's times counts: one step of three may be slow throughout. Only the first two tiers count, as the
runtime has them.

Left out: where within a tick its stall lay. Copies count as beside all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ebbtide.ir.base import Floats, Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.native import Lane
from ebbtide.ir.recording import Recording
from ebbtide.ir.trace import Trace

Column: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class TickTimes:
    """One step by tick: ns without stalls, and the shares of the tick in which a copy out, or back, was under way.

    It takes twelve bytes a tick, since a training process keeps several steps.
    """

    took_ns: Column
    beside_out: Column
    beside_back: Column

    @staticmethod
    def of(recording: Recording) -> "TickTimes":
        beside = (busy_shares(recording, lane).astype(np.float32) for lane in (Lane.OUT, Lane.BACK))
        return TickTimes(own_ns(recording).astype(np.float32), *beside)

    def alone_ns(self, machine: Machine) -> Floats:
        """Return times without the cost of copies. As in the simulator, a busy link makes an operation longer by a
        share."""
        fast, slow = (tier.name for tier in machine.tiers[:2])
        out, back = machine.link(fast, slow), machine.link(slow, fast)
        slower = np.ones(len(self.took_ns))
        for link, beside in ((out, self.beside_out), (back, self.beside_back)):
            slower += beside * (0.0 if link is None else link.slows_compute)
        return self.took_ns / slower


def typical_ns(steps: Sequence[TickTimes], machine: Machine) -> Ints:
    """Return each tick's time alone: the lower median over ``steps``, which MUST have the same ticks."""
    rows = np.sort([step.alone_ns(machine) for step in steps], axis=0)
    typical: Ints = rows[(len(rows) - 1) // 2].round().astype(np.int64)
    return typical


def with_times(trace: Trace, times_ns: Ints) -> Trace:
    """Return the same step with other times of its ticks."""
    return replace(trace, ticks=replace(trace.ticks, time_ns=times_ns))


def own_ns(recording: Recording) -> Ints:
    """Return the times from each tick's beginning to the next one's, less the stalls between them."""
    begins = np.append(recording.tick_begin_ns, recording.time_ns)
    stalls = np.append(recording.tick_stalled_ns, recording.stalled_ns)
    times: Ints = np.maximum(np.diff(begins) - np.diff(stalls), 0) if len(begins) > 1 else np.zeros(0, dtype=np.int64)
    return times


def busy_shares(recording: Recording, lane: Lane) -> Floats:
    """Return the share of each tick, stalls included, in which at least one copy of the lane was under way."""
    own = (recording.span_lane == lane) & (recording.span_source <= 1) & (recording.span_target <= 1)
    begin, end = recording.span_begin_ns[own], recording.span_end_ns[own]
    edges = np.unique(np.concatenate([[0], begin, end]))
    opened = np.zeros(len(edges), dtype=np.int64)
    np.add.at(opened, np.searchsorted(edges, begin), 1)
    np.subtract.at(opened, np.searchsorted(edges, end), 1)
    busy_until = np.append(0, np.cumsum(np.diff(edges) * (np.cumsum(opened)[:-1] > 0)))
    begins = np.append(recording.tick_begin_ns, recording.time_ns)
    shares: Floats = np.diff(np.interp(begins, edges, busy_until)) / np.maximum(np.diff(begins), 1)
    return shares
