"""A tier that packs, by hand: what lies there takes its packed bytes; what does not shrink passes."""

from dataclasses import replace

import pytest

from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import pages_of
from ebbtide.ir.schedule import Schedule
from ebbtide.ir.trace import Trace
from ebbtide.simulator import simulate, simulate_policy
from tests.helpers.make_steps import PAGE, R, W, disk, parameter, step
from tests.helpers.schedules import Begin, Command, schedule_of


def machine(capacity: int | None, chunk_bytes: int | None = None) -> Machine:
    """A byte takes a ns to the tier that packs, ten to the file."""
    slow = disk(10**8, 10**8)
    tiers = (slow.tiers[0], Tier("packed", InPlace.NOTHING, capacity, packs=True), slow.tiers[1])
    links = (Link("dram", "packed", 10**9), Link("packed", "dram", 10**9), *slow.links)
    return replace(slow, tiers=tiers, links=links, chunk_bytes=chunk_bytes)


def away_and_back(sizes: list[int | None]) -> tuple[Trace, Schedule]:
    """Parameters of a page that leave in the second tick for where things are packed, and come back for the last."""
    rows = [replace(parameter(PAGE, 4), packed_bytes=size) for size in sizes]
    uses = [(number, tick, mode) for number in range(len(rows)) for tick, mode in ((0, W), (3, R))]
    trace = step([1000, 10**6, 10**6, 1000], rows, uses)
    commands = [
        Command(verb, number, *route, at, at)
        for at, (verb, *route) in ((1, (Verb.EVICT, "dram", "packed")), (1, (Verb.DROP, "dram", None)),
                                   (2, (Verb.FETCH, "packed", "dram")))
        for number in range(len(rows))
    ]  # fmt: skip
    begins = tuple(Begin(number, "dram") for number in range(len(rows)))
    return trace, schedule_of(commands, machine(None), begins)


@pytest.mark.parametrize("chunk_bytes", [None, 1000])
def test_what_lies_there_takes_what_it_shrinks_to(chunk_bytes: int | None) -> None:
    trace, schedule = away_and_back([350, 250, 0])
    found = simulate(schedule, trace, machine(600, chunk_bytes), pages_of(PAGE))
    assert found.tiers["packed"].peak_bytes == 600
    assert found.moved_bytes == {"dram->packed": 3 * PAGE, "packed->dram": 3 * PAGE}  # the link moves all of the bytes
    assert found.step_ns == trace.step_ns  # they had a ms each way


@pytest.mark.parametrize("capacity", [None, 600, 0])
def test_what_does_not_shrink_goes_to_the_file(capacity: int | None) -> None:
    trace, schedule = away_and_back([None, 300])
    found = simulate(schedule, trace, machine(capacity), pages_of(PAGE))
    slow = {"dram->file": PAGE, "file->dram": PAGE}
    fast = {"dram->packed": PAGE, "packed->dram": PAGE}
    assert found.moved_bytes == (slow | fast if capacity != 0 else dict.fromkeys(slow, 2 * PAGE))
    assert found.tiers["packed"].peak_bytes == (0 if capacity == 0 else 300)


def test_a_full_one_is_passed() -> None:
    trace, schedule = away_and_back([300, 300, 300])
    found = simulate(schedule, trace, machine(650), pages_of(PAGE))
    assert found.tiers["packed"].peak_bytes == 600
    assert found.moved_bytes["dram->file"] == PAGE


def test_a_policy_evicts_there_what_shrinks() -> None:
    """Two pages at a time, of which one shrinks: each pair leaves for the other."""
    rows = [replace(parameter(PAGE, 4), packed_bytes=size) for size in (350, None, 350, None)]
    trace = step([10**6] * 4, rows, [(0, 0, W), (1, 0, W), (2, 2, W), (3, 2, W)])
    found = simulate_policy("lru", trace, machine(10**6).with_budget(2 * PAGE), pages_of(PAGE))
    assert found.moved_bytes == dict.fromkeys(("dram->packed", "packed->dram", "dram->file", "file->dram"), 2 * PAGE)
    assert found.tiers["packed"].peak_bytes == 700  # one that leaves, while another comes back
