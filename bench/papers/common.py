"""What the scripts of ``bench/papers`` share: a claim and what came of it, what a plan comes to, machines changed."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import arena_pages, live_bytes, needed_bytes, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace
from ebbtide.simulator import Outcome, simulate
from ebbtide.simulator.lowering import lower

GB = 10**9
BLOCKS = 1e6
"""``slows_compute`` of a link for whose copies compute waits."""


@dataclass(frozen=True, slots=True)
class Row:
    """A claim of a source, its figure there, ours (simulated, and real where something ran), and whether it held.

    ``held`` begins with yes, part or no; what follows says why, and on which assumption it hangs. ``real`` names its
    build, or a test.
    """

    claim: str
    source: str
    simulated: str
    real: str
    held: str

    def __post_init__(self) -> None:
        if not re.match(r"(yes|part|no)\b", self.held):
            raise ValueError(f"{self.claim}: {self.held!r} says neither yes, part nor no")
        if not re.search(r"\d", self.simulated + self.real + self.held):
            raise ValueError(f"{self.claim}: no figure of ours")
        if self.real and not re.search(r"build [0-9a-f]{7}|`tests/", self.real):
            raise ValueError(f"{self.claim}: what is real names neither a build nor a test")


def within(values: Iterable[float], low: float, high: float) -> str:
    """Say "yes" if all values lie in the source's range, "part" if some do, else "no"."""
    inside = [low <= value <= high for value in values]
    return "yes" if all(inside) else "part" if any(inside) else "no"


def spread(values: Sequence[float], form: str) -> str:
    """Return the least and the greatest, or the one that there is."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def mean_ratio(values: Sequence[float]) -> float:
    return geometric_mean(values)


def peak_of(trace: Trace) -> int:
    return peak(live_bytes(trace, arena_pages))


def least_of(trace: Trace) -> int:
    """Return the least budget in which every operation has room."""
    return peak(needed_bytes(trace, arena_pages))


def outcome_of(plan: Plan, trace: Trace, machine: Machine) -> Outcome:
    bounded = machine.with_budget(plan.budget_bytes)
    return simulate(lower(plan, trace, bounded), trace, bounded, arena_pages)


def with_links(machine: Machine, **changes: object) -> Machine:
    links = tuple(replace(link, **changes) for link in machine.links)  # type: ignore[arg-type]
    return replace(machine, links=links)


def with_tiers(machine: Machine, **changes: object) -> Machine:
    tiers = tuple(replace(tier, **changes) for tier in machine.tiers)  # type: ignore[arg-type]
    return replace(machine, tiers=tiers)
