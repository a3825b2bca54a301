"""Searches plans that move contents: it chooses intervals, times their copies and simulates them, in turns.

The number of simulations bounds a search and depends on the step's size alone. So plans are deterministic unless the
time limit strikes.
"""

from dataclasses import dataclass, replace
from itertools import product
from time import process_time_ns

import numpy as np

from ebbtide.ir.base import Flags, Floats, Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.stay_columns import StayColumns
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.planners.search.choice import Demand, choose
from ebbtide.planners.search.exchanges import Exchanges
from ebbtide.planners.search.problem import Problem, lacks_bytes
from ebbtide.planners.search.slow_tiers import assign_tiers
from ebbtide.planners.search.timing import Clock, Pace, moved_stays, time_moves
from ebbtide.simulator import Outcome


@dataclass(frozen=True, slots=True)
class _Start:
    """The start of a search. ``reserve`` is the share of the budget that the choice leaves for copies under way, where
    that adds nothing to what the slowest of several slow tiers has to hold.

    ``clean_early`` and ``lazy`` are those of ``Pace``. ``thrifty`` shares slow tiers out in the thrifty way
    (``slow_tiers``).
    """

    reserve: float
    clean_early: bool = True
    lazy: bool = False
    thrifty: bool = False


_STARTS = (
    _Start(0.0),
    _Start(0.0, thrifty=True),
    _Start(0.4),
    _Start(0.0, lazy=True),
    _Start(0.1),
    _Start(0.3),
    _Start(0.0, clean_early=False),
    _Start(0.5),
)
"""Large steps get few simulations, and try the first three alone. Of plans that are good enough the first wins. Small
reserves move fewer bytes."""
_FEWEST, _MOST, _WORK = 10, 40, 200_000
"""Bounds of the number of simulated plans, unless time is up. Larger steps get fewer; work is in ticks and storages."""
_KEPT = 16
"""So many of the best plans are kept, and simulated for one more step at the end. The others would take memory."""
_PATIENCE = 3
"""The search for one budget ends after so many new choices in a row without a better plan."""
_BETTER = 0.999
"""A step this many times as long, or shorter, is worth another try of the same kind."""
_SLACK = 2.0
"""A chosen interval gives relief only after this many times its copies' duration."""
_LEAD = 0.1
"""Fetches go ahead of need by up to this share of a step, where there is room."""
_MARGINS, _LEADS = (1.0, 1.15, 1.4), (0.0, 0.02, 0.2, 1.0)
"""Other paces for the best plan: factors of the copies' times, and leads as shares of a step."""
POLISH = 25
"""The most plans that are simulated for other paces, beyond all others."""
_BRIEF = 4
"""The simulations of a brief search."""
_EXCHANGES = 100
"""So many times contents are exchanged between slow tiers."""
GOOD_ENOUGH = 1.003
"""The search ends within this factor of the lower bound."""
_LEVELS_PER_DOUBLING = 4
"""The number of smaller budgets that are tried within a factor of two."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A simulated plan, and how it came about. ``moved`` are the stays of the storages that move. ``homes`` has the
    place of its slow tier for each chosen row."""

    moved: StayColumns
    outcome: Outcome
    chosen: Flags
    homes: Ints
    start: _Start
    pace: Pace
    budget_bytes: int

    @property
    def step_ns(self) -> int:
        return self.outcome.step_ns


