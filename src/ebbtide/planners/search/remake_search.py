"""Searches plans in which some contents are made anew instead of moved (``remaking``), at rising rates of exchange."""

from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from ebbtide.errors import PlanError
from ebbtide.ir.machine import InPlace, Machine
from ebbtide.ir.occupancy import occupancy, peak
from ebbtide.ir.plan import Stay
from ebbtide.ir.remakes import Chosen, Split, split
from ebbtide.ir.stay_columns import columns_of
from ebbtide.planners.search.move_search import POLISH, Candidate, MoveSearch
from ebbtide.planners.search.problem import lacks_bytes, problem_of
from ebbtide.planners.search.remaking import Remaking
from ebbtide.planners.search.timing import with_still
from ebbtide.simulator import Outcome, Simulator

_RATES = tuple(2.0**power for power in range(-6, 4))
"""The rates at which contents are made anew: so many ns of compute for a ns of copies."""
_MORE_RATES = 2
"""So many higher rates in a row without a faster plan are enough."""
_NO_ROOM = (PlanError, ValueError)
"""Raised where small slow tiers have no room for a choice of what leaves: others may fit."""


@dataclass(frozen=True, slots=True, eq=False)
class _Remade:
    """A simulated plan in which the ``chosen`` remakes are made: one for the step ``split`` at them."""

    chosen: Chosen
    split: Split
    search: MoveSearch
    found: Candidate


class RemakeSearch:
    """Searches plans in which some contents are made anew, beside the best plan ``like`` without that.

    It takes the plan of the least *cost*: its time, and the share ``wear`` of a step's compute for as many bytes
    written to a file as the step's storages peak at.
    """

    def __init__(self, remaking: Remaking, like: Candidate, bound_ns: int, deadline_ns: int, wear: float) -> None:
        self.remaking, self.like, self.bound_ns, self.deadline_ns = remaking, like, bound_ns, deadline_ns
        self.trace, self.machine = remaking.trace, remaking.problem.machine
        self.price = 0.0  # ns for a byte
        if written_bytes(self.machine, like.outcome):
            self.price = wear * self.trace.step_ns / peak(remaking.problem.live)
        self.tried: set[Chosen] = {()}
        self.best: _Remade | None = None

    def cost_ns(self, found: Candidate) -> float:
        return found.step_ns + self.price * written_bytes(self.machine, found.outcome)

    def run(self) -> tuple[int, tuple[Stay, ...]] | None:
        """Raise the rate while plans become better, and refine the best. None if none is better than ``like``.

        At low rates hardly anything is made anew, and plans may be slower than ``like``, which was searched for longer.
        """
        least, at_best, stale = inf, None, 0
        for rate in _RATES:
            wanted = self.remaking.wanted_at(rate, self.price)
            cost_ns = self._cost_if_new(self.remaking.possible(wanted, early=True))
            if cost_ns is None:
                continue
            stale = 0 if cost_ns < least else stale + 1
            if at_best is None or cost_ns < least:
                least, at_best = cost_ns, wanted
            if stale == _MORE_RATES:
                break
        if at_best is not None:
            self._cost_if_new(self.remaking.possible(at_best, early=False))
        if self.best is None:
            return None
        best = self.best
        best.search.left = POLISH
        assert best.search.best is not None
        with suppress(*_NO_ROOM):
            best.search.polish(best.search.best)
        refined = best.search.exchanged(best.search.confirmed())
        return self._without_unneeded(replace(best, found=min(refined, best.found, key=self.cost_ns)))

    def _cost_if_new(self, chosen: Chosen) -> float | None:
        """Return the cost of a plan with these remakes. None for those that have been tried."""
        if chosen in self.tried:
            return None
        self.tried.add(chosen)
        return self._cost_of(chosen)

    def _cost_of(self, chosen: Chosen) -> float:
        most = self.cost_ns(self.like if self.best is None else self.best.found)
        least = self.trace.step_ns + int(self.remaking.remakes.chosen(chosen).time_ns.sum())
        if least >= most:
            return least  # even if no copy were waited for, and none were written
        made = split(self.trace, chosen)
        problem = problem_of(made.trace, self.machine, made.still_stays(self.remaking.problem.still))
        if lacks_bytes(problem, self.remaking.budget_bytes) > 0:
            return inf
        search = MoveSearch(problem, self.remaking.budget_bytes, self.bound_ns, self.deadline_ns, 1)
        with suppress(*_NO_ROOM):
            search.briefly(self.like)
        if search.best is None:
            return inf
        if (cost_ns := self.cost_ns(search.best)) >= most:
            return cost_ns
        found = search.confirmed()
        if (cost_ns := self.cost_ns(found)) < most:
            self.best = _Remade(chosen, made, search, found)
        return cost_ns

    def _without_unneeded(self, best: _Remade) -> tuple[int, tuple[Stay, ...]]:
        """Return the plan's time and stays. What it has room for stays where it is, if that is no slower."""
        names, pages = [tier.name for tier in self.machine.tiers], self.remaking.problem.page_bytes
        stays = with_still(self.machine, best.search.problem.still, best.found.moved)
        held = occupancy(best.split.trace, stays, names[:1], pages)[names[0]]
        joined = best.split.joined_stays(stays)
        chosen, kept = self.remaking.without_unneeded(best.chosen, joined, self.remaking.budget_bytes - held)
        if chosen == best.chosen:
            return best.found.step_ns, joined
        step = split(self.trace, chosen)
        now = Simulator(step.trace, self.machine, pages).run_stays(columns_of(step.split_stays(kept), names))
        return (now.step_ns, kept) if now.step_ns <= best.found.step_ns else (best.found.step_ns, joined)


def written_bytes(machine: Machine, outcome: Outcome) -> int:
    """Return the bytes that a step writes to the slowest tier, or 0 if operations use that in place: memory does not
    wear. Callers MUST leave out machines whose slowest tier is an accelerator's host memory."""
    slowest = machine.tiers[-1]
    if slowest.in_place is not InPlace.NOTHING:
        return 0
    return sum(outcome.moved_bytes.get(link.name, 0) for link in machine.links if link.target == slowest.name)
