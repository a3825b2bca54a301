"""``capuchin``: swaps what has the longest free time, as far as that is hidden; then it recomputes what saves the most.

After Capuchin (Peng et al., ASPLOS 2020). Free time is what an interval between two accesses lasts beyond its copies.
The longest are swapped first, while their copies fit beside the operations on channels that carry one copy at a time.
Of the rest, the largest memory saving per second (MSPS: bytes by the time of recomputation) is recomputed first, if
that takes less time than its copies. A source that was dropped is recomputed with its first user, and kept (collective
recomputation). LRU evicts what still exceeds the budget, as Capuchin's passive mode does.

Ours: swaps are booked again when the recomputed step's times are known. A source comes back early only where that loses
no more room and time than it gives. Left out: feedback that shifts prefetches in later steps (the simulated times are
exact), MSPS that change as sources are chosen (a remake's chain of operators is fixed), and swaps that wait for memory
in the middle of an operation.
"""

from time import perf_counter_ns

import numpy as np

from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.remakes import Chosen, split, without_remakes
from ebbtide.ir.trace import Trace
from ebbtide.planners.published.channels import Channels, book
from ebbtide.planners.published.pressure import Pressure
from ebbtide.planners.resident import resident
from ebbtide.planners.search.make_plan import Pair, make_plan, pair_of
from ebbtide.planners.search.problem import problem_of
from ebbtide.planners.search.remaking import Choosing, Remaking


def capuchin(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Make the plan. Raises InfeasibleBudgetError for a budget that no plan can keep.

    Raises PlanError if the slow tiers have no room.
    """
    began = perf_counter_ns()
    pressure = Pressure(trace, machine)
    pair = pair_of(machine, peak(pressure.live))
    if pair is None:
        return resident(trace, machine, budget_bytes)
    pressure.require(budget_bytes)
    _swap(pressure, pair, budget_bytes)
    made = split(trace, _recomputed(pressure, pair, budget_bytes))
    pressure = Pressure(made.trace, machine)
    pressure.require(budget_bytes)
    _swap(pressure, pair, budget_bytes)
    pressure.squeeze(budget_bytes)
    return make_plan("capuchin", trace, machine, budget_bytes, pressure.stays(), began, made=made)


def _swap(pressure: Pressure, pair: Pair, budget_bytes: int) -> None:
    """Swap what relieves the step and can be hidden, the longest free time first."""
    idle = pressure.idle
    channels = Channels(pressure.trace, pressure.machine)
    free_ns = pressure.idle_ns - pair.outward.copy_ns(idle.nbytes) - pair.inward.copy_ns(idle.nbytes)
    for row in np.argsort(-free_ns, kind="stable").tolist():
        if free_ns[row] > 0 and idle.returns[row] and pressure.relieves(row, budget_bytes):
            book(pressure, channels, row, pair.slow.name)


def _recomputed(pressure: Pressure, pair: Pair, budget_bytes: int) -> Chosen:
    """Return what is recomputed where the swaps leave too much, the largest saving per second first."""
    trace, idle, machine = pressure.trace, pressure.idle, pressure.machine
    problem = problem_of(without_remakes(trace), machine.with_budget(budget_bytes))
    remaking = Remaking.of(problem, trace, budget_bytes)
    if remaking is None:
        return ()
    remakes, row_of, chosen = remaking.remakes, remaking.row, Choosing(remaking, 1.0)
    swap_ns = pair.inward.copy_ns(idle.nbytes[row_of])
    swap_ns += np.where(idle.dirty[idle.group[row_of]], pair.outward.copy_ns(idle.nbytes[row_of]), 0.0)
    msps = idle.nbytes[row_of] / np.maximum(remakes.time_ns, 1)
    for remake in np.argsort(-msps, kind="stable").tolist():
        row = int(row_of[remake])
        is_swapped = pressure.gone[row] < pressure.back[row]
        if is_swapped or remakes.time_ns[remake] >= swap_ns[remake] or not pressure.relieves(row, budget_bytes):
            continue
        chosen.add(remake)
        for one in chosen.pieces[remake] if remake in chosen.until else ():
            gone = int(remakes.gone[one])
            pressure.set(int(row_of[one]), gone, gone, gone, chosen.until[one])
    return tuple(sorted(chosen.until.items()))
