"""Online policies: what theory says of them, and what an independent checker says of LRU."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import SettingError
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.occupancy import live_bytes, needed_bytes, peak
from ebbtide.ir.tiertrace import load_tiertrace
from ebbtide.ir.trace import Storage, StorageKind
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.simulator import POLICIES, simulate_policy
from tests.helpers.make_steps import PAGE, R, W, disk, network, parameter, step
from tests.helpers.paths import G10

MS = 1_000_000
MB = 1_000_000


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 12), st.data())
def test_nobody_loads_fewer_parameter_bytes_than_a_sliding_window(layers: int, data: st.DataObject) -> None:
    """10Cache (SoCC'25): a pass touches all P bytes of parameters once, and at most C of them are there when it begins,
    so a step loads at least 2 (P - C). Evicting what is used last reaches it where parameters are of one size."""
    cached = data.draw(st.integers(1, layers))
    nbytes = data.draw(st.integers(1, 5)) * PAGE
    passes = [*range(layers), *reversed(range(layers))]
    uses = [(layer, tick, R) for tick, layer in enumerate(passes)]
    trace = step([MS] * len(passes), [parameter(nbytes, len(passes))] * layers, uses)
    machine = disk().with_budget(cached * nbytes)
    least = 2 * (layers - cached) * nbytes
    for name in POLICIES:
        loaded = simulate_policy(name, trace, machine).moved_bytes.get("file->dram", 0)
        assert loaded >= least
        if name in ("lru", "lru-next-use"):
            assert loaded == least


def test_clean_storages_leave_without_a_write_unless_copies_are_exclusive() -> None:
    trace = step([MS] * 4, [parameter(4 * MB, 4)] * 2, [(0, 0, R), (1, 1, R), (0, 2, R), (1, 3, R)])
    small = disk().with_budget(4 * MB)
    assert simulate_policy("lru", trace, small).moved_bytes == {"file->dram": 16 * MB}
    moved = simulate_policy("lru", trace, replace(small, exclusive=True)).moved_bytes
    assert moved == {"dram->file": 16 * MB, "file->dram": 16 * MB}


def test_knowing_the_future_moves_no_more_than_knowing_the_past() -> None:
    trace = network(8)
    least, most = peak(needed_bytes(trace)), peak(live_bytes(trace))
    for share in (0.1, 0.3, 0.6):
        machine = disk().with_budget(least + int(share * (most - least)))
        moved = {name: sum(simulate_policy(name, trace, machine).moved_bytes.values()) for name in POLICIES}
        assert moved["lru-next-use"] <= moved["lru"] < moved["evict-all"]


PMM = Machine(
    "made up",
    Origin.ASSUMED,
    (Tier("dram", InPlace.ALL, bytes_per_s=10**11), Tier("pmm", InPlace.ALL, bytes_per_s=10**10)),
    (Link("dram", "pmm", 10**9), Link("pmm", "dram", 10**9)),
)


def test_first_touch_moves_nothing_where_operations_work_in_place() -> None:
    trace = step([MS] * 3, [parameter(4 * MB, 3)] * 3, [(number, number, R) for number in range(3)])
    found = simulate_policy("first-touch", trace, PMM.with_budget(8 * MB))
    assert (found.moved_bytes, found.exposed_ns) == ({}, 0)
    assert found.tiers["pmm"].read_bytes == 4 * MB  # the last one found no room
    assert found.step_ns == 3 * MS + 0.9 * 4 * MB / 10


def test_reactive_tiering_promotes_what_is_used_often() -> None:
    """Storage 0 is there first and idle; storage 1 is used all the time, first in the slow tier."""
    n_ticks = 80
    uses = [(0, 0, R)] + [(1, tick, R) for tick in range(n_ticks)]
    trace = step([MS] * n_ticks, [parameter(4 * MB, n_ticks)] * 2, uses)
    first_step = simulate_policy("reactive", trace, PMM.with_budget(5 * MB), n_steps=1)
    assert first_step.tiers["pmm"].read_bytes >= 4 * MB
    later = simulate_policy("reactive", trace, PMM.with_budget(5 * MB), n_steps=4)
    assert later.tiers["pmm"].read_bytes <= first_step.tiers["pmm"].read_bytes
    assert later.tiers["dram"].read_bytes >= 70 * 4 * MB


def test_a_policy_whose_steps_differ_has_their_mean() -> None:
    """One access in four is seen, of nine in a step. The third step finds all in memory; others wait for copies."""
    uses = [(0, 0, R), (0, 1, R), (0, 2, R), (2, 2, W), (2, 4, R), (2, 5, R | W), (3, 2, R), (3, 4, R), (3, 5, R | W)]
    scratch = Storage(PAGE, StorageKind.ACTIVATION, 3, 4, scratch=True)
    rows = [parameter(PAGE, 6), scratch, parameter(PAGE, 6), parameter(PAGE, 6)]
    trace, machine = step([1000] * 6, rows, uses), disk(read=10**8).with_budget(3 * PAGE)
    at_once = [simulate_policy("reactive", trace, machine, n_steps=n) for n in (3, 4, 5, 6)]
    totals = [found.step_ns * count for count, found in enumerate(at_once, start=1)]
    assert totals[0] == trace.step_ns < lower_bound_ns(trace, machine, 3 * PAGE) < totals[3] / 4
    assert len({later - before for before, later in pairwise([0, *totals])}) > 1
    found = simulate_policy("reactive", trace, machine, record=True)
    assert found.start_ns.tolist() == at_once[3].start_ns.tolist()
    assert found.step_ns == trace.step_ns + found.exposed_ns
    assert found.timeline("reactive").step_ns == pytest.approx(totals[3] - totals[2], abs=8)


def test_an_unknown_policy_is_an_error_that_names_those_there_are() -> None:
    trace = step([MS], [parameter(PAGE, 1)], [(0, 0, R)])
    with pytest.raises(SettingError, match="lru-next-use"):
        simulate_policy("mru", trace, disk())


def test_traces_at_their_limits() -> None:
    nothing = step([0], [], [])
    assert all(simulate_policy(name, nothing, disk().with_budget(0)).step_ns == 0 for name in POLICIES)
    one = step([MS], [parameter(PAGE, 1)], [(0, 0, R)])
    others = set(POLICIES) - {"reactive", "evict-all"}  # the one keeps some room free, the other all of it
    assert all(simulate_policy(name, one, disk().with_budget(PAGE)).step_ns == MS for name in others)
    with pytest.raises(ValueError, match="does not fit"):
        simulate_policy("lru", one, disk().with_budget(PAGE - 1))
    trace = network(4)
    least = peak(needed_bytes(trace))
    assert all(simulate_policy(name, trace, disk().with_budget(least)).step_ns > trace.step_ns for name in POLICIES)


@pytest.mark.skipif(not G10.is_dir(), reason="the G10 traces are not here")
@pytest.mark.parametrize(("workload", "gib"), [("bert_b256", 40), ("vit_b1280", 40), ("vit_b1280", 24)])
@pytest.mark.starts
def test_lru_takes_as_long_as_in_the_checker_of_the_g10_traces(workload: str, gib: int) -> None:
    file = G10 / f"{workload}.json"
    command = [sys.executable, str(G10 / "check.py"), str(file), "--iters", "3", "--json", "--gpu", str(gib)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    judged = json.loads(lines[-1])
    trace, machine = load_tiertrace(file)
    assert machine is not None
    found = simulate_policy("lru", trace, machine.with_budget(gib * 2**10 * 2**20))
    assert 100 * trace.step_ns / found.step_ns == pytest.approx(judged["pct_of_ideal"], abs=0.5)
    assert found.moved_bytes["host->gpu"] == pytest.approx(judged["moved_bytes"]["host_to_gpu"], rel=0.01)
