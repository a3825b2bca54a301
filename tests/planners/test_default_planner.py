"""``ebbtide`` the planner: more budget never hurts, exclusive machines, several slow tiers, and its bounds."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.ir.base import Origin
from ebbtide.ir.check import check_plan
from ebbtide.ir.files import load
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.occupancy import exact, live_bytes, needed_bytes, occupancy, peak
from ebbtide.ir.remakes import without_remakes
from ebbtide.ir.tiertrace import read_tiertrace
from ebbtide.ir.trace import Storage, StorageKind, Storages, Trace
from ebbtide.planners.base import page_size_of
from ebbtide.planners.ebbtide import ebbtide
from ebbtide.planners.search.bound import lost_per_byte, lower_bound_ns, ns_per_byte
from ebbtide.planners.search.idle_table import idle_table
from ebbtide.planners.search.slow_tiers import assign_tiers
from ebbtide.planners.search.timing import Clock
from ebbtide.simulator import simulate_policy
from ebbtide.units import MIB
from tests.helpers.make_g10 import machine as three_tiers
from tests.helpers.make_g10 import tiertraces
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
    step,
)
from tests.helpers.paths import DATA

ACTIVATION = 100 * PAGE
RECORDED = DATA / "mlp.trace"


def read(value: dict[str, Any]) -> tuple[Trace, Machine]:
    trace, its_machine = read_tiertrace(json.dumps(value).encode())
    assert its_machine is not None
    return trace, its_machine


def times_at(trace: Trace, machine: Machine, parts: int) -> list[int]:
    least, most = least_and_most(trace, page_size_of(machine))
    budgets = sorted({max(least + (most - least) * part // parts, 1) for part in range(parts + 1)})
    roomy = replace(machine, tiers=(replace(machine.tiers[0], capacity_bytes=None), *machine.tiers[1:]))
    return [ebbtide(trace, roomy, budget).predicted_ns for budget in budgets]


@settings(max_examples=25, deadline=None)
@given(page_traces())
@pytest.mark.slow
def test_more_budget_is_never_slower(trace: Trace) -> None:
    times = times_at(trace, DISK, 3)
    assert all(later <= earlier * 1.003 + 1 for earlier, later in pairwise(times)), times


def test_more_tries_are_never_slower() -> None:
    """They take other ways, of which the first steps may look better and the last be worse."""
    trace, machine = without_remakes(load(RECORDED, Trace)), disk(10**9, 10**9)
    budget = budget_at(trace, 3 / 13, page_size_of(machine))
    few, many = (ebbtide(trace, machine, budget, effort=effort).predicted_ns for effort in (1, 8))
    assert many <= few


@pytest.mark.slow
def test_more_memory_is_never_slower_on_three_tiers() -> None:
    trace = network()
    tiers, links = three_tiers(MIB, 6 * MIB), ((16, "host"), (3, "ssd"))
    machine = Machine(
        "three",
        Origin.ASSUMED,
        tuple(
            Tier(tier["name"], InPlace.NOTHING if at else InPlace.ALL, tier["capacity_bytes"], page_bytes=1)
            for at, tier in enumerate(tiers["tiers"])
        ),
        tuple(Link(*ends, rate * 10**8) for rate, slow in links for ends in ((slow, "gpu"), ("gpu", slow))),
        exclusive=True,
    )
    times = times_at(trace, machine, 6)
    assert all(later <= earlier * 1.003 for earlier, later in pairwise(times)), times
    assert times[0] > 1.3 * times[-1] == 1.3 * trace.step_ns


@pytest.mark.parametrize(("machine", "lazy"), [(disk(), False), (disk(both=10**9), True)])
def test_writes_are_put_off_only_where_they_are_in_fetches_way(
    machine: Machine, lazy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the directions share nothing it changes nothing, and in a large step takes the place of another start."""
    planner = sys.modules["ebbtide.planners.search.move_search"]
    paces, real = set(), planner.time_moves

    def noted(*arguments: Any) -> Any:
        paces.add(arguments[-1].lazy)
        return real(*arguments)

    monkeypatch.setattr(planner, "time_moves", noted)
    trace = network(layers=4)
    ebbtide(trace, machine, peak(needed_bytes(trace, page_size_of(machine))) * 2)
    assert paces == ({True, False} if lazy else {False})


# ---- exclusive machines ----------------------------------------------------------------------------------------------


