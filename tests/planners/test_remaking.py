"""``ebbtide`` makes contents anew where that is faster than moving them, and no plan of it is slower for that."""

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import InfeasibleBudgetError, PlanError, TiersTooSmallError
from ebbtide.ir.check import check_plan
from ebbtide.ir.machine import InPlace, Machine, Tier
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.remakes import remade, remakes_of, split, together, without_remakes
from ebbtide.ir.trace import Storage, StorageKind, Tick, Trace
from ebbtide.planners import plan
from ebbtide.planners.base import page_size_of
from ebbtide.planners.ebbtide import ebbtide
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.planners.search.problem import problem_of
from ebbtide.planners.search.remake_search import _RATES, RemakeSearch, written_bytes
from ebbtide.planners.search.remaking import Choosing, Remaking
from ebbtide.simulator import POLICIES, simulate_plan, simulate_policy
from tests.helpers.make_remakes import halved, made_steps, repeating, step_of
from tests.helpers.make_steps import PAGE, R, W, budget_at, disk, network


def both(trace: Trace, machine: Machine, share: float) -> tuple[Plan, Plan] | None:
    """The plan, and the one of the step if nothing repeats; None where there is none."""
    budget = budget_at(trace, share, page_size_of(machine))
    try:
        moved = plan("ebbtide", without_remakes(trace), machine, budget)
    except (InfeasibleBudgetError, PlanError, TiersTooSmallError, ValueError):
        return None  # the last: a small slow tier has no room for what the simulator evicts
    return plan("ebbtide", trace, machine, budget), moved


STEP, SLOW = repeating(network(layers=8, width_bytes=2**20)), disk(3 * 10**8, 3 * 10**8)


def both_plans(trace: Trace, machine: Machine) -> tuple[Plan, Plan]:
    found = both(trace, machine, 0.3)
    assert found is not None
    return found


def test_a_slow_disk_is_spared() -> None:
    made, moved = both_plans(STEP, SLOW)
    assert made.predicted_ns < 0.9 * moved.predicted_ns
    assert remade(made.stays, STEP)
    assert made.lower_bound_ns <= moved.lower_bound_ns


