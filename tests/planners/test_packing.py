"""Plans on a machine with a tier that packs: what shrinks may lie there, and counts with what it shrinks to."""

from contextlib import suppress
from dataclasses import replace

import pytest

from ebbtide.errors import InfeasibleBudgetError
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.occupancy import arena_pages, live_bytes, occupancy, peak
from ebbtide.ir.trace import Storages, Trace
from ebbtide.planners import PLANNERS, plan
from tests.helpers.make_steps import disk, network


def packing(capacity: int, slows: float = 0.0, file_rate: int = 10**8) -> Machine:
    """A tier that packs, ten times as fast as the file behind it."""
    slow = disk(file_rate, file_rate)
    fast = (Link("dram", "packed", 10**9, slows_compute=slows), Link("packed", "dram", 10**9, slows_compute=slows))
    tiers = (slow.tiers[0], Tier("packed", InPlace.NOTHING, capacity, packs=True), slow.tiers[1])
    return replace(slow, tiers=tiers, links=(*fast, *slow.links))


def half_shrink(trace: Trace, nth: int = 2) -> Trace:
    """Every so many of the activations to an eighth."""
    rows = (
        replace(row, packed_bytes=row.nbytes // 8) if number % nth == 0 and row.kind == "activation" else row
        for number, row in enumerate(trace.storages)
    )
    return replace(trace, storages=Storages.from_rows(rows))


def test_what_shrinks_goes_where_it_is_packed_and_the_rest_goes_past_it() -> None:
    trace = half_shrink(network())
    budget = int(0.4 * peak(live_bytes(trace)))
    machine = packing(10**9)
    found = plan("ebbtide", trace, machine, budget)  # checked
    there = {stay.storage for stay in found.stays if stay.tier == "packed"}
    assert there
    assert all(trace.storages[number].packed_bytes is not None for number in there)
    assert {stay.storage for stay in found.stays if stay.tier == "file"}
    without = plan("ebbtide", network(), machine, budget)
    assert not [stay for stay in without.stays if stay.tier == "packed"]
    assert found.predicted_ns < without.predicted_ns
    assert without.predicted_ns == plan("ebbtide", network(), disk(10**8, 10**8), budget).predicted_ns


def test_a_tier_that_packs_holds_as_much_as_what_lies_there_shrinks_to() -> None:
    trace = half_shrink(network(), nth=1)
    budget = int(0.4 * peak(live_bytes(trace)))
    roomy = plan("ebbtide", trace, packing(10**9), budget)
    held = peak(occupancy(trace, roomy.stays, ["packed"], packing={"packed"})["packed"])
    unpacked = peak(occupancy(trace, roomy.stays, ["packed"])["packed"])
    assert 0 < held <= unpacked // 7
    for capacity in (held, held // 2, 0):
        found = plan("ebbtide", trace, packing(capacity), budget)
        used = peak(occupancy(trace, found.stays, ["packed"], packing={"packed"})["packed"])
        assert used <= capacity
        assert (used > 0) == (capacity > 0)


def test_where_the_file_is_as_good_nothing_is_packed_since_that_takes_processors() -> None:
    trace = half_shrink(network(), nth=1)
    budget = int(0.6 * peak(live_bytes(trace)))
    found = plan("ebbtide", trace, packing(10**9, slows=0.5, file_rate=10**10), budget)
    assert not [stay for stay in found.stays if stay.tier == "packed"]
    assert [stay for stay in found.stays if stay.tier == "file"]


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_published_planners_pack_nothing(name: str) -> None:
    trace = half_shrink(network(layers=3), nth=1)
    budget = int(0.7 * peak(live_bytes(trace, arena_pages)))
    with suppress(InfeasibleBudgetError):  # some need more
        found = plan(name, trace, packing(10**9), budget)
        assert name == "ebbtide" or not [stay for stay in found.stays if stay.tier == "packed"]