def test_without_replicas_every_eviction_writes() -> None:
    """A parameter that is only read leaves twice a step: two writes, where a replica would need none."""
    other = [Storage(8 * PAGE, StorageKind.ACTIVATION, tick, tick + 1) for tick in (1, 3)]
    trace = step([10**6] * 4, [parameter(8 * PAGE, 4), *other], [(0, 0, R), (0, 2, R), (1, 1, W), (2, 3, W)])
    machine = replace(disk(), exclusive=True)
    shared, alone = (ebbtide(trace, one, 8 * PAGE) for one in (disk(), machine))
    written = [sum(stay.tier == "file" for stay in found.stays) for found in (shared, alone)]
    assert written == [1, 2]  # one replica for ever; two intervals
    copy_ns = 8 * PAGE  # at 1 byte a ns
    assert shared.predicted_ns == 4 * 10**6 + 2 * copy_ns
    assert alone.predicted_ns == 4 * 10**6 + 4 * copy_ns


# ---- bounds ----------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(tiertraces, st.booleans())
@pytest.mark.slow
def test_no_online_policy_and_no_plan_beats_the_bound(value: dict[str, Any], exclusive: bool) -> None:
    trace, its_machine = read(value)
    its_machine = replace(its_machine, exclusive=exclusive)
    budget = its_machine.tiers[0].capacity_bytes
    assert budget is not None
    bound = lower_bound_ns(trace, its_machine, budget)
    for policy in ("lru", "lru-next-use"):
        assert simulate_policy(policy, trace, its_machine, exact).step_ns >= bound - 3
    found = ebbtide(trace, its_machine, budget)
    assert found.predicted_ns >= found.lower_bound_ns == bound
    assert check_plan(found, trace, its_machine, exact) == ()


def test_what_is_used_and_needed_again_has_to_leave_if_it_leaves_no_replica() -> None:
    """Three weights that are only read, of which one has room, and one kernel each: all three go out and in."""
    n_ticks, size = 3, 10 * PAGE
    trace = step([10**3] * n_ticks, [parameter(size, n_ticks)] * 3, [(at, at, R) for at in range(3)])
    machine = replace(disk(read=10**9, write=10**9), exclusive=True)
    bound = lower_bound_ns(trace, machine, size)
    # Window [0, 3): 3 sizes are used and needed again, less the one that stays, go out; so does as much come in.
    assert bound >= 3 * size - size
    assert bound <= ebbtide(trace, machine, size).predicted_ns


def test_the_bound_knows_what_compute_loses_to_copies() -> None:
    """A weight of 10 ms each way, idle for a second: its copies hide, but slow operations while they run."""
    size, second = 10 * MIB, 10**9
    trace = step(
        [second] * 4,
        [parameter(size, 4), Storage(size, StorageKind.ACTIVATION, 2, 3)],
        [(0, 0, W), (1, 2, W)],
    )
    links = (Link("dram", "file", 10**9, slows_compute=0.25), Link("file", "dram", 10**9, slows_compute=0.5))
    machine = replace(disk(), links=links)
    copy_ns = size  # at 1 byte a ns
    lost = copy_ns * (0.25 / 1.25) + copy_ns * (0.5 / 1.5)
    at_once = (0.75 / 1.75) / (0.25 / 1.25 + 0.5 / 1.5)  # if they ran at the same time, which the bound allows
    found = ebbtide(trace, machine, size)
    assert found.lower_bound_ns - 4 * second == pytest.approx(at_once * lost, rel=1e-3)
    assert found.predicted_ns - 4 * second == pytest.approx(lost, rel=1e-3)


def test_links_that_are_busy_at_once_may_take_less_from_compute_in_sum() -> None:
    out, back = Link("dram", "file", 10**9, slows_compute=1.0), Link("file", "dram", 10**9, slows_compute=1.0)
    alone = replace(disk(), links=(out, back))
    # Each takes a half of the time alone; both together two thirds for two bytes a ns, so a third for each.
    assert lost_per_byte(alone, [out]) == pytest.approx(1 / 3)
    together = disk(both=10**9)
    slow = replace(together, links=tuple(replace(link, slows_compute=1.0) for link in together.links))
    # They share the disk: two thirds for one byte a ns, so it is the least to move them one after the other.
    assert lost_per_byte(slow, [slow.links[0]]) == pytest.approx(1 / 2)


