"""What a step's moves tell of the machine, against steps made by known rates."""

from dataclasses import replace

import numpy as np
import pytest

from ebbtide.capture.rates import Pace, Rates, rates
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Tier
from ebbtide.ir.native import Lane, Verb
from ebbtide.ir.recording import Recording
from ebbtide.ir.timeline import COMPUTE_LANE
from ebbtide.ir.trace import Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace
from ebbtide.simulator import simulate
from tests.helpers.make_recording import recording
from tests.helpers.schedules import Begin, Command, schedule_of

OUT, BACK, STALL = Lane.OUT, Lane.BACK, Lane.STALL_LATE
MS = 1_000_000
NOTHING = np.zeros(0, dtype=np.int64)
MACHINE = Machine(
    "probed",
    Origin.MEASURED,
    (Tier("dram", InPlace.ALL), Tier("file", InPlace.NOTHING)),
    (
        Link("dram", "file", 7, 5, shares="disk", slows_compute=0.5),
        Link("file", "dram", 9, 5, shares="disk", slows_compute=0.5),
    ),
    (LinkGroup("disk", 11),),
)


def step(
    ticks: list[tuple[int, int]], spans: list[tuple[int, int, int, int]], stalled: tuple[int, ...] = ()
) -> tuple[Recording, Trace]:
    """``ticks``: ms in the trace and now; ``spans``: lane, bytes, begin and end in ms; stalls by tick in ms."""
    now = np.array([took for _, took in ticks]) * MS
    stalls = np.array([*stalled, *[0] * (len(ticks) - len(stalled))]) * MS
    seen = recording(
        time_ns=int(now.sum()),
        stalled_ns=int(stalls.sum()),
        tick_begin_ns=np.concatenate([[0], np.cumsum(now)[:-1]]),
        tick_stalled_ns=np.concatenate([[0], np.cumsum(stalls)[:-1]]),
        nbytes=[max(nbytes, 1) for _, nbytes, _, _ in spans],  # a stall has none
        span_storage=np.arange(len(spans)),
        span_lane=[lane for lane, _, _, _ in spans],
        span_begin_ns=[begin * MS for _, _, begin, _ in spans],
        span_end_ns=[end * MS for _, _, _, end in spans],
    )
    accesses = Accesses(NOTHING, NOTHING, NOTHING)
    rows = Ticks.from_rows(Tick(alone * MS, "op") for alone, _ in ticks)
    trace = Trace("t", Origin.MEASURED, rows, Storages.from_rows(()), accesses)
    return seen, trace


def test_rates_out_back_and_both_ways_at_once() -> None:
    spans = [(OUT, 3000, 0, 300), (BACK, 1000, 200, 300), (BACK, 800, 300, 400), (STALL, 0, 0, 400)]
    found = rates(*step([(400, 400)], spans))
    assert found.out is not None
    assert found.back is not None
    assert found.out.bytes_per_s == pytest.approx(2000 / 0.2)  # while it was alone
    assert found.back.bytes_per_s == pytest.approx(800 / 0.1)
    assert found.both == pytest.approx((1000 + 1000) / 0.1)
    assert found.slows_compute is None  # no operation ran alone


def test_two_at_once_the_same_way_are_one_link() -> None:
    found = rates(*step([(100, 100)], [(OUT, 500, 0, 100), (OUT, 500, 0, 100)]))
    assert found.out == Pace(pytest.approx(1000 / 0.1), 0.0)


