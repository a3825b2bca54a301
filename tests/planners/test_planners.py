"""Planners: every promise kept on random steps, times against brute force, bounds that hold, errors that help."""

import pickle
from dataclasses import replace
from itertools import combinations, count

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ebbtide.errors import InfeasibleBudgetError, PlanError, SettingError, TiersTooSmallError
from ebbtide.ir.check import check_plan, require_valid
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import arena_pages, live_bytes, needed_bytes, occupancy, peak
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.trace import Access, Storage, StorageKind, Storages, Trace
from ebbtide.pipeline.trials import try_policy
from ebbtide.planners import PLANNERS, plan
from ebbtide.planners.ebbtide import ebbtide
from ebbtide.planners.search import timing
from ebbtide.planners.search.idle_table import idle_table
from ebbtide.simulator.lowering import lower
from ebbtide.units import MIB, format_time
from tests.helpers.make_steps import (
    DISK,
    PAGE,
    R,
    W,
    budget_at,
    disk,
    least_and_most,
    network,
    page_traces,
    parameter,
    simulated,
    step,
    three_tiers,
)


@settings(max_examples=150, deadline=None)
@given(page_traces(tenants=True), st.floats(0, 1))
@pytest.mark.slow
def test_ebbtide_keeps_every_promise(trace: Trace, share: float) -> None:
    budget = budget_at(trace, share)
    found = ebbtide(trace, DISK, budget)
    assert check_plan(found, trace, DISK.with_budget(budget), arena_pages) == ()
    assert found.lower_bound_ns <= simulated(found, trace, DISK).step_ns == found.predicted_ns
    assert replace(ebbtide(trace, DISK, budget), plan_ns=0) == replace(found, plan_ns=0)


@settings(max_examples=100, deadline=None)
@given(page_traces(), st.floats(0, 1))
def test_tiertrain_moves_activations_alone_and_says_if_the_budget_is_not_kept(trace: Trace, share: float) -> None:
    trace = replace(trace, storages=Storages.from_rows(replace(row, nbytes=row.nbytes * 32) for row in trace.storages))
    budget = budget_at(trace, share)
    found = plan("tiertrain", trace, DISK, budget)
    level = peak(occupancy(trace, found.stays, ["dram"], arena_pages)["dram"])
    assert (found.status is PlanStatus.OVER_BUDGET) == (level > budget)
    for stay in found.stays:
        assert stay.tier == "dram" or trace.storages[stay.storage].kind is StorageKind.ACTIVATION
    assert found.lower_bound_ns <= found.predicted_ns


# ---- times -----------------------------------------------------------------------------------------------------------


def brute_force_ns(trace: Trace, machine: Machine, budget: int) -> int:
    """The fastest plan of all sets of intervals, each with the copies in as early as ``lead`` ticks before need."""
    rows = idle_table(trace)
    live = live_bytes(trace, arena_pages)
    still = timing.still_stays(trace)
    best = 10**18
    for size in range(len(rows) + 1):
        for chosen in combinations(range(len(rows)), size):
            for lead in range(len(trace.ticks)):
                moves = []
                for row in chosen:
                    gone, until = int(rows.after[row]) + 1, int(rows.until[row])
                    back = max(gone, until - lead) if rows.returns[row] else until
                    moves.append(timing.Move(row, "file", gone, gone, gone, back))
                if any(move.gone == move.back for move in moves):
                    break
                stays = timing.stays_of(trace, rows, moves, still, machine)
                if int(occupancy(trace, stays, ["dram"], arena_pages)["dram"].max()) > budget:
                    break
                found = Plan("all", PlanStatus.FEASIBLE, trace.signature(), budget, 10**18, 0, 0, tuple(stays))
                require_valid(found, trace, machine.with_budget(budget), arena_pages)
                best = min(best, simulated(found, trace, machine).step_ns)
    assert int(live.max()) > budget or best == trace.step_ns
    return best


def uses_all(trace: Trace) -> bool:
    """No persistent storage is never used: those lie elsewhere for free, which brute force does not know."""
    used = set(trace.accesses.storage.tolist())
    return all(number in used for number, row in enumerate(trace.storages) if row.persistent)


RATIOS: list[float] = []


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(page_traces(most_ticks=7, most_storages=4), st.floats(0, 0.9))
@pytest.mark.slow
def test_brute_force_is_hardly_faster(trace: Trace, share: float) -> None:
    assume(uses_all(trace) and 1 <= len(idle_table(trace)) <= 6)
    budget = budget_at(trace, share)
    best = brute_force_ns(trace, DISK, budget)
    ours = ebbtide(trace, DISK, budget).predicted_ns
    RATIOS.append(ours / max(best, 1))
    assert ours <= 1.3 * best + 2