def test_where_operations_work_in_place_nothing_has_to_move() -> None:
    trace = network(layers=3)
    slow = replace(disk().tiers[1], in_place=InPlace.READS, bytes_per_s=10**9)
    machine = replace(disk(read=10**6, write=10**6), tiers=(disk().tiers[0], slow))
    budget = peak(needed_bytes(trace, page_size_of(machine)))
    assert lower_bound_ns(trace, machine, budget) == trace.step_ns


# ---- several slow tiers ----------------------------------------------------------------------------------------------


def there_and_back(count: int, host: int, ssd_rate: int, host_rate: int = 2 * 10**9) -> tuple[Trace, Machine]:
    """Activations, born one a tick and used again in the reverse order. The host holds so many of them."""
    n_ticks = 2 * count
    storages = [Storage(ACTIVATION, StorageKind.ACTIVATION, at, n_ticks - at) for at in range(count)]
    accesses = [(at, tick, mode) for at in range(count) for tick, mode in ((at, W), (n_ticks - 1 - at, R))]
    trace = step([ACTIVATION] * n_ticks, storages, accesses)  # a tick is as long as a copy at 1 byte a ns
    tiers = (Tier("gpu", InPlace.ALL), Tier("host", InPlace.NOTHING, host * ACTIVATION), Tier("ssd", InPlace.NOTHING))
    links = tuple(
        Link(*ends, rate) for slow, rate in (("host", host_rate), ("ssd", ssd_rate))
        for ends in ((slow, "gpu"), ("gpu", slow))
    )  # fmt: skip
    return trace, Machine("three", Origin.ASSUMED, tiers, links, exclusive=True)


def test_the_slower_tier_takes_what_its_links_can_carry_at_the_right_time() -> None:
    """The host holds twelve of twenty."""
    trace, machine = there_and_back(20, host=12, ssd_rate=5 * 10**8)
    rows = idle_table(trace, True)
    chosen = np.arange(len(rows))
    homes = assign_tiers(trace, machine, rows, chosen, Clock(trace.start_ns(np.arange(len(trace.ticks) + 1))))
    on_ssd = [at for at, home in enumerate(homes) if home == "ssd"]
    assert 7 <= len(on_ssd) <= 9  # 19 have an interval, and the host has room for 12
    # The SSD takes two ticks for a copy, so at most every other one may go there, or a queue would grow.
    assert all(later - earlier >= 2 for earlier, later in pairwise(on_ssd)), on_ssd


@pytest.mark.parametrize(("host", "ssd_rate"), [(8, 10**8), (4, 2 * 10**8)])
def test_room_for_copies_is_kept_only_where_it_costs_the_slowest_tier_nothing(host: int, ssd_rate: int) -> None:
    """The step takes little more than the SSD's copies of what has no room elsewhere at its peak."""
    trace, machine = there_and_back(20, host, ssd_rate)
    found = ebbtide(trace, machine, 3 * ACTIVATION)
    tick_ns, copy_ns = ACTIVATION, ACTIVATION * 10**9 // ssd_rate
    assert found.predicted_ns <= 2 * (20 - host - 3) * copy_ns + 4 * tick_ns


@pytest.mark.parametrize("host_rate", [10**9, 2 * 10**9])
def test_contents_are_exchanged_where_compute_waits_for_the_slower_tier(
    monkeypatch: pytest.MonkeyPatch, host_rate: int
) -> None:
    """Operations take half, a quarter, twice and half of what a copy does. So links are wanted at some times more than
    at others, and the room of 7 of 40 activations says when a copy can run."""
    trace, machine = there_and_back(40, host=18, ssd_rate=2 * 10**8, host_rate=host_rate)
    of_quarters = np.repeat([0.5, 0.25, 2.0, 0.5], 20)
    times = (trace.ticks.time_ns * of_quarters).astype(np.int64)
    trace = replace(trace, ticks=replace(trace.ticks, time_ns=times))
    found = ebbtide(trace, machine, 7 * ACTIVATION)
    assert check_plan(found, trace, machine.with_budget(7 * ACTIVATION), page_size_of(machine)) == ()
    assert found.predicted_ns < 1.01 * found.lower_bound_ns
    again = ebbtide(trace, machine, 7 * ACTIVATION)
    assert again.stays == found.stays  # what is drawn does not change
    monkeypatch.setattr("ebbtide.planners.search.move_search._EXCHANGES", 0)
    assert ebbtide(trace, machine, 7 * ACTIVATION).predicted_ns > 1.1 * found.lower_bound_ns


