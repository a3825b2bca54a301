"""What links could move at most: no bound is above what a plan takes, and none takes for ever."""

from dataclasses import replace
from itertools import permutations

import pytest

from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Tier
from ebbtide.planners import plan
from ebbtide.planners.search import bound
from ebbtide.planners.search.bound import lost_per_byte, lower_bound_ns, ns_per_byte
from tests.helpers.make_steps import budget_at, disk, network, simulated


def test_a_link_that_is_faster_beside_operations_counts_as_fast_as_that() -> None:
    machine = disk()
    links = tuple(replace(link, beside_bytes_per_s=4 * link.bytes_per_s) for link in machine.links)
    machine, trace = replace(machine, links=links), network(6)
    budget = budget_at(trace, 0.2)
    found = plan("ebbtide", trace, machine, budget)
    assert found.lower_bound_ns <= simulated(found, trace, machine).step_ns
    assert found.lower_bound_ns > trace.step_ns  # moves do cost something


def of_tiers(count: int) -> Machine:
    """Each two have links, as `ebbtide probe` makes them, which slow operations and share what a disk has."""
    names = ["dram", *(f"tier{number}" for number in range(1, count))]
    links = tuple(Link(a, b, 10**9, 0, "disk", slows_compute=0.25) for a, b in permutations(names, 2))
    tiers = (Tier("dram", InPlace.ALL), *(Tier(name, InPlace.NOTHING) for name in names[1:]))
    return Machine("many tiers", Origin.ASSUMED, tiers, links, (LinkGroup("disk", 3 * 10**9),))


def test_many_links_are_bounded_at_once() -> None:
    """Six tiers have thirty links, and a billion sets of them."""
    machine, trace = of_tiers(6), network(3)
    bounded = lower_bound_ns(trace, machine, budget_at(trace, 0.2))
    assert bounded >= trace.step_ns


def test_the_bound_of_many_links_is_none_above_that_of_each_combination(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = of_tiers(3)
    inward = [link for link in machine.links if link.target == "dram"]
    outward = [link for link in machine.links if link.source == "dram"]
    exact = lost_per_byte(machine, inward), ns_per_byte(machine, inward, outward)
    monkeypatch.setattr(bound, "_MANY", 1)
    loose = lost_per_byte(machine, inward), ns_per_byte(machine, inward, outward)
    assert loose[0] <= exact[0]
    for each, all_of_them in zip(loose[1], exact[1], strict=True):
        assert each[0] <= all_of_them[0]
        assert each[1] <= all_of_them[1]
