"""The published planners: promises on random steps and machines, brute force, time-outs, errors."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.errors import InfeasibleBudgetError
from ebbtide.ir.check import check_plan
from ebbtide.ir.machine import Compute, InPlace, Machine
from ebbtide.ir.occupancy import arena_pages, live_bytes, peak
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.trace import Storage, StorageKind, Storages, Ticks, Trace
from ebbtide.planners import BUILT_IN, plan
from ebbtide.planners.published.autotm import autotm_async, autotm_static, autotm_sync
from ebbtide.planners.published.autotm_flow import Gadgets, Life, stays_of_life
from ebbtide.planners.published.autotm_placement import Flow, step_of
from ebbtide.planners.published.solver import Outcome, Program
from ebbtide.planners.published.ten_cache import buffers, ten_cache
from ebbtide.planners.published.tm_training import tm_training
from ebbtide.planners.published.zero_infinity import DEPTH
from ebbtide.planners.search.make_plan import pair_of
from tests.helpers.make_steps import (
    DISK,
    PAGE,
    R,
    W,
    budget_at,
    disk,
    network,
    page_traces,
    parameter,
    simulated,
    step,
    three_tiers,
)

KINDS = (StorageKind.PARAMETER, StorageKind.OPTIMIZER_STATE, StorageKind.GRADIENT, StorageKind.ACTIVATION)
PUBLISHED = sorted(set(BUILT_IN) - {"ebbtide", "resident", "tiertrain"})
KIND_BOUND = {"10cache", "zero-infinity", "autotm-static"}
"""Planners that do not move everything that may be moved, so that they may need more than others."""


def in_place(kind: InPlace, overlap: float = 0.0) -> Machine:
    """Operations reach 4 GB/s in fast memory, 1 (reading) and 0.5 (writing) in the slow tier."""
    fast, slow = DISK.tiers
    slow = replace(slow, in_place=kind, bytes_per_s=10**9, write_bytes_per_s=5 * 10**8)
    fast = replace(fast, bytes_per_s=4 * 10**9)
    return replace(DISK, tiers=(fast, slow), groups=DISK.groups, compute=Compute(overlap=overlap))


MACHINES = {
    "disk": DISK,
    "reads in place": in_place(InPlace.READS),
    "all in place": in_place(InPlace.ALL, overlap=0.5),
    "exclusive": replace(DISK, exclusive=True),
    "three tiers": three_tiers(100 * PAGE),
    "three tiers, host full": three_tiers(3 * PAGE),
}


def moved(found: Plan, trace: Trace, machine: Machine) -> dict[str, int]:
    return simulated(found, trace, machine).moved_bytes


def least_for(name: str, trace: Trace, machine: Machine) -> int:
    """The least budget that a planner says it needs, 0 for one that takes any."""
    with pytest.raises(InfeasibleBudgetError) as caught:
        BUILT_IN[name](trace, machine, -1)
    return caught.value.minimum_bytes


@st.composite
def labelled(draw: st.DrawFn) -> Trace:
    """Random steps with storages of all kinds and operations of two modules; some lie on pages of different sizes."""
    trace, larger = draw(page_traces(tenants=True)), draw(st.sampled_from([1, 452]))
    storages = tuple(
        replace(
            row,
            kind=draw(st.sampled_from(KINDS)),
            nbytes=row.nbytes * larger,
            packed_bytes=None if row.packed_bytes is None else row.packed_bytes * larger,
        )
        for row in trace.storages
    )
    ticks = tuple(
        replace(tick, module=draw(st.sampled_from("ab")), time_ns=tick.time_ns * larger) for tick in trace.ticks
    )
    return replace(trace, storages=Storages.from_rows(storages), ticks=Ticks.from_rows(ticks))


@pytest.mark.parametrize("name", PUBLISHED)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(trace=labelled(), share=st.floats(0, 1), which=st.sampled_from(sorted(MACHINES)))
@pytest.mark.slow
def test_every_planner_keeps_every_promise(name: str, trace: Trace, share: float, which: str) -> None:
    machine, budget = MACHINES[which], budget_at(trace, share)
    if name in KIND_BOUND:
        budget = max(budget, least_for(name, trace, machine))
    found = BUILT_IN[name](trace, machine, budget)
    assert found.planner == name
    over = found.status is PlanStatus.OVER_BUDGET
    assert not over or name == "ati-outliers"
    assert check_plan(found, trace, machine if over else machine.with_budget(budget), arena_pages) == ()
    if not over:
        assert found.lower_bound_ns <= simulated(found, trace, machine).step_ns == found.predicted_ns
    again = BUILT_IN[name](trace, machine, budget)
    assert replace(again, plan_ns=0) == replace(found, plan_ns=0)


# ---- brute force -----------------------------------------------------------------------------------------------------

Places = tuple[bool, ...]
"""For each tick of a storage's life, whether it is in the fast tier."""


