"""What ticks typically take, against steps that were made of known times."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ebbtide.capture.tick_times import TickTimes, busy_shares, own_ns, typical_ns, with_times
from ebbtide.ir.machine import Machine
from ebbtide.ir.native import Lane
from ebbtide.ir.recording import Recording
from tests.helpers.make_recording import recording
from tests.helpers.make_steps import disk, network

MS = 1_000_000


def step(took_ms: Sequence[int], spans: Sequence[tuple[Lane, int, int]] = (), stalled: Sequence[int] = ()) -> Recording:
    """``spans``: lane, begin and end in ms; stalls by tick in ms, which are part of the ticks."""
    stalls = np.array([*stalled, *[0] * (len(took_ms) - len(stalled))]) * MS
    ends = np.cumsum(took_ms) * MS
    return recording(
        time_ns=int(ends[-1]),
        stalled_ns=int(stalls.sum()),
        tick_begin_ns=[0, *ends[:-1]],
        tick_stalled_ns=[0, *np.cumsum(stalls)[:-1]],
        nbytes=[1],
        span_storage=[0] * len(spans),
        span_lane=[lane for lane, _, _ in spans],
        span_begin_ns=[begin * MS for _, begin, _ in spans],
        span_end_ns=[end * MS for _, _, end in spans],
    )


def slowing(out: float, back: float) -> Machine:
    machine = disk()
    links = (replace(machine.links[0], slows_compute=out), replace(machine.links[1], slows_compute=back))
    return replace(machine, links=links)


def typical_ms(*steps: Recording, machine: Machine) -> list[float]:
    return [took / MS for took in typical_ns([TickTimes.of(each) for each in steps], machine).tolist()]


def test_stalls_are_none_of_a_ticks_own_time() -> None:
    assert own_ns(step([10, 30], stalled=[0, 20])).tolist() == [10 * MS, 10 * MS]


def test_neither_a_step_that_was_slow_throughout_nor_one_slow_tick_counts() -> None:
    slow_first, later, disturbed = step([50, 80, 90]), step([10, 20, 30]), step([11, 21, 300])
    assert typical_ms(slow_first, later, disturbed, machine=disk()) == [11, 21, 90]
    assert typical_ms(slow_first, later, disturbed, later, machine=disk()) == [10, 20, 30]
    assert typical_ms(slow_first, later, machine=disk()) == [10, 20, 30]  # of two, the faster


def test_copies_that_overlap_are_one_busy_link() -> None:
    seen = step([10, 10, 10], [(Lane.OUT, 5, 12), (Lane.OUT, 8, 15), (Lane.OUT, 29, 99), (Lane.BACK, 0, 30)])
    assert busy_shares(seen, Lane.OUT).tolist() == pytest.approx([0.5, 0.5, 0.1])
    assert busy_shares(seen, Lane.BACK).tolist() == pytest.approx([1, 1, 1])
    assert busy_shares(step([10]), Lane.OUT).tolist() == [0]


def test_what_copies_cost_is_taken_off_as_the_simulator_adds_it() -> None:
    beside = step([120, 150, 110], [(Lane.OUT, 0, 270), (Lane.BACK, 120, 270), (Lane.OUT, 270, 325)])
    assert typical_ms(beside, machine=slowing(0.2, 0.3)) == pytest.approx([100, 100, 100])
    assert typical_ms(beside, machine=disk()) == [120, 150, 110]


def test_a_trace_with_other_times_is_of_the_same_step() -> None:
    trace = network()
    times = np.arange(len(trace.ticks))
    other = with_times(trace, times)
    assert [tick.time_ns for tick in other.ticks] == times.tolist()
    assert other.signature() == trace.signature()