class MoveSearch:
    """Keeps the best candidates, and counts simulations."""

    def __init__(self, problem: Problem, budget_bytes: int, bound_ns: int, deadline_ns: int, effort: int) -> None:
        self.problem, self.budget_bytes, self.bound_ns, self.deadline_ns = problem, budget_bytes, bound_ns, deadline_ns
        self.effort = effort
        work = len(problem.trace.ticks) + 2 * len(problem.idle) + len(problem.trace.storages) // 4
        self.left = max(_FEWEST, min(_MOST, _WORK // max(work, 1))) * effort
        self.best: Candidate | None = None
        self.tried: list[Candidate] = []  # the best, the fastest first
        exclusive, share = problem.machine.exclusive, directions_share(problem.machine)
        # On an exclusive machine, a write cannot come early. A write in no fetch's way is not put off.
        several = any(problem.machine.tier(name).capacity_bytes is not None for name in problem.tiers[:-1])
        self.starts = [
            start
            for start in _STARTS
            if (start.clean_early or not exclusive) and (share or not start.lazy) and (several or not start.thrifty)
        ]
        self.pace: Pace | None = None  # of all first tries, where it is known
        self.out_of_time = False
        self.last_homes: tuple[object, list[str]] = None, []

    def run(self) -> Candidate:
        self._at(self.budget_bytes, max(_FEWEST, self.left // 3 * 2))
        for smaller in self._levels():
            if self._done(0):
                break
            bound = lower_bound_ns(self.problem.trace, self.problem.machine, smaller)
            if self.best is not None and bound * GOOD_ENOUGH >= self.best.step_ns:
                break
            self._at(smaller, max(self.left // 2, 4))
        choices: dict[bytes, Candidate] = {}
        for one in self.tried:
            choices.setdefault(one.chosen.tobytes(), one)
        for best in [*choices.values()][: self.effort + 1]:
            self.polish(best)
        return self.exchanged(self.confirmed())

    def exchanged(self, best: Candidate) -> Candidate:
        """Return the plan with some contents in another slow tier, if that is faster.

        A proposal is timed by the ticks of the best simulation so far and by those without stalls, in turns.
        """
        exchanges, first = Exchanges.of(self.problem, np.flatnonzero(best.chosen)), best
        for at in range(_EXCHANGES * self.effort):
            good = best.step_ns <= self.bound_ns * GOOD_ENOUGH
            if good or self._is_late() or (homes := exchanges.drawn(best.homes, best.outcome)) is None:
                break
            clock = self.problem.clock if at % 2 else Clock(best.outcome.start_ns)
            moved = self._moved_so(best, homes, clock)
            outcome = self.problem.simulated(moved, 2)
            if outcome.step_ns < best.step_ns:
                best = replace(best, moved=moved, outcome=outcome, homes=homes)
        if best is first:
            return first
        best = replace(best, outcome=self.problem.simulated(best.moved, 3))
        return best if best.step_ns < first.step_ns else first

    def _moved_so(self, best: Candidate, homes: Ints, clock: Clock) -> StayColumns:
        """Time the intervals of a plan anew, with other homes."""
        problem, rows = self.problem, np.flatnonzero(best.chosen)
        free = best.budget_bytes - problem.idle.left(best.chosen, problem.live)
        slow = [problem.tiers[at] for at in homes.tolist()]
        moves = time_moves(problem.idle, rows, slow, free, problem.machine, clock, best.pace)
        away = moves.gone < moves.back
        return moved_stays(problem.trace, problem.idle, moves.of(away))

    def briefly(self, like: Candidate) -> None:
        """Search with a few simulations what a longer search of another step found to be good."""
        self.left, self.starts, self.pace = _BRIEF, [like.start], like.pace
        budget_bytes = like.budget_bytes if lacks_bytes(self.problem, like.budget_bytes) <= 0 else self.budget_bytes
        self._at(budget_bytes, _BRIEF)

    def polish(self, best: Candidate) -> None:
        """Try the intervals of ``best`` at other paces.

        No price tells how far ahead fetches should go, and how much longer copies may take.
        """
        floor, clock = self.left - POLISH, Clock(best.outcome.start_ns)
        share = directions_share(self.problem.machine)
        for margin, lead, lazy in product(_MARGINS, _LEADS, (False, True) if share else (best.pace.lazy,)):
            if self._done(floor):
                return
            pace = replace(best.pace, margin=margin, lead_ns=lead * self.problem.clock.step_ns, lazy=lazy)
            self._try(self.budget_bytes, best.chosen, best.start, pace, clock)
        if self.best is not best and self.best is not None and not self._done(floor):
            self._again(self.budget_bytes, self.best)

    def confirmed(self) -> Candidate:
        """Return the best by the third step, since one step's effect on the next may show only then."""
        problem, best = self.problem, None
        for candidate in self.tried:
            if best is not None and candidate.step_ns >= best.step_ns:
                break
            outcome = problem.simulated(candidate.moved, 3)
            if best is None or outcome.step_ns < best.step_ns:
                best = replace(candidate, outcome=outcome)
        assert best is not None
        return best

    def _levels(self) -> list[int]:
        """Return the smaller budgets that may do, the largest first. Their grid does not depend on the budget."""
        least = int(self.problem.needed.max(initial=1))
        level = int(np.floor(np.log2(max(self.budget_bytes - 1, 1)) * _LEVELS_PER_DOUBLING))
        grid = [int(2 ** (at / _LEVELS_PER_DOUBLING)) for at in range(level, 0, -1)]
        return [smaller for smaller in grid if least <= smaller < self.budget_bytes]

    def _done(self, floor: int) -> bool:
        """Say whether the search ends here, after at least one simulation.

        It ends with a plan that is good enough, with ``floor`` simulations left, or out of time.
        """
        if self.best is None:
            return False
        return self.left <= floor or self._is_late() or self.best.step_ns <= self.bound_ns * GOOD_ENOUGH

    def _is_late(self) -> bool:
        self.out_of_time = self.out_of_time or process_time_ns() > self.deadline_ns
        return self.out_of_time

    def _at(self, budget_bytes: int, simulations: int) -> None:
        """Search plans for one budget."""
        floor, found = self.left - simulations, list[Candidate]()
        problem = self.problem
        costs = (problem.fetch_cost * problem.fetch_lost, problem.write_cost * problem.write_lost)
        for start in self.starts[: max(1, simulations // 3)]:
            pace = self.pace or Pace(1.0, _LEAD * self.problem.clock.step_ns, start.clean_early, start.lazy)
            if self._done(floor) or (chosen := self._choose(budget_bytes, start, costs, self.problem.clock)) is None:
                break
            found.append(self._try(budget_bytes, chosen, start, pace, self.problem.clock))
        while found and not self._done(floor):
            best = min(found, key=lambda candidate: candidate.step_ns)
            found.append(self._again(budget_bytes, best))
            if found[-1].step_ns >= best.step_ns * _BETTER:
                break
        stale = 0
        while found and stale < _PATIENCE * self.effort and not self._done(floor):
            best = min(found, key=lambda candidate: candidate.step_ns)
            costs = self._dearer(costs, best.outcome)
            chosen = self._choose(budget_bytes, best.start, costs, Clock(best.outcome.start_ns))
            assert chosen is not None
            found.append(self._try(budget_bytes, chosen, best.start, best.pace, Clock(best.outcome.start_ns)))
            if not self._done(floor):
                found.append(self._again(budget_bytes, found[-1]))
            stale = 0 if min(candidate.step_ns for candidate in found[-2:]) < best.step_ns else stale + 1
            found = [min(found, key=lambda candidate: candidate.step_ns)]

    def _again(self, budget_bytes: int, candidate: Candidate) -> Candidate:
        """Time the same intervals again, by the ticks of their simulation."""
        clock = Clock(candidate.outcome.start_ns)
        return self._try(budget_bytes, candidate.chosen, candidate.start, candidate.pace, clock)

    def _choose(self, budget_bytes: int, start: _Start, costs: tuple[Floats, Floats], clock: Clock) -> Flags | None:
        problem, idle = self.problem, self.problem.idle
        out_ns = problem.write_cost[idle.group]
        low = clock.at_or_after(clock.of(idle.after + 1) + _SLACK * out_ns)
        high = clock.at_or_before(clock.of(idle.until) - _SLACK * problem.fetch_cost)
        high = np.where(idle.returns, high, idle.until)
        low = np.minimum(low, idle.until)
        # A larger reserve would send more to the slowest tier than the step's peak does.
        most = max(budget_bytes + problem.before_slowest_bytes, int(problem.live.max()))
        reserve: Ints = np.minimum(int(start.reserve * budget_bytes), most - problem.live)
        allowed = np.maximum(budget_bytes - reserve, problem.needed)
        must = Demand(idle.after + 1, idle.until, problem.live - budget_bytes)
        wish = Demand(low, np.maximum(low, high), problem.live - allowed)
        return choose(idle, must, wish, *costs)

    def _try(self, budget_bytes: int, chosen: Flags, start: _Start, pace: Pace, clock: Clock) -> Candidate:
        """Time and simulate a choice. Intervals that would not be away for any tick are dropped."""
        problem, idle = self.problem, self.problem.idle
        trace, machine = problem.trace, problem.machine
        while True:
            rows = np.flatnonzero(chosen)
            slow = self._homes(rows, start.thrifty, clock)
            free = budget_bytes - idle.left(chosen, problem.live)
            moves = time_moves(idle, rows, slow, free, machine, clock, pace)
            staying = moves.row[moves.gone >= moves.back]
            if not len(staying):
                break
            chosen = chosen.copy()
            chosen[staying] = False
        moved = moved_stays(trace, idle, moves)
        place = {name: at for at, name in enumerate(problem.tiers)}
        homes = np.fromiter((place[name] for name in slow), dtype=np.int64, count=len(slow))
        candidate = Candidate(moved, problem.simulated(moved, 2), chosen, homes, start, pace, budget_bytes)
        self.tried = sorted([*self.tried, candidate], key=lambda one: one.step_ns)[:_KEPT]
        self.left -= 1
        if self.best is None or candidate.step_ns < self.best.step_ns:
            self.best = candidate
        return candidate

    def _homes(self, rows: Ints, thrifty: bool, clock: Clock) -> list[str]:
        """Return the intervals' slow tiers, from the last call if nothing has changed."""
        key, problem = (rows.tobytes(), thrifty, clock), self.problem
        if self.last_homes[0] != key:
            found = assign_tiers(
                problem.trace, problem.machine, problem.idle, rows, clock, problem.tiers, problem.held, thrifty
            )
            self.last_homes = key, found
        return self.last_homes[1]

    def _dearer(self, costs: tuple[Floats, Floats], outcome: Outcome) -> tuple[Floats, Floats]:
        """Move costs halfway to those of the simulated step with its stalls.

        A copy there costs its time multiplied by a share: the time that compute waits near the copy, and what compute
        loses to it in any case.
        """
        idle, n_ticks = self.problem.idle, len(self.problem.trace.ticks)
        waits = stall_share(outcome)
        of_group = np.zeros(len(idle.dirty))
        np.maximum.at(of_group, idle.group, waits[idle.after % n_ticks])
        fetch = self.problem.fetch_cost * (self.problem.fetch_lost + waits[idle.until % n_ticks])
        write = self.problem.write_cost * (self.problem.write_lost + of_group)
        return (costs[0] + fetch) / 2, (costs[1] + write) / 2


def directions_share(machine: Machine) -> bool:
    """Say whether a write can be in a fetch's way: links from the fast tier and links to it share a group."""
    fast = machine.tiers[0].name
    away = {link.shares for link in machine.links if link.source == fast}
    back = {link.shares for link in machine.links if link.target == fast}
    return bool((away & back) - {None})


def stall_share(outcome: Outcome, bins: int = 64) -> Floats:
    """Return for each tick the share of time that compute waits around it, in its ``bins``-th of the step and beside
    it."""
    stalls = outcome.stall_ns.astype(np.float64)
    width = max(outcome.step_ns, 1) / bins
    place = np.minimum(((outcome.start_ns[:-1] + stalls / 2) / width).astype(np.int64), bins - 1)
    share = np.bincount(place, stalls, bins) / width
    share = np.minimum(1.0, (share + np.roll(share, 1) + np.roll(share, -1)) / 2)
    result: Floats = share[place]
    return result
