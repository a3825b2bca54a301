"""Chooses the storages that lie in a slow tier for their whole life, where operations may use it in place.

A storage's life in the slow tier costs the extra time of its uses ([Note: in place]), and gives its room to every tick
of it. That is a covering problem like the choice of intervals (``choice``), so both are solved as one. An interval
costs the time that its copies take from compute, times a factor. Several factors are tried, since only a simulation
shows for how much of the copies compute waits. A storage chosen for its whole life stays in the slow tier. The search
plans for the others as if these were not there. Left out: a storage that is used in place in one part of its life only.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.ir.base import Flags, Floats, Ints
from ebbtide.ir.machine import Tier
from ebbtide.ir.occupancy import levels, paged_sizes
from ebbtide.ir.trace import Access
from ebbtide.planners.search.choice import Demand, choose
from ebbtide.planners.search.idle_table import IdleTable
from ebbtide.planners.search.problem import Problem, held_for_good

_FACTORS = (1.0, 3.0, 10.0, np.inf)
"""The factors of the intervals' cost. The last forbids intervals."""


@dataclass(frozen=True, slots=True, eq=False)
class _Lives:
    """Storages as columns: each may lie in ``tier`` during [birth, death). Its uses then take ``cost`` ns longer."""

    tier: Tier
    storage: Ints
    birth: Ints
    death: Ints
    paged_bytes: Ints
    cost: Floats

    def levels(self, rows: Ints, n_ticks: int) -> Ints:
        """Return bytes at each tick."""
        return levels(self.birth[rows], self.death[rows], self.paged_bytes[rows], n_ticks)


def placed_in_slow(problem: Problem, budget_bytes: int) -> Iterator[Problem]:
    """Yield the problem with some storages in a slow tier for good, in several ways. Without such a tier, yields
    nothing."""
    for tier in problem.machine.tiers[1:]:
        if not tier.in_place.reads:
            continue
        lives, tried = _lives_of(problem, tier), set[bytes]()
        for factor in _FACTORS:
            rows = _choice(problem, lives, budget_bytes, factor)
            if rows is None or not len(rows) or rows.tobytes() in tried:
                continue
            tried.add(rows.tobytes())
            held = lives.levels(rows, len(problem.live))
            if tier.capacity_bytes is None or int(held.max()) <= tier.capacity_bytes:
                yield _without(problem, lives, rows)


def _lives_of(problem: Problem, tier: Tier) -> _Lives:
    trace, machine = problem.trace, problem.machine
    slower = [machine.in_place_ns(tier.name, 10**6, 0) / 1e6, machine.in_place_ns(tier.name, 0, 10**6) / 1e6]
    rows, storages = trace.accesses, trace.storages
    reads, writes = rows.mode & Access.READ != 0, rows.mode & Access.WRITE != 0
    longer = storages.nbytes[rows.storage] * (reads * slower[0] + writes * slower[1])
    count = len(storages)
    cost: Floats = np.bincount(rows.storage, longer, count).astype(np.float64)
    written = np.bincount(rows.storage, writes, count) > 0
    may = ~storages.scratch & (storages.death - storages.birth <= len(trace.ticks))
    may &= problem.still.tier == 0
    if not tier.in_place.writes:
        may &= storages.persistent & ~written
    found, paged = np.flatnonzero(may), paged_sizes(trace, problem.page_bytes)
    return _Lives(tier, found, storages.birth[found], storages.death[found], paged[found], cost[found])


def _choice(problem: Problem, lives: _Lives, budget_bytes: int, factor: float) -> Ints | None:
    """Return rows of ``lives`` to place in the slow tier. Returns None if they and the intervals cannot make the
    room."""
    idle, n_lives = problem.idle, len(lives.storage)
    moves = np.isfinite(factor)
    old = len(idle) if moves else 0
    n_groups = len(idle.dirty)
    both = IdleTable(
        np.concatenate((idle.storage[:old], lives.storage)),
        np.concatenate((idle.after[:old], lives.birth - 1)),
        np.concatenate((idle.until[:old], lives.death)),
        np.concatenate((idle.returns[:old], np.zeros(n_lives, dtype=bool))),
        np.concatenate((idle.nbytes[:old], lives.paged_bytes)),
        np.concatenate((idle.paged_bytes[:old], lives.paged_bytes)),
        np.concatenate((idle.group[:old], n_groups + np.arange(n_lives))),
        np.concatenate((idle.written, np.zeros(n_lives, dtype=np.int64))),
        np.concatenate((idle.dirty, np.zeros(n_lives, dtype=bool))),
    )
    weight = factor if moves else 0.0
    cost = np.concatenate((problem.fetch_cost[:old] * (problem.fetch_lost[:old] * weight), lives.cost))
    write_cost = np.concatenate((problem.write_cost * (problem.write_lost * weight), np.zeros(n_lives)))
    demand = Demand(both.after + 1, both.until, problem.live - budget_bytes)
    chosen = choose(both, demand, demand, cost, write_cost)
    return None if chosen is None else np.flatnonzero(chosen[old:])


def _without(problem: Problem, lives: _Lives, rows: Ints) -> Problem:
    """Return the same problem with these storages in the slow tier for good."""
    placed, idle = lives.storage[rows], problem.idle
    keep = ~np.isin(idle.storage, placed)
    tier = problem.still.tier.copy()
    tier[placed] = problem.machine.rank(lives.tier.name)
    still = replace(problem.still, tier=tier)
    elsewhere = still.of(tier != 0)
    return replace(
        problem,
        idle=_kept(idle, keep),
        live=problem.live - lives.levels(rows, len(problem.live)),
        needed=_needed(problem, placed),
        fetch_cost=problem.fetch_cost[keep],
        fetch_lost=problem.fetch_lost[keep],
        held=held_for_good(problem.trace, problem.machine, elsewhere),
        still=still,
        elsewhere=elsewhere,
    )


def _kept(idle: IdleTable, keep: Flags) -> IdleTable:
    """Keep some rows. Groups keep their numbers."""
    names = ("storage", "after", "until", "returns", "nbytes", "paged_bytes", "group")
    return replace(idle, **{name: getattr(idle, name)[keep] for name in names})


def _needed(problem: Problem, placed: Ints) -> Ints:
    """Return the fast memory that each tick's operation needs when those ``placed`` are used where they lie."""
    trace, paged = problem.trace, paged_sizes(problem.trace, problem.page_bytes)
    here = np.isin(trace.accesses.storage, placed)
    born = placed[~trace.storages.persistent[placed]]
    number = np.concatenate((trace.accesses.storage[here], born))
    tick = np.concatenate((trace.accesses.tick[here], trace.storages.birth[born]))
    number, tick = np.unique(np.stack((number, tick)), axis=1)
    return problem.needed - levels(tick, tick + 1, paged[number], len(problem.live))
