"""``ebbtide``, the default: it moves every kind of storage in both directions, within the budget at every tick.

It alternates three steps and keeps the best plan it has simulated:

1. *Choose* which idle intervals to take (``choice``), at the least transfer time, with a reserve for copies under way.
2. *Time* their copies (``timing``) by the ticks of the last simulation.
3. *Simulate* the schedule. Where it stalls, transfers are dear: their costs rise, and the choice is made anew.

A plan for less room is also a plan for more. So smaller budgets are tried as well where the bound says that they could
win. Clean storages leave without a write. Final contents may be written while they are still being read.

Where operations use a slow tier in place, the search is repeated for several sets of storages that stay there
(``in_place``). At last, the plans of other planners are candidates (``rivals``). Where a tier packs and some storage
shrinks, the search is made with it and without it, since its copies cost compute more than a disk's.

Where two links write more than one, some writes of the best plan pass through the tier before the slowest
(``passing``).

Where operators repeat and copies are waited for, steps are searched in which some contents are made anew instead of
moved (``remaking``). The best plan without that tells what to hold them against, so no plan is slower for it.

Left out: several replicas in slow tiers, and storages that outlive a step once their successor is born. The number of
simulations bounds the search and depends on the step's size alone. So plans are deterministic unless the time limit
strikes.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from time import perf_counter_ns

import numpy as np

from ebbtide.errors import PlanError
from ebbtide.ir.base import LARGEST, Flags, Floats, Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import occupancy
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.remakes import Chosen, Split, split, without_remakes
from ebbtide.ir.stay_columns import StayColumns, columns_of
from ebbtide.ir.trace import Trace
from ebbtide.planners.resident import resident
from ebbtide.planners.rivals import remaking_rivals, rival_plans
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.planners.search.choice import Demand, choose
from ebbtide.planners.search.in_place import placed_in_slow
from ebbtide.planners.search.passing import detour_of, passing
from ebbtide.planners.search.problem import Problem, lacks_bytes, problem_of, require_feasible, with_packing
from ebbtide.planners.search.remaking import Remaking
from ebbtide.planners.search.slow_tiers import assign_tiers, reachable_tiers
from ebbtide.planners.search.timing import Clock, Pace, moved_stays, time_moves, with_still
from ebbtide.simulator import Outcome, Simulator

TIME_LIMIT_S = 30.0


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
_POLISH = 25
"""The most plans that are simulated for other paces, beyond all others."""
_DETOURS = 3
"""So many times writes are chosen that take a detour, each by the ticks of the simulation before."""
_GOOD_ENOUGH = 1.003
"""The search ends within this factor of the lower bound."""
_LEVELS_PER_DOUBLING = 4
"""The number of smaller budgets that are tried within a factor of two."""
_RATES = tuple(2.0**power for power in range(-6, 4))
"""The rates at which contents are made anew: so many ns of compute for a ns of copies."""
_MORE_RATES = 2
"""So many higher rates in a row without a faster plan are enough."""
_WORTH_REMAKING = 1.01
"""Where moving takes so many times the step that has all the memory, or less, nothing is made anew."""
_NO_ROOM = (PlanError, ValueError)
"""Raised where small slow tiers have no room for a choice of what leaves: others may fit."""
_BRIEF = 4
"""The simulations of a search at one rate."""


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A simulated plan, and how it came about. ``moved`` are the stays of the storages that move."""

    moved: StayColumns
    outcome: Outcome
    chosen: Flags
    start: _Start
    pace: Pace
    budget_bytes: int

    @property
    def step_ns(self) -> int:
        return self.outcome.step_ns