def uses_of(trace: Trace, number: int) -> dict[int, int]:
    rows, storage = trace.accesses.of(number), trace.storages[number]
    uses = dict(zip(trace.accesses.tick[rows].tolist(), trace.accesses.mode[rows].tolist(), strict=True))
    return uses if storage.persistent else {**uses, storage.birth: uses.get(storage.birth, 0) | W}


def places_of(trace: Trace, machine: Machine, number: int) -> Iterator[Places]:
    """All ways to place a storage that operations can work with, moved only beside one that uses it."""
    storage, uses, allowed = trace.storages[number], uses_of(trace, number), machine.tiers[1].in_place
    life = range(storage.birth, storage.death)
    if storage.persistent and not uses:
        yield tuple(False for _ in life)
        return
    for places in product((True, False), repeat=len(life)):
        at = dict(zip(life, places, strict=True))
        if any(not at[tick] and not (allowed.writes if mode & W else allowed.reads) for tick, mode in uses.items()):
            continue
        pairs = [*pairwise(life), *([(life[-1], life[0])] if storage.persistent else [])]
        if all(at[a] == at[b] or (a in uses if at[a] else b in uses) for a, b in pairs):
            yield places


def moving_ns(trace: Trace, machine: Machine, number: int, places: Places) -> float:
    """Of reads into the fast tier, and of writes out of it where the contents are nowhere else."""
    storage, uses = trace.storages[number], uses_of(trace, number)
    at = dict(zip(range(storage.birth, storage.death), places, strict=True))
    outward, inward = machine.links
    total, clean, rounds = 0.0, False, 2 if storage.persistent else 1
    clean = storage.persistent and not any(mode & W for mode in uses.values())
    was: bool | None = at[storage.death - 1] if storage.persistent else None
    for turn in range(rounds):  # in the first round a persistent storage comes to its steady state
        total = 0.0
        for tick in range(storage.birth, storage.death):
            if was is False and at[tick]:
                total += inward.latency_ns + storage.nbytes * 1e9 / inward.bytes_per_s
                clean = True
            if was is True and not at[tick]:
                total += 0.0 if clean else outward.latency_ns + storage.nbytes * 1e9 / outward.bytes_per_s
                clean = True
            if uses.get(tick, 0) & W:
                clean = not at[tick]
            was = at[tick]
        assert turn < rounds
    return total


def step_ns(trace: Trace, machine: Machine, placed: Sequence[Places]) -> float:
    """AutoTM's objective without asynchronous moves: operations with their operands where they are, and moves."""
    n_ticks, slow = len(trace.ticks), machine.tiers[1].name
    extra, read, written = np.zeros(n_ticks), np.zeros(n_ticks), np.zeros(n_ticks)
    total = 0.0
    for number, places in enumerate(placed):
        storage = trace.storages[number]
        total += moving_ns(trace, machine, number, places)
        for tick, mode in uses_of(trace, number).items():
            nbytes = (storage.nbytes if mode & R else 0, storage.nbytes if mode & W else 0)
            read[tick % n_ticks] += nbytes[0]
            written[tick % n_ticks] += nbytes[1]
            if not places[tick - storage.birth]:
                extra[tick % n_ticks] += machine.in_place_ns(slow, *nbytes)
    for tick, row in enumerate(trace.ticks):
        total += machine.tick_ns(row.time_ns, int(read[tick]), int(written[tick]), float(extra[tick]))
    return total


