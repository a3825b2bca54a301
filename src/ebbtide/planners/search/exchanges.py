"""Exchanges contents between two slow tiers where compute waits for the slower one, and the faster one is full.

``slow_tiers`` books links' time as if copies had room whenever a link is idle. The simulator shows where they have not:
compute waits at some ticks, and later the slower tier's link is idle. So some contents for which compute waits move to
the faster tier, and others, which lie there meanwhile but are needed at another time, move to the slower one. Which
ones is drawn at random, weighted by how long compute waits, from a fixed seed. The caller simulates each proposal.
"""

from dataclasses import dataclass, field

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.planners.search.problem import Problem
from ebbtide.planners.search.slow_tiers import Stored, stored_groups
from ebbtide.simulator import Outcome

_WIDTHS = 2.0 ** -np.arange(4, 9)
"""Contents count as waited for if they are needed so many steps, or less, before the end of a wait."""
_MOST_IN = 3
_MOST_OUT = 60
"""The most groups that go to the faster tier at once, and that are looked at to make room for them."""
_DRAWS = 20
"""So many draws without a proposal are enough."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchanges:
    """The ``chosen`` intervals of a plan, whose groups may change places. A home is a tier's place in the problem's."""

    problem: Problem
    chosen: Ints
    stored: Stored
    needed: Ints  # by group, the tick of its last fetch, or -1
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @staticmethod
    def of(problem: Problem, chosen: Ints) -> "Exchanges":
        idle = problem.idle
        stored = stored_groups(idle, chosen, len(problem.trace.ticks), problem.trace.storages.packed_bytes)
        until = np.where(idle.returns[chosen], idle.until[chosen], -1)
        needed = np.maximum.reduceat(until, stored.first) if len(chosen) else until
        return Exchanges(problem, chosen, stored, needed)

    def drawn(self, homes: Ints, outcome: Outcome) -> Ints | None:
        """Propose other homes for the chosen rows, by a simulation with these. None if nothing can be exchanged."""
        stalls = outcome.stall_ns / max(int(outcome.stall_ns.sum()), 1)
        now = homes[self.stored.first]
        full = [at for at in range(len(self.problem.tiers) - 1) if self._spare(at) is not None and (now > at).any()]
        for _ in range(_DRAWS if full and stalls.any() else 0):
            place = int(self.random.choice(full))
            proposed = self._exchanged(now, place, int(self.random.choice(len(stalls), p=stalls)), outcome)
            if proposed is not None:
                return np.repeat(proposed, self.stored.last - self.stored.first)
        return None

    def _exchanged(self, now: Ints, place: int, waits: int, outcome: Outcome) -> Ints | None:
        """Move some groups for which tick ``waits`` waits from the tier after ``place`` to it, and others back."""
        stored, packs = self.stored, self._packs(place)
        needed = outcome.start_ns[self.needed % len(outcome.stall_ns)]
        end, width = outcome.start_ns[waits], self.random.choice(_WIDTHS) * outcome.step_ns
        is_late = (self.needed >= 0) & (needed <= end) & (needed > end - width)
        late = np.flatnonzero(is_late & (now == place + 1) & (stored.sizes(packs) >= 0))
        if not len(late):
            return None
        comes = self.random.choice(late, min(len(late), int(self.random.integers(1, _MOST_IN + 1))), replace=False)
        homes = now.copy()
        homes[comes] = place
        low, high = stored.low[comes].min(), stored.high[comes].max()
        beside = (stored.low < high) & (stored.high > low)
        others = np.flatnonzero((self.needed >= 0) & ~is_late & (now == place) & beside)
        for other in self.random.permutation(others)[:_MOST_OUT].tolist():
            if self._fits(homes, place):
                break
            homes[other] = place + 1
        return homes if self._fits(homes, place) and self._fits(homes, place + 1) else None

    def _packs(self, place: int) -> bool:
        return self.problem.machine.tier(self.problem.tiers[place]).packs

    def _fits(self, homes: Ints, place: int) -> bool:
        spare = self._spare(place)
        return spare is None or self.stored.fits(homes == place, self._packs(place), spare)

    def _spare(self, place: int) -> Ints | None:
        """Return the room of a tier at each tick beside what lies there for good, or None if it has no limit."""
        problem = self.problem
        tier = problem.machine.tier(problem.tiers[place])
        if tier.capacity_bytes is None:
            return None
        nothing: Ints = np.zeros(len(problem.trace.ticks), dtype=np.int64)
        spare: Ints = tier.capacity_bytes - problem.held.get(tier.name, nothing)
        return spare
