"""The accountant against a count that walks every tick of every stay, and its worked example."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.ir.occupancy import exact, levels, live_bytes, needed_bytes, occupancy, pages_of, peak
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.trace import Storage, StorageKind, Trace
from tests.helpers.make_ir import TIERS, R, W, planned, shrunk, trace_of, traces


def count(nbytes: int, page: int) -> int:
    """Bytes of the pages touched, page by page."""
    return page * len({byte // page for byte in range(nbytes)})


@settings(max_examples=150, deadline=None)
@given(planned(), st.integers(1, 4))
def test_occupancy_is_what_a_walk_over_ticks_counts(case: tuple[Trace, Plan], page: int) -> None:
    trace, plan = case
    held: Counter[tuple[str, int]] = Counter()
    for stay in plan.stays:
        for tick in range(stay.start, stay.stop):
            held[stay.tier, tick % len(trace.ticks)] += count(trace.storages[stay.storage].nbytes, page)
    found = occupancy(trace, plan.stays, TIERS, pages_of(page))
    assert list(found) == list(TIERS)
    for tier in TIERS:
        assert found[tier].tolist() == [held[tier, tick] for tick in range(len(trace.ticks))]


@settings(max_examples=60, deadline=None)
@given(planned(), st.lists(st.sampled_from([None, 0, 1, 2, 5]), min_size=1, max_size=4))
def test_a_tier_that_packs_counts_what_bytes_shrink_to(case: tuple[Trace, Plan], sizes: list[int | None]) -> None:
    """What does not shrink counts in full."""
    trace, plan = shrunk(case[0], sizes), case[1]
    held = Counter[int]()
    for stay in plan.stays:
        row = trace.storages[stay.storage]
        if stay.tier == "cxl":
            whole = row.nbytes if row.packed_bytes is None or row.scratch else row.packed_bytes
            for tick in range(stay.start, stay.stop):
                held[tick % len(trace.ticks)] += whole
    found = occupancy(trace, plan.stays, TIERS, exact, {"cxl"})
    assert found["cxl"].tolist() == [held[tick] for tick in range(len(trace.ticks))]
    assert found["file"].tolist() == occupancy(trace, plan.stays, TIERS)["file"].tolist()


@settings(max_examples=100, deadline=None)
@given(traces(longest_life=3), st.integers(1, 4))
def test_live_and_needed_bytes_are_what_a_walk_counts(trace: Trace, page: int) -> None:
    n_ticks = len(trace.ticks)
    live, needed = Counter[int](), Counter[int]()
    for number, storage in enumerate(trace.storages):
        used = set(trace.accesses.tick[trace.accesses.of(number)].tolist())
        for tick in range(storage.birth, storage.death):
            live[tick % n_ticks] += count(storage.nbytes, page)
            if storage.scratch or tick in used or (tick == storage.birth and not storage.persistent):
                needed[tick % n_ticks] += count(storage.nbytes, page)
    assert live_bytes(trace, pages_of(page)).tolist() == [live[tick] for tick in range(n_ticks)]
    assert needed_bytes(trace, pages_of(page)).tolist() == [needed[tick] for tick in range(n_ticks)]


def test_the_worked_example_holds() -> None:
    weight = Storage(100, StorageKind.PARAMETER, 0, 4, persistent=True)
    gradient = Storage(30, StorageKind.GRADIENT, 2, 6)
    trace = trace_of(4, [weight, gradient], [(0, 0, R), (1, 2, W)])
    stays = [Stay(0, "dram", 0, 0, 4), Stay(1, "dram", 2, 2, 6)]
    assert occupancy(trace, stays, ["dram"])["dram"].tolist() == [130, 130, 130, 130]
    shorter = [stays[0], Stay(1, "dram", 2, 2, 5)]
    assert occupancy(trace, shorter, ["dram"])["dram"].tolist() == [130, 100, 130, 130]
    assert occupancy(trace, stays, ["dram"], pages_of(64))["dram"].tolist() == [192] * 4


def test_a_step_without_storages_holds_nothing() -> None:
    assert peak(np.array([60, 0, 120])) == 120
    assert live_bytes(trace_of(3, [], []), exact).tolist() == [0, 0, 0]


def test_a_sum_that_does_not_fit_is_refused() -> None:
    huge = np.array([2**61, 2**61, 2**61])
    with pytest.raises(ValueError, match="62 bits"):
        levels(np.zeros(3, dtype=np.int64), np.ones(3, dtype=np.int64), huge, 4)