def level_of(trace: Trace, number: int, places: Places) -> np.ndarray:
    level = np.zeros(len(trace.ticks), dtype=np.int64)
    for tick, is_fast in enumerate(places, trace.storages[number].birth):
        level[tick % len(level)] += trace.storages[number].nbytes * is_fast
    return level


def places_in(found: Plan, trace: Trace, fast: str) -> list[Places]:
    n_ticks, placed = len(trace.ticks), []
    for number, storage in enumerate(trace.storages):
        mine = [stay for stay in found.stays if stay.storage == number and stay.tier == fast]
        shifts = (0, n_ticks) if storage.persistent else (0,)
        life = range(storage.birth, storage.death)
        placed.append(tuple(any(s.start <= tick + by < s.stop for s in mine for by in shifts) for tick in life))
    return placed


@st.composite
def tiny(draw: st.DrawFn) -> Trace:
    """Up to three storages and five ticks, every birth a write and every storage used."""
    n_ticks = draw(st.integers(2, 5))
    storages: list[Storage] = []
    accesses: list[tuple[int, int, int]] = []
    for number in range(draw(st.integers(1, 3))):
        nbytes = PAGE * draw(st.integers(1, 4))
        storage = parameter(nbytes, n_ticks)
        if draw(st.booleans()):
            birth = draw(st.integers(0, n_ticks - 1))
            storage = Storage(nbytes, StorageKind.ACTIVATION, birth, birth + draw(st.integers(1, n_ticks)))
            accesses.append((number, birth, W))
        storages.append(storage)
        life = st.integers(storage.birth + (not storage.persistent), storage.death - 1)
        if storage.persistent or storage.death > storage.birth + 1:
            used = draw(st.dictionaries(life, st.sampled_from([R, W, R | W]), max_size=4))
            accesses += [(number, tick, mode) for tick, mode in used.items()]
    return step(draw(st.lists(st.integers(0, 20_000), min_size=n_ticks, max_size=n_ticks)), storages, accesses)


@pytest.mark.parametrize("planner", [autotm_sync, autotm_static])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(trace=tiny(), share=st.floats(0, 1), which=st.sampled_from(["disk", "reads in place", "all in place"]))
def test_no_placement_beats_the_integer_program(
    planner: Callable[[Trace, Machine, int], Plan], trace: Trace, share: float, which: str
) -> None:
    machine, budget = MACHINES[which], budget_at(trace, share)
    ways = [list(places_of(trace, machine, number)) for number in range(len(trace.storages))]
    if planner is autotm_static:
        ways = [[places for places in mine if len(set(places)) == 1] for mine in ways]
    levels = [[level_of(trace, number, places) for places in mine] for number, mine in enumerate(ways)]
    best, least = float("inf"), 2**62
    for chosen in product(*(range(len(mine)) for mine in ways)):
        level = int(sum(levels[number][at] for number, at in enumerate(chosen)).max())
        least = min(least, level)
        if level <= budget:
            best = min(best, step_ns(trace, machine, [ways[number][at] for number, at in enumerate(chosen)]))
    if best == float("inf"):
        with pytest.raises(InfeasibleBudgetError) as caught:
            planner(trace, machine, budget)
        assert caught.value.minimum_bytes == least
        return
    ours = step_ns(trace, machine, places_in(planner(trace, machine, budget), trace, "dram"))
    assert ours <= best * (1 + 2e-4) + 1


# ---- what each method is about ---------------------------------------------------------------------------------------


def hidden_copy() -> Trace:
    """An activation is written at tick 0 and read at tick 4; ticks 1 and 3 are long; at tick 2 its room is needed."""
    storages = [Storage(400 * PAGE, StorageKind.ACTIVATION, 0, 5), Storage(400 * PAGE, StorageKind.ACTIVATION, 2, 3)]
    return step([1000, 10**7, 1000, 10**7, 1000], storages, [(0, 0, W), (0, 4, R), (1, 2, W)])


