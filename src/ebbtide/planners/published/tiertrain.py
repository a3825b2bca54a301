"""``tiertrain``: activations leave after their last use in the forward pass and come back just in time.

After TierTrain (ISMM 2025, "Proactive Memory Tiering for CPU-Based DNN Training"). Its queueing model is not in the
public code. This is a reconstruction for known arrival and service times, with a FIFO server for each direction. They
follow Lindley's recursion W[n+1] = max(0, W[n] + X[n] - A[n]). A storage moves if and only if its idle window is at
least W_out + X_out + W_in + X_in. The copy in starts at t_need - (W_in + X_in).

The paper's: only activations move, in one window each, no rule keeps a budget, and there are no clean replicas. The
window here is the longest idle interval. For a saved tensor, that lies between its last use forward and its first use
backward. Ours: windows of operations rather than of layers, exact times in place of averages, the smallest storage that
pays (64 KiB; the paper's hooks take tensors of 0.0001 GB and more), and who stays where not all fit: of those that do
not, the half that lacks most time, until all do. A hidden copy is not free, since operations beside it take longer;
the queue does not count that. Left out: the paper's measurement of free
bandwidth, epochs, and parameters that are saved for backward and move with the activations.
"""

from time import perf_counter_ns

import numpy as np

from ebbtide.ir.base import Flags, Floats, Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import levels
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import StorageKind, Trace
from ebbtide.planners.base import require_budget
from ebbtide.planners.resident import resident
from ebbtide.planners.search.idle_table import IdleTable, idle_table
from ebbtide.planners.search.make_plan import make_plan
from ebbtide.planners.search.slow_tiers import reachable_tiers
from ebbtide.planners.search.timing import Clock, Move, stays_of, still_stays
from ebbtide.units import KIB

_SMALLEST = 64 * KIB
_SAVED = (StorageKind.ACTIVATION, StorageKind.INPUT)


def tiertrain(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Make the plan. It is OVER_BUDGET if moving all that can be hidden does not keep the budget.

    The slow tier is the fastest that can be reached. Raises InfeasibleBudgetError for a budget that no plan can keep.
    """
    began = perf_counter_ns()
    require_budget(trace, budget_bytes)
    tiers = reachable_tiers(machine)
    if not tiers:
        return resident(trace, machine, budget_bytes)
    slow = tiers[0]
    idle = idle_table(trace)
    rows = _longest_of_activations(trace, idle)
    in_ns, out_ns = (link.copy_ns(idle.nbytes[rows]) for link in machine.ways(slow))
    clock = Clock(trace.start_ns(np.arange(len(trace.ticks) + 1)))
    moves = _hidden(idle, rows, out_ns, in_ns, clock, slow)
    moves = _that_fit(trace, idle, moves, machine.tier(slow).capacity_bytes)
    stays = stays_of(trace, idle, moves, still_stays(trace), machine)
    return make_plan("tiertrain", trace, machine, budget_bytes, stays, began)


def _longest_of_activations(trace: Trace, idle: IdleTable) -> Ints:
    """Return for each activation its longest interval that ends in a use, in the order in which they begin."""
    idle_ns = trace.start_ns(idle.until) - trace.start_ns(idle.after + 1)
    storages, longest = trace.storages, dict[int, tuple[int, int]]()
    may = np.isin(storages.kind, _SAVED) & ~storages.persistent & (storages.nbytes >= _SMALLEST)
    for row in np.flatnonzero(may[idle.storage] & idle.returns).tolist():
        number = int(idle.storage[row])
        longest[number] = max(longest.get(number, (-1, 0)), (int(idle_ns[row]), -row))
    rows = np.array([-row for _, row in longest.values()], dtype=np.int64)
    ordered: Ints = rows[np.argsort(idle.after[rows], kind="stable")]
    return ordered


def _hidden(idle: IdleTable, rows: Ints, out_ns: Floats, in_ns: Floats, clock: Clock, slow: str) -> list[Move]:
    """Return the timed intervals whose copies fit their windows, queues included.

    In the paper's terms, A is the time between two arrivals, X a service time, and W a wait. Intervals that do not fit
    are not queued. The queue inwards runs backwards in time: a copy in must end at its own need, or earlier, when the
    copy of the next need begins.
    """
    ready, need = clock.of(idle.after[rows] + 1), clock.of(idle.until[rows])
    kept = np.ones(len(rows), dtype=bool)
    while True:
        wait_out = _waits(ready, out_ns, kept)
        wait_in = _waits(-need, in_ns, kept)
        fits = need - ready >= wait_out + out_ns + wait_in + in_ns
        if np.all(fits[kept]):
            break
        worst = np.flatnonzero(kept & ~fits)
        lacks = (wait_out + out_ns + wait_in + in_ns - (need - ready))[worst]
        kept[worst[lacks >= np.median(lacks)]] = False
    done = clock.at_or_after(ready + wait_out + out_ns)
    begin = clock.at_or_before(need - wait_in - in_ns)
    moves = []
    for at in np.flatnonzero(kept).tolist():
        row = int(rows[at])
        out, until = int(idle.after[row]) + 1, int(idle.until[row])
        gone = min(max(int(done[at]), out), until)
        back = min(max(int(begin[at]), gone), until)
        if gone < back:
            moves.append(Move(row, slow, out, gone, gone, back))
    return moves


def _that_fit(trace: Trace, idle: IdleTable, moves: list[Move], capacity_bytes: int | None) -> list[Move]:
    """Drop the moves for which the slow tier has no headroom when their turn comes. Their storages stay."""
    if capacity_bytes is None:
        return moves
    held, found = np.zeros(len(trace.ticks), dtype=np.int64), []
    for move in moves:
        low, high, paged = move.out, int(idle.until[move.row]), int(idle.paged_bytes[move.row])
        mine = levels(np.array([low]), np.array([high]), np.array([paged]), len(held))
        if int((held + mine).max()) <= capacity_bytes:
            held += mine
            found.append(move)
    return found


def _waits(arrival: Floats, service: Floats, kept: Flags) -> Floats:
    """Apply Lindley's recursion to the arrivals in their order. Arrivals that are not kept wait, but delay no
    others."""
    waits = np.zeros(len(arrival))
    free_from = -np.inf
    for at in np.argsort(arrival, kind="stable").tolist():
        waits[at] = max(0.0, free_from - arrival[at])
        if kept[at]:
            free_from = arrival[at] + waits[at] + service[at]
    return waits