def ebbtide(
    trace: Trace,
    machine: Machine,
    budget_bytes: int,
    time_limit_s: float = TIME_LIMIT_S,
    effort: int = 1,
) -> Plan:
    """Return the fastest plan found within the budget. ``effort`` multiplies the number of tries.

    Raises InfeasibleBudgetError if there is no plan, and PlanError if the slow tiers lack room for all that has to
    leave.
    """
    began = perf_counter_ns()
    machine, capacity = machine.with_budget(budget_bytes), machine.within(budget_bytes)
    if not reachable_tiers(machine):
        return resident(trace, machine, capacity)
    moving = without_remakes(trace)
    problem, deadline = problem_of(moving, machine), began + int(time_limit_s * 1e9)
    bound = lower_bound_ns(moving, machine, capacity)
    best: tuple[int, tuple[Stay, ...]] | None = None
    like: _Candidate | None = None
    out_of_time = False
    for one in (problem, *with_packing(problem), *placed_in_slow(problem, capacity)):
        if lacks_bytes(one, capacity) > 0:
            continue
        search = _Search(one, capacity, bound, deadline, effort)
        try:
            found = search.run()
        except PlanError:  # slow tiers lack room beside what lies there for good: other ways may fit
            if one is problem:
                raise
            continue
        out_of_time = out_of_time or search.out_of_time
        if best is None or found.step_ns < best[0]:
            like = found
            best = found.step_ns, tuple(with_still(trace, machine, one.still, found.moved))
        if best[0] <= bound or out_of_time:
            break
    if best is None or best[0] > bound:
        for rival in rival_plans(moving, machine, capacity, deadline):
            step_ns = problem.simulator.run_plan(rival).step_ns
            if best is None or step_ns < best[0]:
                best = step_ns, rival.stays
    if best is None:
        require_feasible(problem, capacity)
        raise PlanError(("the slow tiers have no room for what has to leave the fast one",))
    if like is not None and (remaking := Remaking.of(problem, trace, capacity)) is not None:
        bound = lower_bound_ns(trace, machine, capacity)
        if best[0] > max(bound * _GOOD_ENOUGH, moving.step_ns * _WORTH_REMAKING):
            with_remakes = _RemakingSearch(remaking, like, bound, deadline).run()
            best = best if with_remakes is None or with_remakes[0] >= best[0] else with_remakes
    if best[0] > max(bound, moving.step_ns * _WORTH_REMAKING):
        for rival in remaking_rivals(trace, machine, capacity, deadline):
            step_ns = Simulator(trace, machine, problem.page_bytes).run_plan(rival).step_ns
            best = best if step_ns >= best[0] else (step_ns, rival.stays)
    step_ns, stays = best
    status = PlanStatus.STOPPED if out_of_time else PlanStatus.FEASIBLE
    status = PlanStatus.OPTIMAL if step_ns <= bound else status
    spent = perf_counter_ns() - began
    return Plan("ebbtide", status, trace.signature(), budget_bytes, max(step_ns, bound), bound, spent, stays)