def test_asynchronous_moves_hide_beside_operations() -> None:
    trace, budget = hidden_copy(), 400 * PAGE
    waits, hides = autotm_sync(trace, disk(), budget), autotm_async(trace, disk(), budget)
    assert hides.predicted_ns == trace.step_ns
    assert waits.predicted_ns > 1.05 * trace.step_ns
    assert [(stay.start, stay.valid_from) for stay in hides.stays if stay.tier == "file"] == [(1, 2)]


def test_moves_that_are_too_slow_beside_operations_are_waited_for() -> None:
    trace, budget = hidden_copy(), 400 * PAGE
    slow = replace(disk(), links=tuple(replace(link, beside_bytes_per_s=10**6) for link in disk().links))
    assert autotm_async(trace, slow, budget).stays == autotm_sync(trace, slow, budget).stays


def test_static_placement_uses_the_slow_tier_in_place_and_never_moves() -> None:
    trace = network()
    machine = in_place(InPlace.ALL)
    found = autotm_static(trace, machine, budget_at(trace, 0.2))
    assert moved(found, trace, machine) == {}
    assert len(found.stays) == len(trace.storages)
    assert trace.step_ns < found.predicted_ns
    sync = autotm_sync(trace, machine, found.budget_bytes)
    assert sync.predicted_ns <= found.predicted_ns * 1.001


def passes(n_parameters: int, nbytes: int) -> Trace:
    """Forward and backward over equal parameters, an operation for each."""
    n_ticks = 2 * n_parameters
    storages = [parameter(nbytes, n_ticks) for _ in range(n_parameters)]
    accesses = [(number, tick, R) for number in range(n_parameters) for tick in (number, n_ticks - 1 - number)]
    trace = step([10**6] * n_ticks, storages, accesses)
    return replace(trace, ticks=Ticks.from_rows(replace(tick, module=f"m{at}") for at, tick in enumerate(trace.ticks)))


def test_10cache_loads_what_any_policy_must() -> None:
    """With room for C of P bytes at least 2 (P - C) are loaded in a step; the sliding window loads no more, but for
    one buffer at each turn."""
    n_parameters, nbytes = 40, 10 * PAGE
    trace, machine = passes(n_parameters, nbytes), disk(10**9, 10**9)
    for budget in (15 * nbytes, 25 * nbytes, 35 * nbytes):
        cached = buffers(Counter({nbytes: n_parameters}), budget / 2.5)[nbytes]
        loaded = moved(ten_cache(trace, machine, budget), trace, machine)["file->dram"]
        assert 0 <= loaded - 2 * (n_parameters - cached) * nbytes <= 2 * nbytes
        on_demand = moved(plan("zero-infinity", trace, machine, budget), trace, machine)["file->dram"]
        assert on_demand >= 2 * (n_parameters - 1 - DEPTH) * nbytes > loaded
    for name in ("autotm-sync", "ebbtide", "g10", "sentinel", "tm-training"):
        others = moved(plan(name, trace, machine, budget), trace, machine).get("file->dram", 0)
        assert others >= 2 * (n_parameters * nbytes - budget)


def test_10cache_shares_a_cache_by_the_bytes_of_each_size() -> None:
    """8 of 100 and 4 of 50 and 2 of 7 bytes: shares of 507 bytes are 400, 100 and 7 of 1014 times 507."""
    assert buffers(Counter({100: 8, 50: 4, 7: 2}), 507) == {100: 4, 50: 2, 7: 2}


def test_10cache_writes_clean_parameters_back_to_pinned_memory_and_drops_those_of_nvme() -> None:
    n_parameters, nbytes = 40, 10 * PAGE
    trace = passes(n_parameters, nbytes)
    found = ten_cache(trace, three_tiers(120 * nbytes), 20 * nbytes)
    bytes_by_link = moved(found, trace, three_tiers(120 * nbytes))
    assert bytes_by_link["gpu->host"] == bytes_by_link["host->gpu"] > 0
    assert bytes_by_link["ssd->gpu"] > 0
    assert "gpu->ssd" not in bytes_by_link


