"""Mixed-integer linear programs for planners, solved by HiGHS. A solver's outcome is a value, not an exception.

A program minimises ``cost @ x + offset`` subject to ``low <= A x <= high`` and ``0 <= x <= upper``. Some of x are
integers. Rows are built one by one, so that each can carry a comment where it is made. HiGHS has one thread, so that
plans are deterministic unless the time limit strikes.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.ir.base import Floats, Ints
from ebbtide.units import MIB

if TYPE_CHECKING:
    import highspy

_GAP = 1e-4
"""Answers within this part of the objective of the best are good enough."""


class Outcome(StrEnum):
    """The end of a solution.

    SOLVED: the answer is within ``_GAP`` of the best. STOPPED: time was up, and this is the best known answer. NONE: no
    answer was found in time. INFEASIBLE: it is proved that there is none.
    """

    SOLVED = "solved"
    STOPPED = "stopped"
    NONE = "none"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """An answer. ``values`` are those of the columns (empty without an answer). No answer is below ``bound``."""

    outcome: Outcome
    values: Floats
    objective: float = inf
    bound: float = -inf


@dataclass(slots=True)
class Program:
    """A program's columns and rows so far. ``offset`` is a constant of the objective, so the gap is relative to it,
    too."""

    offset: float = 0.0
    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def column(self, cost: float = 0.0, upper: float = 1.0, integer: bool = True) -> int:
        """Add a variable in [0, upper]. Returns its number."""
        self.cost.append(cost)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.cost) - 1

    def row(self, entries: list[tuple[int, float]], low: float = -inf, high: float = inf) -> None:
        """Add low <= sum of value * column <= high. A column may occur several times."""
        merged: dict[int, float] = {}
        for column, value in entries:
            merged[column] = merged.get(column, 0.0) + value
        self.columns += merged.keys()
        self.values += merged.values()
        self.starts.append(len(self.columns))
        self.low.append(low)
        self.high.append(high)

    def solve(self, time_limit_s: float, whole: bool = True, start: Floats | None = None) -> Answer:
        """Solve the program, or its relaxation if not ``whole``. ``start`` is a known answer.

        In the relaxation, integers may be fractions.
        """
        import highspy

        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.cost), len(self.low)
        model.offset_ = self.offset
        model.col_cost_ = np.array(self.cost, dtype=np.float64)
        model.col_lower_ = np.zeros(len(self.cost))
        model.col_upper_ = np.array(self.upper, dtype=np.float64)
        model.row_lower_ = np.array(self.low, dtype=np.float64)
        model.row_upper_ = np.array(self.high, dtype=np.float64)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.num_col_, model.a_matrix_.num_row_ = len(self.cost), len(self.low)
        model.a_matrix_.start_ = np.array(self.starts, dtype=np.int32)
        model.a_matrix_.index_ = np.array(self.columns, dtype=np.int32)
        model.a_matrix_.value_ = np.array(self.values, dtype=np.float64)
        if whole:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[integer] for integer in self.integer]
        solver = _silent_solver()
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("time_limit", max(time_limit_s, 0.0))
        solver.setOptionValue("mip_rel_gap", _GAP)
        solver.passModel(model)
        if start is not None:
            known = highspy.HighsSolution()
            known.col_value = start.tolist()
            solver.setSolution(known)
        solver.run()
        status, info = solver.getModelStatus(), solver.getInfo()
        statuses = highspy.HighsModelStatus
        if status in (statuses.kInfeasible, statuses.kUnboundedOrInfeasible):
            return Answer(Outcome.INFEASIBLE, np.empty(0))
        feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        solved, objective = status in (statuses.kOptimal, statuses.kModelEmpty), float(info.objective_function_value)
        is_mixed = whole and any(self.integer)
        bound = float(info.mip_dual_bound) if is_mixed else objective if solved else -inf
        if not feasible:
            return Answer(Outcome.NONE, np.empty(0), bound=bound)
        values = np.array(solver.getSolution().col_value, dtype=np.float64)
        return Answer(Outcome.SOLVED if solved else Outcome.STOPPED, values, objective, bound)


def _silent_solver() -> "highspy.Highs":
    """Return a solver that leaves standard output to us, for JSON, say.

    HiGHS prints its name at its first call, which version 1.16 makes itself.
    """
    import highspy

    class Silent(highspy.Highs):
        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    solver = Silent()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    return solver


def level_rows(program: Program, occupancy: list[tuple[int, int, int, int]], limit: Ints) -> None:
    """Add rows that keep each tick's level within its ``limit`` in bytes. A level is the one before plus the changes.

    ``occupancy`` has rows of column, start, stop, nbytes: so many bytes in ticks [start, stop) of the circle, times the
    column. Rows are in MiB, which suits the solver's tolerances.
    """
    n_ticks = len(limit)
    change: list[list[tuple[int, float]]] = [[] for _ in range(n_ticks)]
    for column, start, stop, nbytes in occupancy:
        first, (rounds, rest) = start % n_ticks, divmod(stop - start, n_ticks)
        last = first + rest
        at_zero = rounds + (rest > 0 if first == 0 else last > n_ticks)
        if at_zero:
            change[0].append((column, at_zero * nbytes / MIB))
        if rest and first:
            change[first].append((column, nbytes / MIB))
        if rest and last % n_ticks:
            change[last % n_ticks].append((column, -nbytes / MIB))
    before: int | None = None
    for tick in range(n_ticks):
        most = float(limit[tick]) / MIB
        if before is not None and not change[tick]:
            program.upper[before] = min(program.upper[before], most)
            continue
        level = program.column(0.0, most, integer=False)
        known = [] if before is None else [(before, 1.0)]
        program.row([(level, -1.0), *known, *change[tick]], 0.0, 0.0)
        before = level
