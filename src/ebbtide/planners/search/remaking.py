"""Chooses what is made anew instead of moved (``ir.remakes``), at a rate of exchange between two kinds of time.

Copies take their links' time, and what is made anew takes compute time. At a *rate*, a ns of copies is worth so many ns
of compute: 0 where no copy is waited for, and much where links are all that a step waits for. Then each interval that
can be remade costs the lesser of both, and the covering problem of ``choice`` says which intervals go at all. Of those,
the ones that are cheaper to make anew are remade. An operation needs its inputs at once, so at each tick as many are
remade as the budget has room for.

Left out: what of the inputs would have to be there longer because of that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.ir.base import Flags, Floats, Ints
from ebbtide.ir.occupancy import paged_sizes
from ebbtide.ir.plan import Stay
from ebbtide.ir.remakes import Remakes, is_gone, remakes_of
from ebbtide.ir.trace import Trace
from ebbtide.planners.search.choice import Demand, choose_rows
from ebbtide.planners.search.idle_table import remake_rows
from ebbtide.planners.search.problem import Problem
from ebbtide.planners.search.timing import Headroom


def without_remakes(trace: Trace) -> Trace:
    """Return the same step as if no operator repeated. Where nothing can be remade, it is the step itself."""
    if not len(remakes_of(trace)):
        return trace
    return replace(trace, ticks=replace(trace.ticks, repeats=np.zeros(len(trace.ticks), dtype=bool)))


@dataclass(frozen=True, slots=True, eq=False)
class Remaking:
    """The remakes of a step, for the search. ``row`` is each one's interval in the problem's table."""

    problem: Problem
    trace: Trace
    remakes: Remakes
    row: Ints
    budget_bytes: int

    @staticmethod
    def of(problem: Problem, trace: Trace, budget_bytes: int) -> "Remaking | None":
        """``problem`` is that of the step if nothing repeats. Returns None where nothing can be remade."""
        remakes, machine = remakes_of(trace), problem.machine
        if not len(remakes) or any(tier.in_place.reads for tier in machine.tiers[1:]):
            return None
        return Remaking(
            problem, trace, remakes, remake_rows(trace, machine.exclusive, problem.page_bytes), budget_bytes
        )

    def at(self, rate: float) -> tuple[int, ...]:
        """Return the remakes, as rows of ``remakes_of``, that the best choice at this rate has."""
        problem, idle = self.problem, self.problem.idle
        fetch, write = problem.fetch_cost * rate, problem.write_cost * rate
        anew = np.full(len(idle), np.inf)
        anew[self.row] = self.remakes.time_ns
        cheaper = anew < fetch + write[idle.group]
        if not cheaper.any():
            return ()
        demand = Demand(idle.after + 1, idle.until, problem.live - self.budget_bytes)
        cost = np.where(cheaper, anew, fetch)
        group = np.where(cheaper, len(write) + np.arange(len(idle)), idle.group)
        write_cost = np.concatenate((write, np.zeros(len(idle))))
        chosen = choose_rows(demand, demand, idle.paged_bytes, cost, group, write_cost)
        if chosen is None:
            return ()
        saved = fetch + write[idle.group] - anew
        return self._possible(chosen & cheaper, saved)

    def _possible(self, wanted: Flags, saved: Floats) -> tuple[int, ...]:
        """Return as many of the wanted intervals as can be remade together, those that save the most first."""
        rows, remakes = np.flatnonzero(wanted[self.row]), self.remakes
        rows = rows[np.argsort(-saved[self.row[rows]], kind="stable")]
        columns = (rows, remakes.storage[rows], remakes.gone[rows], remakes.until[rows])
        gaps, at_ticks = dict[int, tuple[int, int]](), _RoomAtTicks(self)
        found, read_at = list[int](), dict[int, list[int]]()
        for row, storage, gone, until in zip(*(column.tolist() for column in columns), strict=True):
            inputs = remakes.inputs[row]
            if storage in gaps or any(is_gone(gaps.get(number), until) for number in inputs):
                continue
            if any(is_gone((gone, until), tick) for tick in read_at.get(storage, ())) or not at_ticks.take(row):
                continue
            gaps[storage] = (gone, until)
            for number in inputs:
                read_at.setdefault(number, []).append(until)
            found.append(row)
        return tuple(sorted(found))

    def without_unneeded(
        self, rows: tuple[int, ...], stays: Sequence[Stay], free: Ints
    ) -> tuple[tuple[int, ...], tuple[Stay, ...]]:
        """Let stay what a plan has room for, the dearest remakes first. Return the others, and the plan's stays.

        ``free`` is the plan's free room.
        """
        paged, remakes, headroom = self.problem.idle.paged_bytes[self.row], self.remakes, Headroom(free)
        anew, fast = set(remakes.storage[list(rows)].tolist()), self.problem.machine.tiers[0].name
        mine = [stay for stay in stays if stay.storage in anew and stay.tier == fast]
        ends, begins = ({(stay.storage, getattr(stay, end)): stay for stay in mine} for end in ("stop", "start"))
        instead, left = dict[Stay, Stay | None](), list[int]()
        for row in sorted(rows, key=lambda row: -int(remakes.time_ns[row])):
            storage, low, high = int(remakes.storage[row]), int(remakes.gone[row]), int(remakes.until[row])
            before, after = ends.get((storage, low)), begins[storage, high]
            if before is None or headroom.earliest(low, high, int(paged[row])) > low:
                left.append(row)
                continue
            headroom.take(low, high, int(paged[row]))
            instead |= {before: replace(before, stop=after.stop), after: None}
        found = (instead.get(stay, stay) if stay.storage in anew else stay for stay in stays)
        return tuple(sorted(left)), tuple(stay for stay in found if stay is not None)


class _RoomAtTicks:
    """What operations need at once at the ticks at which something is made anew."""

    def __init__(self, remaking: Remaking) -> None:
        self.remakes, problem = remaking.remakes, remaking.problem
        self.budget_bytes, self.needed = remaking.budget_bytes, problem.needed
        self.paged = paged_sizes(problem.trace, problem.page_bytes)
        self.page_bytes, self.accesses = problem.page_bytes, remaking.trace.accesses
        self.taken = dict[int, tuple[set[int], int]]()

    def take(self, row: int) -> bool:
        """Note a remake, if there is room for what it reads beside all else that its tick needs."""
        tick, scratch = int(self.remakes.until[row]), int(self.remakes.scratch_bytes[row])
        known, most = self.taken.get(tick, (set(), 0))
        others = (
            number for number in self.remakes.inputs[row] if tick not in self.accesses.tick[self.accesses.of(number)]
        )
        inputs = known.union(others)
        most = max(most, scratch)
        unit = self.page_bytes(most) if most else 1
        needed = int(self.needed[tick]) + sum(int(self.paged[number]) for number in inputs) + -(-most // unit) * unit
        if needed > self.budget_bytes:
            return False
        self.taken[tick] = (inputs, most)
        return True