@pytest.mark.slow
def test_brute_force_is_mostly_equalled() -> None:
    if not RATIOS:
        pytest.skip("follows the test above")
    assert np.mean(np.array(RATIOS) <= 1.001) >= 0.8, sorted(RATIOS)[-10:]


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6])
@pytest.mark.slow
def test_a_network_needs_far_less_memory_for_little_time(share: float) -> None:
    trace = network(layers=8)
    budget = budget_at(trace, share)
    found = plan("ebbtide", trace, disk(2 * 10**9, 4 * 10**9, 5 * 10**9), budget)
    assert found.predicted_ns <= 1.25 * found.lower_bound_ns
    moved = {stay.storage for stay in found.stays if stay.tier == "file"}
    assert {trace.storages[number].kind for number in moved} > {StorageKind.OPTIMIZER_STATE}


def test_clean_storages_are_not_written() -> None:
    n_ticks = 6
    trace = step(
        [10**6] * n_ticks,
        [parameter(4 * PAGE, n_ticks)] * 3,
        [(number, tick, R) for number in range(3) for tick in (number, number + 3)],
    )
    assert simulated(ebbtide(trace, DISK, 4 * PAGE), trace, DISK).moved_bytes == {"file->dram": 6 * 4 * PAGE}


def test_contents_that_are_final_are_written_while_they_are_read() -> None:
    """A parameter is written at tick 0 and read until tick 2; a block born at tick 3 needs its room."""
    block = Storage(400 * PAGE, StorageKind.ACTIVATION, 3, 4)
    times = [10**7] * 6
    trace = step(times, [parameter(400 * PAGE, 6), block], [(0, 0, W), (0, 2, R), (1, 3, W)])
    found = ebbtide(trace, disk(), 400 * PAGE)
    written = next(stay for stay in found.stays if stay.tier == "file")
    assert written.start == 1
    assert found.predicted_ns == found.lower_bound_ns == trace.step_ns