@settings(max_examples=25, deadline=None)
@given(tiertraces)
def test_no_tier_is_overfull(value: dict[str, Any]) -> None:
    trace, its_machine = read(value)
    budget = its_machine.tiers[0].capacity_bytes
    assert budget is not None
    found = ebbtide(trace, its_machine, budget)
    level = occupancy(trace, found.stays, ["host"], exact)["host"]
    assert peak(level) <= (its_machine.tiers[1].capacity_bytes or 0)


@pytest.mark.parametrize(("share", "node_rate"), [(8, 5 * 10**9), (6, 5 * 10**9)])
def test_what_lies_on_a_node_for_good_leaves_the_rest_of_it_to_what_moves(share: int, node_rate: int) -> None:
    trace = network(layers=3)
    capacity = peak(live_bytes(trace)) // share
    file = Tier("file", InPlace.NOTHING)
    tiers = (Tier("dram", InPlace.ALL, None, 10**10), Tier("node", InPlace.ALL, capacity, node_rate), file)
    links = tuple(
        Link(*ends, rate) for slow, rate in (("node", 2 * 10**9), ("file", 10**9))
        for ends in ((slow, "dram"), ("dram", slow))
    )  # fmt: skip
    machine = Machine("a node and a file", Origin.ASSUMED, tiers, links, exclusive=True)
    least, most = least_and_most(trace, page_size_of(machine))
    budget = least + (most - least) // 6
    found = ebbtide(trace, machine, budget)
    assert check_plan(found, trace, machine.with_budget(budget), page_size_of(machine)) == ()
    level = occupancy(trace, found.stays, ["node"], page_size_of(machine))["node"]
    assert 0 < peak(level) <= capacity


def test_links_that_share_fairly_may_do_better_by_turns() -> None:
    """Reading at 1 and writing at 3 bytes a ns, of 2 together: both at once read 0.5 and write 1.5."""
    machine = disk(read=10**9, write=3 * 10**9, both=2 * 10**9)
    ways = ns_per_byte(machine, [machine.links[1]], [machine.links[0]])
    # In 1 ns for a byte in, a byte out takes what both at once leave: (1 - 0.5) / 1.5 ns. Out alone it is 2 bytes a ns.
    assert ways == [pytest.approx(way) for way in ((1 / 2, 1 / 2), (1, 1 / 3), (1 / 2, 1 / 2))]
    apart = disk(read=10**9, write=3 * 10**9)
    ways = ns_per_byte(apart, [apart.links[1]], [apart.links[0]])
    assert ways == [pytest.approx(way) for way in ((1 / 4, 1 / 4), (1, 0), (0, 1 / 3))]


def test_scratch_that_is_in_use_takes_room_from_what_comes_in() -> None:
    """Two weights of which both fit, but for scratch of two ticks: one has to come in after it."""
    size, n_ticks = 10 * MIB, 6
    trace = step(
        [10**3] * n_ticks,
        [parameter(size, n_ticks), parameter(size, n_ticks), Storage(size, StorageKind.OTHER, 1, 4, scratch=True)],
        [(0, 0, R), (0, 5, R), (1, 0, R), (1, 5, R)],
    )
    machine = disk()
    bound = lower_bound_ns(trace, machine, 2 * size)
    assert bound >= size - 1
    assert ebbtide(trace, machine, 2 * size).predicted_ns >= bound


def test_thousands_of_scratch_in_one_tick_are_as_one() -> None:
    """What a fused optimizer makes in one operation: the same step with its sum as one storage takes as long."""
    trace = network(layers=4)
    at = len(trace.ticks) - 1
    many = [Storage(PAGE, StorageKind.OTHER, at, at + 1, scratch=True)] * 200
    one = [Storage(200 * PAGE, StorageKind.OTHER, at, at + 1, scratch=True)]
    times = []
    for more in (many, one):
        its = replace(trace, storages=Storages.from_rows([*trace.storages, *more]))
        budget = peak(needed_bytes(its, page_size_of(DISK))) * 2
        times.append(ebbtide(its, DISK, budget).predicted_ns)
    assert times[0] == times[1] > trace.step_ns
