"""The analysis: a step whose every figure was computed by hand, and random steps against stupid oracles."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.analysis.columns import common_root, modules_of
from ebbtide.analysis.curves import bandwidth_curve, break_even_bytes_per_s, mean_freed_bytes, moves_curve
from ebbtide.analysis.explain import Explainer
from ebbtide.analysis.explain_plan import PlanView
from ebbtide.analysis.intervals import QUANTILES, distributions_of, histogram_of, module_patterns
from ebbtide.analysis.memory import Idleness, contents_at, memory_of, peak_of
from ebbtide.analysis.summary import analyze, to_json
from ebbtide.analysis.swapping import Route, assumed_route, candidates_of, route_of
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Tier
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import StorageKind, Trace
from tests.helpers.make_analysis import (
    GRADIENT,
    MOMENTUM,
    OUT_A,
    OUT_B,
    SCRATCH,
    WEIGHT_A,
    WEIGHT_B,
    Slots,
    by_hand,
    instances,
    large,
    route,
    used_at,
)
from tests.helpers.make_ir import planned, timelines, traces

# Out at 2 bytes a ns after 10 ns, back at 4 bytes a ns after 5 ns.
ROUTE = Route("slow", Link("fast", "slow", 2 * 10**9, 10), Link("slow", "fast", 4 * 10**9, 5), shared=False)


def test_memory_by_hand() -> None:
    memory = memory_of(by_hand())
    assert memory.by_kind[StorageKind.ACTIVATION].tolist() == [256, 768, 768, 768, 0, 0]
    assert memory.mean(memory.live) == 1399  # 1,468,800 byte ns over 1050 ns
    assert memory.mean(memory.idle_bytes) == 494  # 518,400


def test_the_peak_by_hand() -> None:
    peak = peak_of(by_hand())
    assert (peak.tick, peak.time_ns, peak.nbytes, peak.operator, peak.module) == (2, 300, 2112, "loss", "")
    found = [(row.storage, row.operator, row.module, row.age_ns, row.idle_ns) for row in peak.residents]
    assert found == [
        (SCRATCH, "loss", "", 0, 0),
        (OUT_B, "mm", "net.b", 200, 0),
        (OUT_A, "embed", "net.a", 300, 400),
        (WEIGHT_B, "", "net.b", None, 400),
        (MOMENTUM, "", "net.b", None, 1000),  # its module is that of the weight of its size, used beside it
        (WEIGHT_A, "", "net.a", None, 900),
    ]
    assert [(row.label, row.nbytes, row.count) for row in peak.by_module()] == [
        ("", 1024, 1),
        ("net.b", 768, 3),
        ("net.a", 320, 2),
    ]
    assert [(row.label, row.nbytes) for row in peak.by_kind()] == [
        ("other", 1024),
        ("activation", 768),
        ("parameter", 192),
        ("optimizer_state", 128),
    ]
    # At tick 0 the gradient of the step before is still there: 500 ns old, and with no further use.
    gradient = next(row for row in contents_at(by_hand(), 0).residents if row.storage == GRADIENT)
    assert (gradient.age_ns, gradient.idle_ns, gradient.count) == (1050 - 700, None, 1)


def test_intervals_by_hand() -> None:
    found = distributions_of(by_hand())
    # Weight A: 900, 0. Weight B: 400, 100, 100. Momentum: 1000. A: 0, 400. B: 0. The gradient: 100.
    assert QUANTILES == (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
    assert (found.overall.count, found.overall.quantiles_ns) == (10, (0, 0, 100, 400, 900, 1000))
    total = 64 * 900 + 128 * (400 + 100 + 100) + 128 * 1000 + 256 * 400 + 128 * 100
    assert found.overall.byte_seconds == pytest.approx(total / 1e9)
    assert found.overall.top_share == pytest.approx(128_000 / total)  # a hundredth of ten is one: the momentum's
    assert [(row.label, row.count, row.longest_ns) for row in found.by_kind] == [
        ("parameter", 5, 900),
        ("optimizer_state", 1, 1000),
        ("activation", 3, 400),
        ("gradient", 1, 100),
    ]
    assert [(row.label, row.count) for row in found.by_module] == [("net.b", 6), ("net.a", 4)]
    histogram = histogram_of(by_hand())
    assert histogram.edges_ns.tolist() == [0, 1000, 1778]
    assert histogram.count.tolist() == [9, 1]
    assert histogram.nbytes.tolist() == [2 * 64 + 3 * 128 + 2 * 256 + 512 + 128, 128]


def test_moving_by_hand() -> None:
    trace = by_hand()
    found = candidates_of(trace, ROUTE)
    best = list(zip(found.storage[:4].tolist(), found.after[:4].tolist(), found.until[:4].tolist(), strict=True))
    assert best == [(MOMENTUM, 5, 11), (OUT_A, 1, 3), (WEIGHT_A, 0, 5), (WEIGHT_B, 1, 3)]
    # Copies take 10 + n / 2 and 5 + n / 4 ns: 111 for 128 bytes, which the three intervals of 100 ns lack.
    assert found.out_ns[:4].tolist() == [74, 138, 42, 74]
    assert found.back_ns[:4].tolist() == [37, 69, 21, 37]
    assert found.alone.tolist() == [True] * 4 + [False] * 6
    assert found.queued.tolist() == [True] * 4 + [False] * 6
    # Momentum: out in tick 0 of the next step (6), back in its tick 4 (10). Tick 2 is all that A and weight B have, and
    # takes both: 138 + 74 ns out and 69 + 37 back within 400. Weight A: out in tick 1, back in tick 4.
    assert list(zip(found.gone[:4].tolist(), found.back[:4].tolist(), strict=True)) == [(7, 10), (3, 3), (2, 4), (3, 3)]
    assert np.flatnonzero(found.outlier).tolist() == [0]
    curve = [(point.moves, point.moved_bytes, point.peak_bytes) for point in moves_curve(trace, found)]
    assert curve == [(0, 0, 2112), (1, 128, 1984), (2, 384, 1984), (3, 448, 1920), (4, 576, 1920)]
    freed = 128 * (1000 - 111) + 256 * (400 - 207) + 64 * (900 - 63) + 128 * (400 - 111)
    assert mean_freed_bytes(trace, found, found.alone) == round(freed / 1050)
    assert break_even_bytes_per_s(128, 100, ROUTE) == -(-2 * 128 * 10**9 // 85)
    assert ROUTE.most_bytes(100) == 113  # 85 ns at 0.75 ns a byte


def test_json_has_the_figures() -> None:
    analysis = analyze(by_hand(), ROUTE, "by hand", Origin.ASSUMED)
    found = to_json(analysis)
    assert (found["format"], found["version"], found["step_ns"]) == ("ebbtide-analysis", 2, 1050)
    assert found["memory"]["live"] == [704, 1216, 2112, 1216, 448, 448]
    assert found["memory"]["mean_idle_bytes"]["between_uses"] == round((256 + 2 * 192 + 4 * 576 + 2 * 192 + 448) / 10.5)
    assert found["peak"]["by_kind"][0] == {"label": "other", "nbytes": 1024, "count": 1}
    assert found["waiting"]["distributions"]["overall"]["quantiles_ns"] == [0, 0, 100, 400, 900, 1000]
    assert found["swapping"]["candidates"]["queued"] == [True] * 4 + [False] * 6
    assert found["swapping"]["curve"][-1] == {"moves": 4, "moved_bytes": 576, "peak_bytes": 1920}
    assert analysis.swapping is not None
    assert analysis.swapping.outlier_share == pytest.approx(128_000 / 377_600)


@settings(max_examples=150, deadline=None)
@given(traces(longest_life=3))
def test_memory_is_what_a_walk_finds(trace: Trace) -> None:
    n_ticks = len(trace.ticks)
    live, used = [0] * n_ticks, [0] * n_ticks
    idle: dict[Idleness, list[int]] = {reason: [0] * n_ticks for reason in Idleness}
    contents: list[dict[int, int]] = [defaultdict(int) for _ in range(n_ticks)]
    for number, birth, death in instances(trace):
        storage = trace.storages[number]
        ticks = trace.accesses.tick[trace.accesses.of(number)].tolist()
        for tick in range(max(birth, 0), min(death, n_ticks)):
            at = tick - birth + storage.birth
            live[tick] += storage.nbytes
            contents[tick][number] += storage.nbytes
            if used_at(trace, number, at):
                used[tick] += storage.nbytes
            elif not ticks:
                idle[Idleness.NEVER_USED][tick] += storage.nbytes
            elif storage.persistent or ticks[0] < at < ticks[-1]:
                idle[Idleness.BETWEEN_USES][tick] += storage.nbytes
            else:
                reason = Idleness.BEFORE_FIRST_USE if at < ticks[0] else Idleness.AFTER_LAST_USE
                idle[reason][tick] += storage.nbytes
    memory = memory_of(trace)
    assert (memory.live.tolist(), memory.used.tolist()) == (live, used)
    assert {reason: level.tolist() for reason, level in memory.idle.items()} == idle
    assert np.array_equal(sum(memory.by_kind.values()), memory.live)
    assert np.array_equal(sum(memory.idle.values()), memory.idle_bytes)
    for tick in range(n_ticks):
        found = contents_at(trace, tick)
        assert {row.storage: row.nbytes for row in found.residents} == contents[tick]
        assert found.nbytes == live[tick]
    assert peak_of(trace).nbytes == max(live)


@settings(max_examples=100, deadline=None)
@given(traces(longest_life=3))
def test_the_idle_time_around_a_tick_is_what_a_walk_finds(trace: Trace) -> None:
    n_ticks = len(trace.ticks)
    for tick in range(n_ticks):
        for row in contents_at(trace, tick).residents:
            storage = trace.storages[row.storage]
            at = tick if storage.persistent or tick >= storage.birth else tick + n_ticks  # of the youngest
            ticks = trace.accesses.tick[trace.accesses.of(row.storage)].tolist()
            if storage.persistent:
                ticks = [use + step for step in (-n_ticks, 0, n_ticks) for use in ticks]
            else:
                ticks = sorted({storage.birth, *ticks})
                assert row.age_ns == trace.start_ns(np.array(at)) - trace.start_ns(np.array(storage.birth))
            around = [pair for pair in pairwise(ticks) if pair[0] < at < pair[1]]
            if used_at(trace, row.storage, at):
                assert row.idle_ns == 0
            elif not around:
                assert row.idle_ns is None
            else:
                after, until = around[0]
                assert row.idle_ns == trace.start_ns(np.array(until)) - trace.start_ns(np.array(after + 1))


@settings(max_examples=150, deadline=None)
@given(traces(longest_life=3), st.integers(20, 400), st.integers(20, 400), st.booleans())
def test_the_queue_is_what_slots_of_a_nanosecond_give(trace: Trace, out: int, back: int, shared: bool) -> None:
    way = route(out, back, shared)
    found = candidates_of(trace, way)
    weights = found.nbytes * found.idle_ns
    assert all(np.diff(weights) <= 0)
    slots = Slots(trace, shared)
    for row in range(len(found)):
        out_ns, back_ns = 2 + -(-1000 * int(found.nbytes[row]) // out), 1 + -(-1000 * int(found.nbytes[row]) // back)
        assert (found.out_ns[row], found.back_ns[row]) == (out_ns, back_ns)
        assert found.alone[row] == (out_ns + back_ns <= found.idle_ns[row])
        low, high = int(found.after[row]) + 1, int(found.until[row])
        booked = slots.book(low, high, out_ns, back_ns) if found.alone[row] else None
        assert found.queued[row] == (booked is not None)
        assert (found.gone[row], found.back[row]) == (booked or (low, low))


@settings(max_examples=100, deadline=None)
@given(traces(longest_life=2))
def test_the_curve_is_what_taking_bytes_away_gives(trace: Trace) -> None:
    found = candidates_of(trace, route(400, 400, shared=False))
    level = memory_of(trace).live.tolist()
    rows = np.flatnonzero(found.queued).tolist()
    points = moves_curve(trace, found)
    assert [point.moves for point in points] == list(range(len(rows) + 1))
    moved = 0
    for point, row in zip(points, [None, *rows], strict=True):
        if row is not None:
            moved += int(found.nbytes[row])
            for tick in range(int(found.gone[row]), int(found.back[row])):
                level[tick % len(level)] -= int(found.nbytes[row])
        assert (point.moved_bytes, point.peak_bytes) == (moved, max(level))
    assert min(level) >= 0


@settings(max_examples=80, deadline=None)
@given(planned(longest_life=1), st.data())
def test_gaps_of_a_plan_are_the_ticks_without_room(case: tuple[Trace, Plan], data: st.DataObject) -> None:
    trace, plan = case
    n_ticks, view = len(trace.ticks), PlanView(trace, plan, "dram")
    timeline = data.draw(timelines().filter(lambda timeline: timeline.fits(trace)))
    explainer = Explainer(trace, route(400, 400, shared=False), "made up", plan, timeline)
    assert explainer.at_peak()
    for number, storage in enumerate(trace.storages):
        stays = [stay for stay in plan.stays if stay.storage == number]
        gaps = list(view.gaps(number))
        fast = [stay for stay in stays if stay.tier == "dram"]
        if fast:  # else its home is elsewhere, and it does not move
            there = {tick for stay in fast for tick in range(stay.start, stay.stop)}
            life = range(storage.birth, storage.death)
            if storage.persistent:
                there = {tick % n_ticks for tick in there}
            away = [tick for gap in gaps for tick in range(gap.gone, storage.death if gap.back is None else gap.back)]
            assert len(set(away)) == len(away)
            expected = set(life) - there
            assert {tick % n_ticks for tick in away} == expected if storage.persistent else set(away) == expected
        for gap in gaps:
            if gap.written is not None:
                assert gap.written[0] < gap.written[1] <= gap.gone
        assert len(explainer.storage(number)) > 2


def test_names() -> None:
    names = ["net.h.12", "net.h.12.mlp.3", "net.h.2.mlp", "conv1.x2"]
    assert list(map(module_patterns(names).get, names)) == ["net.h.*", "net.h.*.mlp.3", "net.h.*.mlp", "conv1.x2"]
    assert common_root(["net.a.x", "net.a.y", ""]) == "net.a."
    assert common_root(["net.a", "net.a.x"]) == "net."
    assert common_root([]) == ""
    assert common_root(["train.py:12 forward", "train.py:40"]) == ""
    assert modules_of(by_hand()) == ["net.a", "net.b", "net.b", "net.a", "net.b", "net.b", ""]


def test_a_route_takes_turns_when_its_group_is_slower_than_both_directions() -> None:
    def machine(limit: int) -> Machine:
        links = tuple(Link(*way, 10**9, shares="bus") for way in (("a", "c"), ("c", "a"), ("a", "b")))
        tiers = (Tier("a", InPlace.ALL), Tier("b", InPlace.NOTHING), Tier("c", InPlace.NOTHING))
        return Machine("three", Origin.ASSUMED, tiers, links, (LinkGroup("bus", limit),))

    assert route_of(machine(10**9)) == route_of(machine(10**9), "c")
    assert route_of(machine(10**9)).shared
    assert not route_of(machine(2 * 10**9)).shared
    assert route_of(machine(10**9), "b") is None  # there is no way back


@pytest.mark.slow
def test_a_large_trace_is_analysed_whole() -> None:
    trace = large()
    n_ticks, n_storages, n_uses = len(trace.ticks), len(trace.storages), 10
    assert len(trace.accesses) == 200_000
    analysis = analyze(trace, assumed_route(10**10))
    assert analysis.swapping is not None
    # Every use is followed by another but the last of those that die.
    n_intervals = n_storages * n_uses - n_storages * 3 // 4
    assert analysis.waiting.distributions.overall.count == n_intervals == len(analysis.swapping.candidates)
    assert int(analysis.waiting.histogram.count.sum()) == n_intervals
    assert sum(row.count for row in analysis.waiting.distributions.by_module) == n_intervals
    found = analysis.swapping.candidates
    assert not np.any(found.queued & ~found.alone)
    assert int(found.queued.sum()) > 100
    out_ns = int(found.out_ns[found.queued].sum())
    assert out_ns <= trace.step_ns
    assert n_ticks == len(analysis.memory.live)
    assert analysis.peak.nbytes == int(analysis.memory.live.max())
    more = [point.queued_bytes for point in bandwidth_curve(by_hand())]
    assert more == sorted(more)
