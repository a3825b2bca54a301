"""``g10``: idle intervals by the memory they free over time, on channels that are booked operation by operation.

After G10 (Zhang et al., MICRO 2023), ``methods.md`` 6. Intervals are taken in the order of their reducible area, bytes
times the time in which the step holds too much, the largest first. One goes to the slowest tier whose safe time
(2 + delta)(latency + S / B) it exceeds, if that tier's channel has time for it: the eviction as early and the fetch as
late as the channel is free. Fetches are then moved forward where the planned memory allows (eager prefetch).

What no interval covers falls to LRU, as its page faults do. Left out: pages (storages move whole), two global lines in
place of each interval's own safe time, G10's exclusive copies (a clean storage leaves without a write here), and kernel
slots of equal length.
"""

from time import perf_counter_ns

import numpy as np

from ebbtide.ir.machine import Link, Machine
from ebbtide.ir.occupancy import levels
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace
from ebbtide.planners.absences import Floats
from ebbtide.planners.finish import finished
from ebbtide.planners.pressure import Pressure
from ebbtide.planners.resident import resident
from ebbtide.planners.slow_tiers import assign_tiers, reachable_tiers

DELTA = 0.5


def g10(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """InfeasibleBudgetError for a budget that no plan can keep; PlanError if the slow tiers have no room."""
    began = perf_counter_ns()
    tiers = reachable_tiers(machine)
    if not tiers:
        return resident(trace, machine, budget_bytes)
    pressure = Pressure(trace, machine)
    pressure.require(budget_bytes)
    absences, channels = pressure.absences, _Channels(trace, machine)
    slow = [tiers[0]] * len(absences)
    chosen: dict[int, str] = {}  # the tier of a storage's contents
    host = {tier: np.zeros(len(trace.ticks), dtype=np.int64) for tier in tiers}
    for row in _by_area(pressure, budget_bytes):
        if not pressure.relieves(row, budget_bytes):
            continue
        number = int(absences.storage[row])
        for tier in [chosen[number]] if number in chosen else reversed(tiers):
            first = number not in chosen
            if (first and not _has_room(pressure, row, tier, host)) or not _book(pressure, channels, row, tier):
                continue
            if first:
                host[tier] += _replica(pressure, row)
            chosen[number] = slow[row] = tier
            break
    _prefetch_eagerly(pressure, budget_bytes)
    pressure.squeeze(budget_bytes, absences.after.astype(np.float64))
    rows = np.flatnonzero(pressure.gone < pressure.back)
    for row, tier in zip(rows.tolist(), assign_tiers(trace, machine, absences, rows), strict=True):
        slow[row] = chosen.get(int(absences.storage[row]), tier)
    stays = pressure.stays(slow)
    if any(tier.capacity_bytes is not None and tier.name in tiers for tier in machine.tiers):
        stays = pressure.stays() if _too_full(pressure, machine, stays) else stays
    return finished("g10", trace, machine, budget_bytes, stays, began)
