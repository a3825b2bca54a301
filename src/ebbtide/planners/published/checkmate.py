"""``checkmate``: an integer program chooses what is made anew, so that a step within its budget computes the least.

After Checkmate (Jain et al., MLSys 2020). The objective is the time of all that runs again. The constraint is the
memory at every operation. HiGHS takes the place of Gurobi. At the time limit the best known answer is taken, and the
plan's status is ``stopped``.

A variable stands for a storage, an idle time of it, and the operation at which it is made anew. That is its next use,
or an operation before, which another storage is made anew for. So variables grow with the square of the operations, as
in the paper, and a limit keeps large steps from having more than the solver can use.

The paper moves nothing. Here the program exceeds a budget that it cannot keep by as little as it can, and LRU moves the
rest. Left out: making a storage anew more than once, and storages of less than 64 KiB, for which whole operators would
run.
"""

from collections import defaultdict
from math import inf
from time import perf_counter, perf_counter_ns

import numpy as np

from ebbtide.ir.base import Flags, Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import PageSize, live_bytes, paged_sizes, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.remakes import Chosen, Remakes, remakes_of, split
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of
from ebbtide.planners.published.pressure import SMALLEST_REMADE, with_moves
from ebbtide.planners.published.solver import Outcome, Program
from ebbtide.units import MIB, round_up

TIME_LIMIT_S = 20.0

_MOST_CHOICES = 20_000
"""The most variables. Beyond it, storages are made anew for their own next uses only."""


def checkmate(trace: Trace, machine: Machine, budget_bytes: int, time_limit_s: float = TIME_LIMIT_S) -> Plan:
    """Make the plan. Raises InfeasibleBudgetError if the budget is too small even with all away that may leave.

    Raises PlanError if the slow tiers have no room.
    """
    began = perf_counter_ns()
    pages = page_size_of(machine)
    chosen, in_time = Chosen(), True
    if len(remakes_of(trace)) and peak(live_bytes(trace, pages)) > budget_bytes:
        chosen, in_time = _Choice(trace, pages, budget_bytes).solve(time_limit_s)
    return with_moves("checkmate", split(trace, chosen), trace, machine, budget_bytes, began, out_of_time=not in_time)


class _Choice:
    """The program. ``column`` has its columns by a remake's row and the tick at which the storage is made anew."""

    def __init__(self, trace: Trace, pages: PageSize, budget_bytes: int) -> None:
        self.remakes = remakes_of(trace)
        self.program = Program()
        self.column = {
            (row, tick): self.program.column(float(self.remakes.time_ns[row]) / max(trace.step_ns, 1))
            for row, tick in _choices(self.remakes, trace.storages.nbytes >= SMALLEST_REMADE)
        }
        self.of: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by storage
        for row, tick in self.column:
            self.of[int(self.remakes.storage[row])].append((row, tick))
        self._possible()
        self.over = self.program.column(upper=0.0, integer=False)  # MiB beyond the budget
        self._within(paged_sizes(trace, pages), live_bytes(trace, pages) - budget_bytes, pages)

    def _possible(self) -> None:
        """Each storage once, all its pieces at one tick, and inputs that are there."""
        pieces, gone = self.remakes.pieces(), self.remakes.gone
        for many in self.of.values():
            self.program.row([(self.column[choice], 1.0) for choice in many], high=1.0)
        for (row, tick), column in self.column.items():
            for other in pieces[row]:
                if other > row:
                    self.program.row([(column, 1.0), (self.column[other, tick], -1.0)], 0.0, 0.0)
            for number in self.remakes.inputs[row]:
                away = [self.column[other, at] for other, at in self.of[number] if gone[other] <= tick < at]
                if away:
                    self.program.row([(column, 1.0), *((other, 1.0) for other in away)], high=1.0)

    def _within(self, paged: Ints, excess: Ints, pages: PageSize) -> None:
        """At every tick, enough is away. ``excess`` is what the step holds beyond the budget if nothing is."""
        program, remakes = self.program, self.remakes
        change: dict[int, list[tuple[int, float]]] = defaultdict(list)
        scratch: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for (row, tick), column in self.column.items():
            nbytes, also = float(paged[remakes.storage[row]]) / MIB, int(remakes.scratch_bytes[row])
            change[int(remakes.gone[row])].append((column, nbytes))
            change[tick].append((column, -nbytes))
            if also:
                scratch[tick].append((column, round_up(also, pages(also)) / MIB))
        ticks = sorted({0, *change})
        most = np.maximum.reduceat(excess, ticks)
        before: list[tuple[int, float]] = []
        for tick, above in zip(ticks, most.tolist(), strict=True):
            away = program.column(upper=inf, integer=False)
            program.row([(away, -1.0), *before, *change[tick]], 0.0, 0.0)
            program.row([(away, 1.0), (self.over, 1.0)], low=above / MIB)
            if scratch[tick]:
                scratched = program.column(upper=inf, integer=False)  # one remake after the other
                for column, needed in scratch[tick]:
                    program.row([(scratched, 1.0), (column, -needed)], low=0.0)
                program.row([(away, 1.0), (self.over, 1.0), (scratched, -1.0)], low=float(excess[tick]) / MIB)
            before = [(away, 1.0)]

    def solve(self, time_limit_s: float) -> tuple[Chosen, bool]:
        """Return the chosen remakes, and whether they are the best."""
        program, deadline = self.program, perf_counter() + time_limit_s
        answer = program.solve(time_limit_s)
        if answer.outcome is Outcome.INFEASIBLE:
            costs = program.cost
            program.cost, program.upper[self.over] = [0.0] * len(costs), inf
            program.cost[self.over] = 1.0
            answer = program.solve(deadline - perf_counter())
            if answer.outcome is Outcome.SOLVED:
                program.cost, program.upper[self.over] = costs, float(answer.values[self.over]) * (1 + 1e-6)
                answer = program.solve(deadline - perf_counter(), start=answer.values)
        taken = [choice for choice, column in self.column.items() if len(answer.values) and answer.values[column] > 0.5]
        return tuple(sorted(taken)), answer.outcome is Outcome.SOLVED


def _choices(remakes: Remakes, large: Flags) -> list[tuple[int, int]]:
    """Return each remake's row with each tick at which its storage may be made: before its next use, or for another."""
    pieces, until = remakes.pieces(), remakes.until.tolist()
    gone, rows_of = remakes.gone.tolist(), defaultdict(list)
    for row, number in enumerate(remakes.storage.tolist()):
        rows_of[number].append(row)
    latest = [(row, tick) for row, tick in enumerate(until) if all(large[remakes.storage[list(pieces[row])]])]
    found, waiting = dict.fromkeys(latest), list(latest)
    may = {row for row, _ in latest}
    while waiting:
        row, tick = waiting.pop()
        for number in remakes.inputs[row]:
            for other in rows_of[number]:
                if other not in may or not gone[other] < tick < until[other]:
                    continue
                early = [(piece, tick) for piece in pieces[other] if (piece, tick) not in found]
                found |= dict.fromkeys(early)
                waiting += early
        if len(found) > _MOST_CHOICES:
            return latest
    return list(found)
