"""``sentinel``: long-lived data move at the borders of migration intervals, hot before cold.

After Sentinel (Ren et al., HPCA 2021). A step is cut into migration intervals of equal time. Data that live within one
interval stay in fast memory. A storage that an interval does not use leaves after its last use before it. A storage
that it uses comes in during the interval before, as far as there is room; the rest waits. The hottest (most uses for
its bytes) comes first. Several numbers of intervals are tried, as the paper does in the first training steps.

Sentinel's pages hold tensors of like lifetime and heat, so that a page moves as one. The arena's storages have pages of
their own, so they are the unit here. Left out: profiling by page faults, and small tensors that share pages. When an
interval is too short for data, compute waits for them here; Sentinel may leave them to be used in slow memory.
"""

from time import perf_counter_ns

import numpy as np

from ebbtide.ir.base import Floats, Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.trace import Trace
from ebbtide.planners.published.pressure import Pressure
from ebbtide.planners.resident import resident
from ebbtide.planners.search.make_plan import fastest_of, make_plan
from ebbtide.planners.search.slow_tiers import reachable_tiers

INTERVALS = (4, 8, 16, 32, 64)


def sentinel(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Make the plan. Raises InfeasibleBudgetError for a budget that no plan can keep.

    Raises PlanError if the slow tiers have no room.
    """
    began = perf_counter_ns()
    if not reachable_tiers(machine):
        return resident(trace, machine, budget_bytes)
    pressure = Pressure(trace, machine)
    pressure.require(budget_bytes)
    tried = [_with(count, trace, machine, budget_bytes) for count in INTERVALS]
    step_ns, best = fastest_of(trace, machine, budget_bytes, tried)
    return make_plan("sentinel", trace, machine, budget_bytes, best, began, step_ns=step_ns)


def _with(count: int, trace: Trace, machine: Machine, budget_bytes: int) -> list[Stay]:
    """Return the stays with so many migration intervals."""
    pressure = Pressure(trace, machine)
    idle, n_ticks = pressure.idle, len(trace.ticks)
    border = _borders(trace, count)
    last, following = _interval(border, idle.after, n_ticks), _interval(border, idle.until, n_ticks)
    back = np.where(idle.returns, _start_of(border, following - 1, n_ticks), idle.until)
    leaves = following - last >= np.where(idle.returns, 2, 1)  # a whole interval lies between
    heat = _heat(trace)[idle.storage]
    for row in np.argsort(-heat, kind="stable").tolist():
        if leaves[row] and len(border) > 1:
            pressure.leave(row, int(back[row]))
    pressure.squeeze(budget_bytes, heat)
    return pressure.stays()


def _borders(trace: Trace, count: int) -> Ints:
    """Return the first ticks of intervals of about equal time, the first of them 0."""
    starts = trace.start_ns(np.arange(len(trace.ticks)))
    at = np.searchsorted(starts, np.linspace(0, trace.step_ns, count + 1)[:-1], "left")
    return np.unique(np.minimum(at, len(trace.ticks) - 1)).astype(np.int64)


def _interval(border: Ints, ticks: Ints, n_ticks: int) -> Ints:
    """Return the number of the interval of each tick, counted on through the steps."""
    steps, tick = np.divmod(ticks, n_ticks)
    result: Ints = steps * len(border) + np.searchsorted(border, tick, "right") - 1
    return result


def _start_of(border: Ints, interval: Ints, n_ticks: int) -> Ints:
    steps, place = np.divmod(interval, len(border))
    result: Ints = steps * n_ticks + border[place]
    return result


def _heat(trace: Trace) -> Floats:
    """Return the uses of each storage for each of its bytes."""
    uses = np.bincount(trace.accesses.storage, minlength=len(trace.storages)).astype(np.float64)
    result: Floats = uses / trace.storages.nbytes
    return result
