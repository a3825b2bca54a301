"""The problem of a search for a plan: the step's idle intervals, their costs, and all else that stays the same."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.ir.base import LARGEST, Flags, Floats, Ints
from ebbtide.ir.machine import Link, Machine
from ebbtide.ir.occupancy import PageSize, live_bytes, needed_bytes, occupancy
from ebbtide.ir.stay_columns import StayColumns
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of, require_levels
from ebbtide.planners.search.bound import lost_per_byte, never_used_bytes
from ebbtide.planners.search.idle_table import IdleTable, idle_table
from ebbtide.planners.search.slow_tiers import homeless_tier, reachable_tiers
from ebbtide.planners.search.timing import Clock, still_stays
from ebbtide.simulator import Outcome, Simulator

_LOST = 0.1
"""The least share of a copy's time that counts as lost to compute."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """The fixed part of a search. ``live`` leaves out storages that are never used. Costs are in ns.

    ``still`` has each storage's stay if it does not move, and ``elsewhere`` those of them outside fast memory. Compute
    loses the shares ``fetch_lost`` and ``write_lost`` of the costs even if it does not wait. Storages may go to
    ``tiers``. ``held`` counts what lies on each slow tier for good, by tick.
    """

    trace: Trace
    machine: Machine
    idle: IdleTable
    page_bytes: PageSize
    live: Ints
    needed: Ints
    fetch_cost: Floats
    write_cost: Floats
    fetch_lost: Floats
    write_lost: Floats
    tiers: tuple[str, ...]
    held: Mapping[str, Ints]
    clock: Clock
    simulator: Simulator
    still: StayColumns
    elsewhere: StayColumns

    @property
    def before_slowest_bytes(self) -> int:
        """Return what the slow tiers before the slowest hold together, or LARGEST if there are none, or one has no
        limit. What packs has none that is known."""
        tiers = [self.machine.tier(name) for name in self.tiers[:-1]]
        limits = [LARGEST if tier.packs or tier.capacity_bytes is None else tier.capacity_bytes for tier in tiers]
        return min(sum(limits), LARGEST) if limits else LARGEST

    def simulated(self, moved: StayColumns, n_steps: int) -> Outcome:
        """Simulate the plan in which all other storages are ``still``.

        Storages that are always in fast memory have no commands, so they are left out. For one storage that moves, ten
        stay.
        """
        return self.simulator.run_stays(self.elsewhere.without(moved.storage) + moved, n_steps)


def problem_of(trace: Trace, machine: Machine, still: StayColumns | None = None) -> Problem:
    """Return the problem with all slow tiers but those that pack. Callers MUST have seen that the machine has such a
    tier. ``still`` are the step's ``still_stays``, where they are known."""
    page_bytes = page_size_of(machine)
    idle = idle_table(trace, machine.exclusive, page_bytes)
    tiers = reachable_tiers(machine)
    if still is None:
        still = still_stays(trace, machine.rank(homeless_tier(machine)))
    elsewhere = still.of(still.tier != 0)
    everything = np.ones(len(idle), dtype=bool)
    return Problem(
        trace,
        machine,
        idle,
        page_bytes,
        live_bytes(trace, page_bytes) - never_used_bytes(trace, page_bytes),
        needed_bytes(trace, page_bytes),
        *_costs(machine, idle, [(tiers[0], everything)]),
        tuple(tiers),
        held_for_good(trace, machine, elsewhere),
        Clock(trace.start_ns(np.arange(len(trace.ticks) + 1))),
        Simulator(trace, machine, page_bytes),
        still,
        elsewhere,
    )


def held_for_good(trace: Trace, machine: Machine, elsewhere: StayColumns) -> Mapping[str, Ints]:
    """Return the bytes that stay on each slow tier, at each tick."""
    fast, *slow = (tier.name for tier in machine.tiers)
    return occupancy(trace, elsewhere.stays([fast, *slow]), slow, page_size_of(machine), machine.packing)


def with_packing(problem: Problem) -> Iterator[Problem]:
    """Yield the problem with the tiers that pack. Yields nothing without such a tier, or where nothing shrinks."""
    machine, idle = problem.machine, problem.idle
    tiers = tuple(reachable_tiers(machine, packing=True))
    shrinks = problem.trace.storages.packed_bytes[idle.storage] >= 0
    if tiers == problem.tiers or not shrinks.any():
        return
    first = [(name, shrinks) for name in tiers if machine.tier(name).packs][:1]
    fetch_cost, write_cost, fetch_lost, write_lost = _costs(machine, idle, [(problem.tiers[0], ~shrinks), *first])
    yield replace(
        problem,
        tiers=tiers,
        fetch_cost=fetch_cost,
        write_cost=write_cost,
        fetch_lost=fetch_lost,
        write_lost=write_lost,
    )


def _costs(machine: Machine, idle: IdleTable, first: list[tuple[str, Flags]]) -> tuple[Floats, Floats, Floats, Floats]:
    """Return fetch and write costs, and the share of each that compute loses.

    ``first`` has the tier that rows go to if they can.
    """
    fetch, fetch_lost = np.zeros(len(idle)), np.zeros(len(idle))
    write, write_lost = np.zeros(len(idle.dirty)), np.zeros(len(idle.dirty))
    for tier, rows in first:
        inward, outward = machine.ways(tier)
        fetch[rows], fetch_lost[rows] = inward.copy_ns(idle.nbytes[rows]), _lost_share(machine, inward)
        group = idle.group[rows]
        write[group], write_lost[group] = outward.copy_ns(idle.nbytes[rows]), _lost_share(machine, outward)
    return np.where(idle.returns, fetch, 0.0), np.where(idle.dirty, write, 0.0), fetch_lost, write_lost


def _lost_share(machine: Machine, link: Link) -> float:
    """Return at least _LOST: a copy that slows nothing still takes a link's time, room, and wear."""
    return max(lost_per_byte(machine, [link]) * link.most_bytes_per_s / 1e9, _LOST)


def require_feasible(problem: Problem, budget_bytes: int) -> None:
    """Raise InfeasibleBudgetError if the step does not fit even when all that may leave is away."""
    require_levels(problem.idle.left(slice(None), problem.live), problem.trace, budget_bytes)


def lacks_bytes(problem: Problem, budget_bytes: int) -> int:
    """Return how many bytes the budget lacks when all that may leave is away, or 0 or less."""
    return int(problem.idle.left(slice(None), problem.live).max()) - budget_bytes
