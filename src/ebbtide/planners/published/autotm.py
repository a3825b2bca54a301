"""``autotm-static``, ``autotm-sync`` and ``autotm-async``: placement as an integer program, between two tiers.

After AutoTM (Hildebrand et al., ASPLOS 2020), as its published source has it. Every storage takes a path through its
network (``autotm_flow``). Every operation's time depends on where its operands lie:

- *static*: a storage lies in one tier for its whole life.
- *sync*: it may also move before or after an operation that uses it, and compute waits for the move.
- *async*: a move may also go on beside another operation up to 15 positions from a user. It has the
  link's rate beside operations, and that operation lasts as long as the longer of the two.

The objective is the sum of operations and moves. The constraint is the fast tier's room at every operation. HiGHS takes
the place of Gurobi. At the time limit, the best known answer is taken. It is at least the rounded relaxation. If not
even that was solved, everything is away whenever it can be. The plan's status is then ``stopped``.

The profile T[k, c] is operation k's time with its operands placed as c. It follows [Note: in place]'s formula: additive
over operands, less what ``overlap`` hides. This needs one variable for each operation and holds for any number of
operands.

Left out: the source's measured profile, with an indicator d[k, c] for each placement; a layout of the fast tier with
each storage at one address (``defrag.jl``), which the arena's pages make unnecessary; cuDNN algorithms and workspaces
as choices (scratch is fixed), sizes in MB (pages here), and tiers beyond two. Also left out: the interference of moves
with operations. It is why the authors' own asynchronous moves lost on a CPU.
"""

from time import perf_counter, perf_counter_ns

import numpy as np

from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of, require_levels
from ebbtide.planners.published.autotm_flow import REACH, stays_of_life
from ebbtide.planners.published.autotm_placement import Flow, Step, least_of, step_of
from ebbtide.planners.resident import resident
from ebbtide.planners.search.make_plan import make_plan, pair_of

TIME_LIMIT_S = 20.0

_MOST_MOVES = 20_000
"""The most moves beside operations in the asynchronous program. In larger steps, only the longest operations near a
user are offered."""


def autotm_static(trace: Trace, machine: Machine, budget_bytes: int, time_limit_s: float = TIME_LIMIT_S) -> Plan:
    """Plan without moves, which is of use where operations work in the slow tier.

    InfeasibleBudgetError names the least budget that holds all storages that may not lie there.
    """
    return _plan("autotm-static", trace, machine, budget_bytes, time_limit_s)


def autotm_sync(trace: Trace, machine: Machine, budget_bytes: int, time_limit_s: float = TIME_LIMIT_S) -> Plan:
    """Plan moves for which compute waits. Raises InfeasibleBudgetError and PlanError as ``ebbtide`` does."""
    return _plan("autotm-sync", trace, machine, budget_bytes, time_limit_s)


def autotm_async(trace: Trace, machine: Machine, budget_bytes: int, time_limit_s: float = TIME_LIMIT_S) -> Plan:
    """Plan moves beside operations as well. Raises InfeasibleBudgetError and PlanError as ``ebbtide`` does."""
    return _plan("autotm-async", trace, machine, budget_bytes, time_limit_s)


def _plan(name: str, trace: Trace, machine: Machine, budget_bytes: int, time_limit_s: float) -> Plan:
    began = perf_counter_ns()
    pair = pair_of(machine, peak(live_bytes(trace, page_size_of(machine))))
    if pair is None:
        return resident(trace, machine, budget_bytes)
    step, static = step_of(trace, machine, pair), name == "autotm-static"
    require_levels(least_of(step, static), trace, budget_bytes)
    limit = np.full(len(trace.ticks), budget_bytes, dtype=np.int64)
    deadline = perf_counter() + time_limit_s
    lives, in_time = Flow(step, limit, static).solve(deadline - perf_counter())
    if name == "autotm-async":
        several = step_of(trace, machine, pair, _longest(trace, step))
        known = [life.along(gadgets) for life, gadgets in zip(lives, several.networks, strict=True)]
        lives, in_time = Flow(several, limit, static).solve(deadline - perf_counter(), known)
    fast, slow = pair.fast.name, pair.slow.name
    stays = [*step.stays, *(stay for life in lives for stay in stays_of_life(life, fast, slow, len(trace.ticks)))]
    return make_plan(name, trace, machine, budget_bytes, stays, began, out_of_time=not in_time)


def _longest(trace: Trace, step: Step) -> int:
    """Return how many operations on each side of a user may hide a move."""
    sides = 2 * sum(len(gadgets) for gadgets in step.networks)
    return max(1, min(REACH, _MOST_MOVES // max(sides, 1)))
