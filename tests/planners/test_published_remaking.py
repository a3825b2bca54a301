"""The published planners that make contents anew: what they remake, and their promises on random steps."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.errors import InfeasibleBudgetError
from ebbtide.ir.check import check_plan
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.plan import PlanStatus
from ebbtide.ir.remakes import Chosen, remade, remakes_of, split, together
from ebbtide.ir.trace import Phase, Storage, StorageKind, Tick, Trace
from ebbtide.planners import BUILT_IN, plan
from ebbtide.planners.base import page_size_of
from ebbtide.planners.published.checkmate import checkmate
from ebbtide.simulator import simulate_plan
from ebbtide.units import MIB
from tests.helpers.make_remakes import halved, made_steps, repeating, step_of
from tests.helpers.make_steps import R, W, budget_at, disk, network

REMAKING = ("capuchin", "checkmate", "chen")
NO_SLOW_TIER = replace(disk(), tiers=disk().tiers[:1], links=())


def with_phases(trace: Trace) -> Trace:
    """The first half is the forward pass."""
    half = len(trace.ticks) // 2
    phases = np.array([Phase.FORWARD] * half + [Phase.BACKWARD] * (len(trace.ticks) - half), dtype=object)
    return replace(trace, ticks=replace(trace.ticks, phase=phases))


def chain(length: int) -> Trace:
    """Each forward operation makes 1 MiB from the one before; the backward ones read all in reverse."""
    forward = [Tick(1000, "aten::mul", phase=Phase.FORWARD, repeats=True)] * length
    ticks = [*forward, *[Tick(2000, "aten::mul", phase=Phase.BACKWARD)] * length]
    rows = [Storage(MIB, StorageKind.ACTIVATION, at, 2 * length - at, allocation=0, maker=at) for at in range(length)]
    written, read = ([(at, at, W) for at in range(length)], [(at, at + 1, R) for at in range(length - 1)])
    return step_of(ticks, rows, [*written, *read, *((at, 2 * length - 1 - at, R) for at in range(length))])


def anew(name: str, trace: Trace, machine: Machine, budget_bytes: int) -> dict[int, int]:
    """The tick at which each storage is made anew."""
    chosen = remade(plan(name, trace, machine, budget_bytes).stays, trace)
    return {int(remakes_of(trace).storage[row]): tick for row, tick in chosen}


def test_a_chain_needs_little_more_than_twice_the_root_of_its_length() -> None:
    """Two of three are made anew, both when the later one is needed. The step holds four ends and a segment of two."""
    trace = chain(16)
    made = plan("chen", trace, NO_SLOW_TIER, 6 * MIB)
    expected = {0: 30, 1: 30, 3: 27, 4: 27, 6: 24, 7: 24, 9: 21, 10: 21, 12: 18, 13: 18}
    assert anew("chen", trace, NO_SLOW_TIER, 6 * MIB) == expected
    assert made.predicted_ns == trace.step_ns + 1000 * len(expected)
    with pytest.raises(InfeasibleBudgetError, match=r"smallest budget that can work is 6\.00 MiB"):
        plan("chen", trace, NO_SLOW_TIER, 6 * MIB - 1)


def test_pieces_are_made_anew_together() -> None:
    trace = halved(chain(16))
    found = anew("chen", trace, NO_SLOW_TIER, 6 * MIB)
    assert len(found) == 20
    assert all(found[number ^ 1] == tick for number, tick in found.items())


def test_what_exceeds_the_budget_then_is_moved() -> None:
    trace, machine = chain(16), disk()
    made = plan("chen", trace, machine, 5 * MIB)
    assert len(remade(made.stays, trace)) == 10
    assert {stay.tier for stay in made.stays} == {"dram", "file"}


def ways_of(trace: Trace) -> Iterator[Chosen]:
    """All remakes that are possible together, at any of their ticks."""
    remakes = remakes_of(trace)
    pairs = zip(remakes.gone.tolist(), remakes.until.tolist(), strict=True)
    ticks = [[None, *range(gone + 1, until), until] for gone, until in pairs]
    for each in product(*ticks):
        chosen = tuple((row, tick) for row, tick in enumerate(each) if tick is not None)
        if together(remakes.chosen(chosen)):
            yield chosen


def test_checkmate_finds_the_least_that_runs_again_in_each_budget() -> None:
    trace = chain(5)
    best = dict[int, int]()
    for way in ways_of(trace):
        made = split(trace, way).trace
        level = peak(live_bytes(made)) // MIB
        best[level] = min(made.step_ns, best.get(level, made.step_ns))
    assert min(best) == 3
    for budget in range(3, 6):
        least = min(step_ns for level, step_ns in best.items() if level <= budget)
        assert plan("checkmate", trace, NO_SLOW_TIER, budget * MIB).predicted_ns == least
    with pytest.raises(InfeasibleBudgetError):
        plan("checkmate", trace, NO_SLOW_TIER, 3 * MIB - 1)


def test_checkmate_computes_no_more_than_chen_where_both_only_make_anew() -> None:
    trace = chain(16)
    spent = {name: plan(name, trace, NO_SLOW_TIER, 8 * MIB).predicted_ns for name in ("checkmate", "chen")}
    assert trace.step_ns < spent["checkmate"] <= spent["chen"]


def test_checkmate_out_of_time_keeps_the_budget_all_the_same() -> None:
    trace = chain(16)
    made = checkmate(trace, disk(), 8 * MIB, time_limit_s=0.0)
    assert made.status is PlanStatus.STOPPED
    assert check_plan(made, trace, disk().with_budget(8 * MIB), page_size_of(disk())) == ()


@pytest.mark.parametrize("name", REMAKING)
def test_a_step_that_fits_is_left_as_it_is(name: str) -> None:
    trace = chain(16)
    assert anew(name, trace, disk(), 16 * MIB) == {}
    assert plan(name, trace, disk(), 16 * MIB).predicted_ns == trace.step_ns


def test_capuchin_remakes_only_what_its_swaps_cannot_hide() -> None:
    """The first storages are idle for longest. A MiB takes 16 forward operations each way, or half of one."""
    trace, budget = chain(16), 12 * MIB
    assert anew("capuchin", trace, disk(10**13, 10**13), budget) == {}
    slow = anew("capuchin", trace, disk(10**8, 10**8), budget)
    some = plan("capuchin", trace, disk(10**11, 10**11), budget)
    assert len(slow) >= 4
    assert {stay.storage for stay in some.stays if stay.tier == "file"} >= {0}
    assert 0 < len(remade(some.stays, trace)) < len(slow)


def test_they_are_candidates_of_ours() -> None:
    trace = with_phases(repeating(network(layers=8, width_bytes=2**20)))
    for rate, share in product((10**8, 10**9, 10**10), (0.3, 0.6)):
        machine = disk(rate, rate)
        budget = budget_at(trace, share, page_size_of(machine))
        ours = plan("ebbtide", trace, machine, budget)
        for name in REMAKING:
            theirs = plan(name, trace, machine, budget)
            assert remade(theirs.stays, trace) or rate == 10**10, name
            assert ours.predicted_ns <= theirs.predicted_ns, name


@pytest.mark.parametrize("name", REMAKING)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    trace=made_steps(),
    read=st.sampled_from([10**8, 10**9, 10**11]),
    exclusive=st.booleans(),
    share=st.sampled_from([0.0, 0.1, 0.3, 0.6, 0.9]),
)
@pytest.mark.slow
def test_they_keep_every_promise(name: str, trace: Trace, read: int, exclusive: bool, share: float) -> None:
    rows = trace.storages
    trace = with_phases(replace(trace, storages=replace(rows, nbytes=16 * rows.nbytes)))
    machine = replace(disk(read, read), exclusive=exclusive)
    pages = page_size_of(machine)
    with pytest.raises(InfeasibleBudgetError) as caught:
        BUILT_IN[name](trace, machine, -1)
    budget = max(budget_at(trace, share, pages), caught.value.minimum_bytes)
    bounded = machine.with_budget(budget)
    found = BUILT_IN[name](trace, machine, budget)
    assert found.status is not PlanStatus.OVER_BUDGET
    assert check_plan(found, trace, bounded, pages) == ()
    assert found.lower_bound_ns <= simulate_plan(found, trace, bounded, pages).step_ns == found.predicted_ns
    assert replace(BUILT_IN[name](trace, machine, budget), plan_ns=0) == replace(found, plan_ns=0)