def test_a_higher_rate_is_tried_until_plans_become_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first are a recorded Llama's at half of its memory, where the remakes are nearly the same at the four highest
    rates; the others those of a GPT on a slow disk."""
    llama, gpt = (1008, 1022, 1143, 1264, 1308, 1865, 1865, 1865, 1865, 1827), (2264, 2097, 2028, 1981, 2027, 2030)
    monkeypatch.setattr(RemakeSearch, "_cost_of", lambda self, chosen: chosen[0][0])
    for like, found, asked in ((1183, llama, 3), (1005, llama, 3), (2076, (*gpt, 1, 1, 1, 1), 6)):
        times = dict(zip(_RATES, found, strict=True))
        problem, nothing = SimpleNamespace(machine=SLOW), SimpleNamespace(moved_bytes={})
        remaking = SimpleNamespace(
            wanted_at=lambda rate, price, times=times: times[rate],
            possible=lambda wanted, early: ((wanted, early),),
            trace=None,
            problem=problem,
        )
        search = RemakeSearch(remaking, SimpleNamespace(step_ns=like, outcome=nothing), 0, 0, 0.0)
        assert search.run() is None  # no plan came of these
        early = {(one, True) for one in found[:asked]}
        assert search.tried == {(), *((one,) for one in early), ((min(found[:asked]), False),)}


def test_less_is_written_for_a_share_of_a_step() -> None:
    """The longer a plan may take, the less is written; a byte has the same price however few are left."""
    machine = disk(3 * 10**9, 3 * 10**9)
    budget = budget_at(STEP, 0.3, page_size_of(machine))
    bounded = machine.with_budget(budget)
    moved = simulate_plan(plan("ebbtide", without_remakes(STEP), machine, budget), without_remakes(STEP), bounded)
    written = [written_bytes(machine, moved)]
    most = peak(live_bytes(STEP, page_size_of(machine)))
    for wear in (0.0, 1.5, 6.0):
        made = simulate_plan(plan("ebbtide", STEP, machine, budget, wear=wear), STEP, bounded)
        spared = written[0] - written_bytes(machine, made)
        assert made.step_ns <= moved.step_ns + wear * STEP.step_ns * spared / most
        written.append(written_bytes(machine, made))
    assert written == sorted(written, reverse=True)
    assert written[3] < written[2] < written[1] == written[0]


def test_memory_is_no_file() -> None:
    machine, moved = disk(), SimpleNamespace(moved_bytes={"dram->file": 3, "file->dram": 4})
    assert written_bytes(machine, moved) == 3  # type: ignore[arg-type]
    tiers = (replace(machine.tiers[0], bytes_per_s=10**10), Tier("file", InPlace.READS, bytes_per_s=10**9))
    assert not written_bytes(replace(machine, tiers=tiers), moved)  # type: ignore[arg-type]


def test_what_is_in_pieces_is_made_anew_as_a_whole() -> None:
    trace = halved(STEP)
    made, moved = both_plans(trace, SLOW)
    assert made.predicted_ns < 0.97 * moved.predicted_ns
    remakes = remakes_of(trace).chosen(remade(made.stays, trace))
    assert together(remakes)
    assert set(remakes.storage.tolist()) == {one for others in remakes.others for one in others} != set()


def test_inputs_that_are_gone_are_made_early_where_that_loses_little() -> None:
    """Each is made of the one before, and used before it. All would be made at once; so few in a row are early."""
    budget = budget_at(STEP, 0.3, page_size_of(SLOW))
    remaking = Remaking.of(problem_of(without_remakes(STEP), SLOW.with_budget(budget)), STEP, budget)
    assert remaking is not None
    wanted = remaking.wanted_at(1.0)
    some, more = (remaking.possible(wanted, early) for early in (False, True))
    latest = remaking.remakes.until.tolist()
    assert all(tick == latest[row] for row, tick in some)
    assert len(more) > len(some)
    shifts = [latest[row] - tick for row, tick in more]
    assert 0 < max(shifts) <= 4
    assert together(remaking.remakes.chosen(more))


def test_thousands_may_be_made_of_each_other() -> None:
    """To see whether one can be made is to look at all that it is made of: no stack is deep enough for that."""
    length = 2_500
    made = SimpleNamespace(
        pieces=[(row,) for row in range(length)],
        inputs=[(), *((row,) for row in range(length - 1))],
        row_of={row: row for row in range(length)},
        gone=[0] * length,
        until=[9] * length,
    )
    found = dict[int, None]()
    assert Choosing._can_be_made(made, length - 1, 5, found)  # type: ignore[arg-type]
    assert len(found) == length
    made.gone[7] = 5
    assert not Choosing._can_be_made(made, length - 1, 5, {})  # type: ignore[arg-type]


def test_where_copies_cost_nothing_nothing_is_made_anew() -> None:
    made, moved = both_plans(STEP, disk(10**12, 10**12))
    assert made.stays == moved.stays
    assert made.predicted_ns == moved.predicted_ns


@pytest.mark.parametrize(
    ("trace", "rows", "rooms"),
    # Room for so many storages, and some bytes more: how many of the two are not made anew.
    [(STEP, (0, 2), ((2, 0, 2), (2, -1, 1), (1, -1, 0))), (halved(STEP), (0, 1), ((2, 0, 2), (2, -1, 0)))],
    ids=["whole", "in pieces"],
)
def test_what_has_room_is_not_made_anew(
    trace: Trace, rows: tuple[int, int], rooms: tuple[tuple[int, int, int], ...]
) -> None:
    """Storages 0 and 6 are idle during [2, 31) and [4, 29). With room for one of them, the other is made anew."""
    machine = disk()
    problem = problem_of(without_remakes(trace), machine.with_budget(budget_at(trace, 0.3, page_size_of(machine))))
    remaking = Remaking.of(problem, trace, 0)
    assert remaking is not None
    chosen = remakes_of(trace).latest(rows)
    assert together(remakes_of(trace).chosen(chosen))
    made = split(trace, chosen)
    names = [tier.name for tier in machine.tiers]
    joined = made.joined_stays(made.still_stays(problem.still).stays(names))
    assert remade(joined, trace) == chosen
    for count, more, spared in rooms:
        free = np.full(len(trace.ticks), count * int(trace.storages.nbytes[0]) + more)
        found, stays = remaking.without_unneeded(chosen, joined, free)
        assert found == chosen[spared:] == remade(stays, trace)
        assert (stays == tuple(problem.still.stays(names))) == (spared == 2)


def test_where_operations_use_a_slow_tier_in_place_nothing_is_made_anew() -> None:
    trace = repeating(network(layers=4, width_bytes=2**20))
    machine = disk(3 * 10**8, 3 * 10**8)
    tiers = (replace(machine.tiers[0], bytes_per_s=10**10), Tier("file", InPlace.ALL, bytes_per_s=10**9))
    made = ebbtide(trace, replace(machine, tiers=tiers), budget_at(trace, 0.3, page_size_of(machine)))
    assert not remade(made.stays, trace)


SHARES = st.sampled_from([0.0, 0.0, 0.1, 0.3, 0.6])
MACHINES = st.builds(
    disk,
    read=st.sampled_from([10**8, 10**9]),
    write=st.sampled_from([10**8, 10**9]),
    both=st.sampled_from([None, 10**9]),
)


@settings(max_examples=300, deadline=None)
@given(made_steps(), MACHINES, SHARES, st.booleans(), st.sampled_from([None, 4, 8]))
@pytest.mark.slow
def test_no_plan_is_slower_for_it(
    trace: Trace, machine: Machine, share: float, exclusive: bool, n_pages: int | None
) -> None:
    """Nor does it miss room in a small slow tier."""
    file = replace(machine.tiers[1], capacity_bytes=None if n_pages is None else n_pages * PAGE)
    machine = replace(machine, exclusive=exclusive, tiers=(machine.tiers[0], file))
    if (found := both(trace, machine, share)) is None:
        return
    made, _ = found
    bounded, pages = machine.with_budget(made.budget_bytes), page_size_of(machine)
    assert check_plan(made, trace, bounded, pages) == ()
    times = [simulate_plan(one, trace, bounded, pages).step_ns for one in found]
    assert times[0] <= times[1]
    assert made.lower_bound_ns <= times[0] <= made.predicted_ns
    assert made.status is not PlanStatus.OVER_BUDGET


@settings(max_examples=300, deadline=None)
@given(made_steps(most_ticks=10), MACHINES, SHARES, st.booleans())
@pytest.mark.slow
def test_nothing_beats_the_bound(trace: Trace, machine: Machine, share: float, exclusive: bool) -> None:
    """No remakes that are possible together do, planned at their best, and no policy does."""
    machine = replace(machine, exclusive=exclusive)
    pages, remakes = page_size_of(machine), remakes_of(trace)
    budget = budget_at(trace, share, pages)
    bound, bounded = lower_bound_ns(trace, machine, budget), machine.with_budget(budget)
    assert bound <= lower_bound_ns(without_remakes(trace), machine, budget)
    some = range(min(len(remakes), 4))
    for rows in (rows for count in range(len(some) + 1) for rows in combinations(some, count)):
        chosen = remakes.latest(rows)
        if not together(remakes.chosen(chosen)):
            continue
        step = split(trace, chosen).trace
        try:
            assert simulate_plan(ebbtide(step, machine, budget), step, bounded, pages).step_ns >= bound - 1
        except InfeasibleBudgetError:
            continue
    for name in POLICIES:
        try:
            assert simulate_policy(name, trace, bounded, pages).step_ns >= bound - 1
        except ValueError:
            continue


@settings(max_examples=40, deadline=None)
@given(made_steps())
def test_a_step_in_which_nothing_repeats_is_itself(trace: Trace) -> None:
    assert (without_remakes(trace) is trace) == (not trace.ticks.repeats.any())
    assert len(remakes_of(without_remakes(trace))) == 0


def test_the_bound_counts_what_has_to_be_made_anew() -> None:
    """A storage has to leave between its uses. Its operator takes 60 of 100 us; its copies would take 20 times that."""
    n_ticks, nbytes = 6, 16 * PAGE
    ticks = [Tick(60_000 if at == 0 else 8_000, "aten::mul", repeats=at == 0) for at in range(n_ticks)]
    rows = [
        Storage(nbytes, StorageKind.ACTIVATION, 0, 5, allocation=0, maker=0),
        Storage(nbytes, StorageKind.ACTIVATION, 2, 3, allocation=0, maker=2),
    ]
    trace, machine = step_of(ticks, rows, [(0, 0, W), (0, 4, R), (1, 2, W)]), disk(10**8, 10**8)
    made = ebbtide(trace, machine, nbytes)
    assert made.predicted_ns == 160_000
    assert 115_000 < made.lower_bound_ns <= 160_000
    assert lower_bound_ns(without_remakes(trace), machine, nbytes) > 10**6