def test_tm_training_moves_whole_what_its_program_keeps_in_part() -> None:
    block = Storage(300 * PAGE, StorageKind.ACTIVATION, 3, 4)
    trace = step([10**6] * 6, [parameter(400 * PAGE, 6), block], [(0, 0, W), (0, 5, R), (1, 3, W)])
    found = tm_training(trace, disk(), 500 * PAGE)  # half of the parameter could stay
    assert moved(found, trace, disk()) == {"dram->file": 400 * PAGE, "file->dram": 400 * PAGE}


def test_tm_training_keeps_its_budget_beside_scratch_in_a_room_that_is_used_again() -> None:
    scratch = Storage(PAGE, StorageKind.ACTIVATION, 1, 2, scratch=True)
    trace = step([0, 0], [parameter(2 * PAGE, 2), scratch, replace(scratch, room_of=1)], [(0, 0, R)])
    found = plan("tm-training", trace, disk(), 2 * PAGE)
    assert {stay.tier for stay in found.stays if stay.storage == 0} == {"dram", "file"}


def test_ati_outliers_says_when_hidden_swaps_do_not_keep_the_budget() -> None:
    trace = network()
    machine = disk(10**10, 10**10)
    tight, roomy = (plan("ati-outliers", trace, machine, budget_at(trace, share)) for share in (0.0, 0.9))
    assert tight.status is PlanStatus.OVER_BUDGET
    assert roomy.status is not PlanStatus.OVER_BUDGET


def test_g10_sends_short_intervals_to_the_host_and_long_ones_to_the_ssd() -> None:
    """At 100 MB/s a copy takes 4.1 ms, so an interval of 10 ms is not safe and one of 110 ms is."""
    machine = three_tiers(10**9, host=10**10, ssd=10**8)
    short = Storage(100 * PAGE, StorageKind.ACTIVATION, 0, 12)
    long = Storage(100 * PAGE, StorageKind.ACTIVATION, 0, 23)
    block = Storage(200 * PAGE, StorageKind.ACTIVATION, 6, 7)
    uses = [(0, 0, W), (0, 11, R), (1, 0, W), (1, 22, R), (2, 6, W)]
    trace = step([1000, *[10**6] * 10, 1000, *[10**7] * 10, 1000], [short, long, block], uses)
    found = plan("g10", trace, machine, 200 * PAGE)
    assert {stay.storage: stay.tier for stay in found.stays if stay.tier != "gpu"} == {0: "host", 1: "ssd"}
    assert found.predicted_ns < 1.001 * trace.step_ns


# ---- limits and errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", [autotm_static, autotm_sync, autotm_async, tm_training])
def test_out_of_time_is_a_plan_that_says_so(planner: Callable[..., Plan]) -> None:
    trace, machine = network(layers=3), in_place(InPlace.ALL)
    budget = budget_at(trace, 0.1)
    found = planner(trace, machine, budget, time_limit_s=0.0)
    assert found.status is PlanStatus.STOPPED
    assert check_plan(found, trace, machine.with_budget(budget), arena_pages) == ()
    assert planner(trace, machine, budget).predicted_ns <= found.predicted_ns


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_an_impossible_budget_names_the_least_that_is_possible(name: str) -> None:
    trace = network(layers=3)
    with pytest.raises(InfeasibleBudgetError, match="smallest budget that can work") as caught:
        plan(name, trace, DISK, 10)
    least = caught.value.minimum_bytes
    assert caught.value.operator == f"op{caught.value.tick}"
    assert plan(name, trace, DISK, least).budget_bytes == least
    with pytest.raises(InfeasibleBudgetError) as caught:
        plan(name, trace, DISK, least - 1)
    assert caught.value.minimum_bytes == least