def test_a_full_slow_tier_sends_the_rest_to_the_next() -> None:
    trace = network(layers=6)
    least, most = least_and_most(trace)
    machine = three_tiers((most - least) // 2)
    found = plan("ebbtide", trace, machine, least)
    assert {stay.tier for stay in found.stays} == {"gpu", "host", "ssd"}
    assert plan("tiertrain", trace, machine, most).status is not PlanStatus.OVER_BUDGET
    small = replace(machine, tiers=(*machine.tiers[:2], replace(machine.tiers[2], capacity_bytes=PAGE)))
    with pytest.raises(TiersTooSmallError, match=r"the tiers are too small.* in whole pages") as refused:
        plan("ebbtide", trace, small, least)
    works = refused.value.minimum_bytes
    assert works == most - (most - least) // 2 - PAGE
    with pytest.raises(TiersTooSmallError):
        plan("ebbtide", trace, small, works - 1)
    refusal = pickle.loads(pickle.dumps(refused.value))
    assert (str(refusal), refusal.exit_code) == (str(refused.value), 3)
    assert try_policy("ebbtide", trace, small, least).why_not == str(refusal)


# ---- budgets and names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ebbtide", "tiertrain"])
def test_an_impossible_budget_names_the_least_and_who_needs_it(name: str) -> None:
    trace = network()
    needed = needed_bytes(trace, arena_pages)
    least, tick = int(needed.max()), int(needed.argmax())
    when = format_time(int(trace.start_ns(np.array([tick]))[0]) / 1e9)
    says = rf"op{tick} \({when} into the step\) needs .* The smallest budget"
    with pytest.raises(InfeasibleBudgetError, match=says) as caught:
        plan(name, trace, DISK, least - 1)
    assert (caught.value.minimum_bytes, caught.value.operator, caught.value.tick) == (least, f"op{tick}", tick)
    assert plan(name, trace, DISK, least).budget_bytes == least


def test_resident_needs_the_whole_peak() -> None:
    trace = network()
    most = peak(live_bytes(trace, arena_pages))
    found = plan("resident", trace, DISK, most)
    assert (found.predicted_ns, found.status) == (trace.step_ns, PlanStatus.OPTIMAL)
    assert len(lower(found, trace, DISK)) == 0
    with pytest.raises(InfeasibleBudgetError) as caught:
        plan("resident", trace, DISK, most - 1)
    assert caught.value.minimum_bytes == most


def test_without_a_slow_tier_everything_stays() -> None:
    trace = network()
    alone = Machine("no disk", DISK.origin, DISK.tiers[:1])
    most = peak(live_bytes(trace, arena_pages))
    assert plan("ebbtide", trace, alone, most).predicted_ns == trace.step_ns
    with pytest.raises(InfeasibleBudgetError):
        plan("ebbtide", trace, alone, most - 1)


def test_what_is_never_used_takes_no_room() -> None:
    trace = step([1000] * 2, [parameter(9 * PAGE, 2), parameter(PAGE, 2)], [(1, 0, R)])
    assert plan("ebbtide", trace, DISK, PAGE).predicted_ns == trace.step_ns


def test_an_unknown_planner_is_named_with_those_that_exist() -> None:
    with pytest.raises(SettingError, match=r"'best'; there are 10cache, .* ebbtide, .* zero-infinity$"):
        plan("best", network(), DISK, 10**9)
    assert sorted(PLANNERS) == list(PLANNERS)


def test_a_planner_that_breaks_a_promise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
        right = ebbtide(trace, machine, budget_bytes)
        return replace(right, stays=right.stays[1:])

    monkeypatch.setattr("ebbtide.planners.PLANNERS", {"broken": broken})
    with pytest.raises(PlanError, match="no valid replica"):
        plan("broken", network(), DISK, 10**9)


@pytest.mark.slow
def test_a_time_limit_gives_the_first_plan_and_says_so() -> None:
    trace = network()
    found = ebbtide(trace, disk(10**8, 10**8), budget_at(trace, 0.1), time_limit_s=0.0)
    assert found.status is PlanStatus.STOPPED
    require_valid(found, trace, DISK.with_budget(found.budget_bytes), arena_pages)
    assert ebbtide(trace, disk(10**8, 10**8), found.budget_bytes).predicted_ns <= found.predicted_ns


def test_a_search_that_seldom_gets_a_cpu_is_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, machine = network(), disk(10**8, 10**8)
    budget = budget_at(trace, 0.1)
    undisturbed, hours = ebbtide(trace, machine, budget), count(10**18, 3600 * 10**9)
    for module in ("rivals", "search.move_search"):
        monkeypatch.setattr(f"ebbtide.planners.{module}.perf_counter_ns", lambda: next(hours), raising=False)
    assert ebbtide(trace, machine, budget).stays == undisturbed.stays
    assert undisturbed.status is not PlanStatus.STOPPED


def test_room_is_counted_in_the_pages_of_the_arena() -> None:
    sizes = {1: PAGE, 2 * MIB: 2 * MIB, 7 * MIB: 2 * MIB, 31 * MIB + 1: 2 * MIB, 7 * MIB + 900 * 1024: 2 * MIB}
    sizes |= {5 * MIB: 2 * MIB, 2**22 + 1: PAGE, 3 * MIB: PAGE}
    assert {nbytes: arena_pages(nbytes) for nbytes in sizes} == sizes


def test_a_storage_is_written_once_between_two_writes() -> None:
    """Used at ticks 0 (written), 2 and 4: two intervals, one write."""
    other = [Storage(8 * PAGE, StorageKind.ACTIVATION, tick, tick + 1) for tick in (1, 3)]
    accesses = [(0, 0, int(Access.WRITE)), (0, 2, R), (0, 4, R), (1, 1, W), (2, 3, W)]
    trace = step([10**6] * 5, [parameter(8 * PAGE, 5), *other], accesses)
    moved = simulated(ebbtide(trace, DISK, 8 * PAGE), trace, DISK).moved_bytes
    assert moved == {"dram->file": 8 * PAGE, "file->dram": 2 * 8 * PAGE}


@pytest.mark.parametrize("name", PLANNERS)
def test_a_budget_above_the_tiers_capacity_is_that_capacity(name: str) -> None:
    """Planners planned for the budget, and the checker refused what they made."""
    trace, machine = network(layers=4, width_bytes=2**20), disk()
    most = peak(live_bytes(trace, arena_pages))
    small = replace(machine, tiers=(replace(machine.tiers[0], capacity_bytes=most * 9 // 10), *machine.tiers[1:]))
    made = []
    for budget_bytes in (most * 9 // 10, most):
        try:
            made.append(replace(plan(name, trace, small, budget_bytes), plan_ns=0))
        except InfeasibleBudgetError as error:
            made.append(str(error))
    assert made[0] == made[1]