def one_by_one(way: int, sizes: list[int], latency_ms: int, bytes_per_ms: int) -> list[tuple[int, int, int, int]]:
    """Copies in a row."""
    ends = np.cumsum([latency_ms + nbytes // bytes_per_ms for nbytes in sizes]).tolist()
    return [(way, nbytes, begin, end) for nbytes, begin, end in zip(sizes, [0, *ends], ends, strict=False)]


def test_a_latency_is_told_apart_from_a_rate_by_copies_of_different_sizes() -> None:
    spans = one_by_one(OUT, [100, 400, 200, 800, 100, 600, 300, 200], latency_ms=7, bytes_per_ms=100)
    out = rates(*step([(200, 200)], spans)).out
    assert out == Pace(pytest.approx(100 * 1000), pytest.approx(7 * MS))


@pytest.mark.parametrize("sizes", [[300] * 10, [100, 800, 300]], ids=["alike", "few"])
def test_copies_that_tell_no_latency_have_all_that_they_took_in_their_rate(sizes: list[int]) -> None:
    spans = one_by_one(OUT, sizes, latency_ms=7, bytes_per_ms=100)
    out = rates(*step([(200, 200)], spans)).out
    assert out == Pace(pytest.approx(sum(sizes) / spans[-1][3] * 1000), 0.0)


def test_a_latency_that_two_threads_hide_from_each_other_is_half_as_long() -> None:
    sizes = [100, 400, 200, 800, 100, 600, 300, 200]
    spans = one_by_one(OUT, sizes, latency_ms=7, bytes_per_ms=50)
    out = rates(*step([(200, 200)], spans + spans)).out
    assert out == Pace(pytest.approx(100 * 1000), pytest.approx(3.5 * MS))


def test_copies_of_a_simulated_machine_tell_its_latencies_and_rates() -> None:
    """Both ways at once for half of the time, each with a latency in which the other way goes on alone."""
    out = Link("dram", "file", 4 * 10**9, 200_000, shares="disk")
    back = Link("file", "dram", 3 * 10**9, 300_000, shares="disk")
    machine = replace(MACHINE, links=(out, back), groups=(LinkGroup("disk", 5 * 10**9),))
    random, rows, commands = np.random.default_rng(7), list[Storage](), list[Command]()
    for tick, ways in enumerate([(OUT,), (BACK,), (OUT, BACK)]):
        for way in ways * 150:
            ends = ("dram", "file") if way == OUT else ("file", "dram")
            commands.append(Command(Verb.EVICT if way == OUT else Verb.FETCH, len(rows), *ends, tick, tick))
            nbytes = int(random.integers(10**5, 4 * 10**6))
            rows.append(Storage(nbytes, StorageKind.PARAMETER, 0, 3, persistent=True))
    ticks = (Tick(1000 * MS, "op"),) * 3  # so long that all copies are over before the next
    nothing = Accesses(NOTHING, NOTHING, NOTHING)
    copied = Trace("copies", Origin.ASSUMED, Ticks.from_rows(ticks), Storages.from_rows(rows), nothing)
    begins = [Begin(row.storage, "file") for row in commands if row.verb is Verb.FETCH]
    found_spans = simulate(schedule_of(commands, machine, begins), copied, machine, n_steps=1, record=True).spans
    spans = [
        (OUT if row.lane == out.name else BACK, row.nbytes, row.start_ns, row.stop_ns)
        for row in found_spans
        if row.lane != COMPUTE_LANE
    ]
    assert len(spans) == 600
    seen, trace = step([(1, 1)], spans)
    ends_ns = seen.span_end_ns // MS
    seen = replace(seen, time_ns=int(ends_ns.max()), span_begin_ns=seen.span_begin_ns // MS, span_end_ns=ends_ns)
    found = rates(seen, trace)
    for pace, link in ((found.out, out), (found.back, back)):
        assert pace is not None
        assert pace.latency_ns == pytest.approx(link.latency_ns, rel=0.02)
        assert pace.bytes_per_s == pytest.approx(link.bytes_per_s, rel=0.02)
    assert found.both == pytest.approx(5 * 10**9, rel=0.1)


def test_what_copies_cost_the_operations_beside_them() -> None:
    # Everything takes twice as long today; beside one link another 20 %, beside two another 40 %. A stall is no cost.
    ticks = [(100, 200), (100, 240), (100, 280 + 70)]
    spans = [(OUT, 1, 200, 790), (BACK, 1, 440, 790)]
    found = rates(*step(ticks, spans, stalled=(0, 0, 70)))
    assert found.slows_compute == pytest.approx(0.2)


@pytest.mark.parametrize("spans", [[], [(OUT, 1000, 0, 1)], [(STALL, 0, 0, 100)]])
def test_too_little_tells_nothing_and_changes_nothing(spans: list[tuple[int, int, int, int]]) -> None:
    found = rates(*step([(100, 100), (100, 100)], spans))
    assert found == Rates(None, None, None, None)
    assert found.applied_to(MACHINE) == MACHINE


def test_a_machine_takes_what_was_measured_and_keeps_the_rest() -> None:
    machine = Rates(Pace(100.0, 3.2), None, 120.0, 0.25).applied_to(MACHINE)
    out, back = machine.links
    assert (out.bytes_per_s, out.latency_ns, out.slows_compute) == (100, 3, 0.25)
    assert (back.bytes_per_s, back.latency_ns, back.slows_compute) == (9, 5, 0.25)
    assert machine.groups == (LinkGroup("disk", 120),)
    assert machine.tiers == MACHINE.tiers