class _Search:
    """Keeps the best candidates, and counts simulations."""

    def __init__(self, problem: Problem, budget_bytes: int, bound_ns: int, deadline_ns: int, effort: int) -> None:
        self.problem, self.budget_bytes, self.bound_ns, self.deadline_ns = problem, budget_bytes, bound_ns, deadline_ns
        self.effort = effort
        work = len(problem.trace.ticks) + 2 * len(problem.idle) + len(problem.trace.storages) // 4
        self.left = max(_FEWEST, min(_MOST, _WORK // max(work, 1))) * effort
        self.best: _Candidate | None = None
        self.tried: list[_Candidate] = []  # the best, the fastest first
        exclusive, share = problem.machine.exclusive, directions_share(problem.machine)
        # On an exclusive machine, a write cannot come early. A write in no fetch's way is not put off.
        several = any(problem.machine.tier(name).capacity_bytes is not None for name in problem.tiers[:-1])
        self.starts = [
            start
            for start in _STARTS
            if (start.clean_early or not exclusive) and (share or not start.lazy) and (several or not start.thrifty)
        ]
        self.out_of_time = False
        self.last_homes: tuple[object, list[str]] = None, []

    def run(self) -> _Candidate:
        self._at(self.budget_bytes, max(_FEWEST, self.left // 3 * 2))
        for smaller in self._levels():
            if self._done(0):
                break
            bound = lower_bound_ns(self.problem.trace, self.problem.machine, smaller)
            if self.best is not None and bound * _GOOD_ENOUGH >= self.best.step_ns:
                break
            self._at(smaller, max(self.left // 2, 4))
        choices: dict[bytes, _Candidate] = {}
        for one in self.tried:
            choices.setdefault(one.chosen.tobytes(), one)
        for best in [*choices.values()][: self.effort + 1]:
            self.polish(best)
        return self.by_detour(self.confirmed())

    def by_detour(self, best: _Candidate) -> _Candidate:
        """Return the plan with some of its writes by a detour, if that is faster."""
        detour = detour_of(self.problem.machine, self.problem.tiers)
        if detour is None or self.out_of_time or best.step_ns <= self.bound_ns * _GOOD_ENOUGH:
            return best
        found = [best]
        for _ in range(_DETOURS):
            moved = passing(self.problem, detour, best.moved, found[-1].outcome)
            if len(moved) == len(best.moved):
                break
            found.append(replace(best, moved=moved, outcome=self.problem.simulated(moved, 3)))
        return min(found, key=lambda candidate: candidate.step_ns)

    def briefly(self, like: _Candidate) -> None:
        """Search with a few simulations what a longer search of another step found to be good."""
        self.left, self.starts = _BRIEF, [like.start]
        budget_bytes = like.budget_bytes if lacks_bytes(self.problem, like.budget_bytes) <= 0 else self.budget_bytes
        self._at(budget_bytes, _BRIEF)

    def polish(self, best: _Candidate) -> None:
        """Try the intervals of ``best`` at other paces.

        No price tells how far ahead fetches should go, and how much longer copies may take.
        """
        floor, clock = self.left - _POLISH, Clock(best.outcome.start_ns)
        share = directions_share(self.problem.machine)
        for margin, lead, lazy in product(_MARGINS, _LEADS, (False, True) if share else (best.pace.lazy,)):
            if self._done(floor):
                return
            pace = replace(best.pace, margin=margin, lead_ns=lead * self.problem.clock.step_ns, lazy=lazy)
            self._try(self.budget_bytes, best.chosen, best.start, pace, clock)
        if self.best is not best and self.best is not None and not self._done(floor):
            self._again(self.budget_bytes, self.best)

    def confirmed(self) -> _Candidate:
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
        self.out_of_time = self.out_of_time or perf_counter_ns() > self.deadline_ns
        return self.left <= floor or self.out_of_time or self.best.step_ns <= self.bound_ns * _GOOD_ENOUGH

    def _at(self, budget_bytes: int, simulations: int) -> None:
        """Search plans for one budget."""
        floor, found = self.left - simulations, list[_Candidate]()
        problem = self.problem
        costs = (problem.fetch_cost * problem.fetch_lost, problem.write_cost * problem.write_lost)
        for start in self.starts[: max(1, simulations // 3)]:
            pace = Pace(1.0, _LEAD * self.problem.clock.step_ns, start.clean_early, start.lazy)
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

    def _again(self, budget_bytes: int, candidate: _Candidate) -> _Candidate:
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

    def _try(self, budget_bytes: int, chosen: Flags, start: _Start, pace: Pace, clock: Clock) -> _Candidate:
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
        candidate = _Candidate(moved, problem.simulated(moved, 2), chosen, start, pace, budget_bytes)
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


@dataclass(frozen=True, slots=True, eq=False)
class _Remade:
    """A simulated plan in which the ``chosen`` remakes are made: one for the step ``split`` at them."""

    chosen: Chosen
    split: Split
    search: _Search
    found: _Candidate

    @property
    def step_ns(self) -> int:
        return self.found.step_ns


class _RemakingSearch:
    """Searches plans in which some contents are made anew, beside the best plan ``like`` without that."""

    def __init__(self, remaking: Remaking, like: _Candidate, bound_ns: int, deadline_ns: int) -> None:
        self.remaking, self.like, self.bound_ns, self.deadline_ns = remaking, like, bound_ns, deadline_ns
        self.trace, self.machine = remaking.trace, remaking.problem.machine
        self.times: dict[Chosen, int] = {(): like.step_ns}
        self.best: _Remade | None = None

    def run(self) -> tuple[int, tuple[Stay, ...]] | None:
        """Raise the rate while plans become faster, and refine the fastest. None if none is faster than ``like``.

        At low rates hardly anything is made anew, and plans may be slower than ``like``, which was searched for longer.
        """
        for early in (True, False):
            fastest, stale = LARGEST, 0
            for rate in _RATES:
                chosen = self.remaking.at(rate, early)
                if chosen in self.times:
                    continue
                self.times[chosen] = self._time_of(chosen)
                stale = 0 if self.times[chosen] < fastest else stale + 1
                fastest = min(fastest, self.times[chosen])
                if stale == _MORE_RATES:
                    break
        if self.best is None:
            return None
        best = self.best
        best.search.left = _POLISH
        assert best.search.best is not None
        with suppress(*_NO_ROOM):
            best.search.polish(best.search.best)
        best = replace(best, found=best.search.confirmed())
        return self._without_unneeded(best)

    def _time_of(self, chosen: Chosen) -> int:
        least = self.trace.step_ns + int(self.remaking.remakes.chosen(chosen).time_ns.sum())
        if least >= (self.like if self.best is None else self.best).step_ns:
            return least  # even if no copy were waited for
        made = split(self.trace, chosen)
        problem = problem_of(made.trace, self.machine, made.still_stays(self.remaking.problem.still))
        if lacks_bytes(problem, self.remaking.budget_bytes) > 0:
            return LARGEST
        search = _Search(problem, self.remaking.budget_bytes, self.bound_ns, self.deadline_ns, 1)
        with suppress(*_NO_ROOM):
            search.briefly(self.like)
        if search.best is None:
            return LARGEST
        found = _Remade(chosen, made, search, search.confirmed())
        if found.step_ns < (self.like if self.best is None else self.best).step_ns:
            self.best = found
        return found.step_ns

    def _without_unneeded(self, best: _Remade) -> tuple[int, tuple[Stay, ...]]:
        """Return the plan's time and stays. What it has room for stays where it is, if that is no slower."""
        names, pages = [tier.name for tier in self.machine.tiers], self.remaking.problem.page_bytes
        stays = with_still(best.split.trace, self.machine, best.search.problem.still, best.found.moved)
        held = occupancy(best.split.trace, stays, names[:1], pages)[names[0]]
        joined = best.split.joined_stays(stays)
        chosen, kept = self.remaking.without_unneeded(best.chosen, joined, self.remaking.budget_bytes - held)
        if chosen == best.chosen:
            return best.step_ns, joined
        step = split(self.trace, chosen)
        now = Simulator(step.trace, self.machine, pages).run_stays(columns_of(step.split_stays(kept), names))
        return (now.step_ns, kept) if now.step_ns <= best.step_ns else (best.step_ns, joined)


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