def degenerate() -> dict[str, Trace]:
    always = [parameter(PAGE, 3) for _ in range(3)]
    return {
        "empty": step([0], [], []),
        "one storage": step([10, 20], [Storage(PAGE, StorageKind.ACTIVATION, 0, 1)], [(0, 0, W)]),
        "one that outlives the step": step([10], [Storage(PAGE, StorageKind.GRADIENT, 0, 4)], [(0, 2, R)]),
        "all alive for ever and in use": step([5] * 3, always, [(n, t, R) for n in range(3) for t in range(3)]),
        "all alive for ever and never used": step([5] * 3, always, []),
        "no time at all": step([0] * 4, [parameter(PAGE, 4), parameter(PAGE, 4)], [(0, 0, W), (1, 2, R)]),
    }


@pytest.mark.parametrize("which", sorted(degenerate()))
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_degenerate_steps_have_plans(name: str, which: str) -> None:
    trace = degenerate()[which]
    for machine in (DISK, Machine("no slow tier", DISK.origin, DISK.tiers[:1])):
        found = plan(name, trace, machine, max(peak(live_bytes(trace, arena_pages)), 1))
        assert found.predicted_ns == trace.step_ns


def test_a_life_does_not_end_with_a_copy_that_nobody_reads() -> None:
    """As a solver's answer rounded may have it: born at 0, used at 5, out beside 7, in again beside 9, dead at 10."""
    gadgets = Gadgets(0, 64, PAGE, ticks=(0, 5, 7, 9), modes=(W, R, 0, 0), end=10, persistent=False)
    life = Life(gadgets, fast=[True, True, True, True], stay=[True, True, False, False])
    life.settle(InPlace.NOTHING)
    assert (life.fast, life.stay) == ([True, True, True, False], [True, True, False, False])
    stays = stays_of_life(life, "fast", "slow", 20)
    assert [(stay.tier, stay.start, stay.valid_from, stay.stop) for stay in stays] == [
        ("fast", 0, 0, 8),
        ("slow", 7, 8, 10),
    ]


def test_a_copy_that_ends_as_the_round_does_is_of_what_the_next_begins_with() -> None:
    """Written in place at 4, in beside 7, used at 9 of the round of 10, and out again beside 13, the last one."""
    gadgets = Gadgets(0, 64, PAGE, ticks=(4, 7, 9, 13), modes=(R | W, 0, R, 0), end=14, persistent=True, exclusive=True)
    life = Life(gadgets, fast=[False, True, True, True], stay=[False, True, True, False])
    stays = stays_of_life(life, "fast", "slow", 10)
    assert [(stay.tier, stay.start, stay.valid_from, stay.stop) for stay in stays] == [
        ("fast", 7, 8, 14),
        ("slow", 3, 4, 8),
    ]


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    program = Program()
    program.column(1.0, upper=2.0, integer=True)
    program.row([(0, 1.0)], low=0.5)
    assert program.solve(10.0).outcome is Outcome.SOLVED
    assert capfd.readouterr() == ("", "")


def test_the_solver_says_what_no_answer_is_below() -> None:
    program = Program(offset=10.0)
    for _ in range(2):
        program.column(1.0, upper=3.0)
    program.row([(0, 2.0), (1, 2.0)], low=3.0)
    relaxed, whole = program.solve(10.0, whole=False), program.solve(10.0)
    assert (relaxed.objective, relaxed.bound) == (pytest.approx(11.5), pytest.approx(11.5))
    assert (whole.objective, whole.bound) == (pytest.approx(12.0), pytest.approx(12.0, rel=1e-3))


def test_a_placement_that_was_found_in_time_has_no_gap() -> None:
    trace, machine = network(layers=2), in_place(InPlace.ALL)
    level = peak(live_bytes(trace, arena_pages))
    pair = pair_of(machine, level)
    assert pair is not None
    flow = Flow(step_of(trace, machine, pair), np.full(len(trace.ticks), level // 2), False)
    assert flow.gap == float("inf")
    _, in_time = flow.solve(20.0)
    assert in_time
    assert -1e-6 < flow.gap < 1e-3
