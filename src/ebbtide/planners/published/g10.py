"""``g10``: takes idle intervals by the memory they free over time, on channels booked operation by operation.

After G10 (Zhang et al., MICRO 2023). Intervals are taken in the order of their reducible area, the largest first. The
area is the bytes times the time in which the step holds too much. An interval goes to the slowest tier whose safe time
(2 + delta)(latency + S / B) it exceeds, if that tier's channel has time for it. Its eviction is as early and its fetch
as late as the channel is free. If the simulation shows a gain, fetches then move forward where the planned memory
allows (eager prefetch). LRU evicts the rest, as G10's page faults do.

Left out: pages (storages move whole), and two global lines in place of each interval's own safe time. Also left out:
G10's exclusive copies (a clean storage leaves without a write here), and kernel slots of equal length.
"""

from time import perf_counter_ns

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import levels
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.trace import Trace
from ebbtide.planners.published.channels import Channels, book
from ebbtide.planners.published.pressure import Pressure
from ebbtide.planners.resident import resident
from ebbtide.planners.search.make_plan import fastest_of, make_plan
from ebbtide.planners.search.slow_tiers import reachable_tiers

DELTA = 0.5


def g10(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Make the plan. Raises InfeasibleBudgetError for a budget that no plan can keep.

    Raises PlanError if the slow tiers have no room.
    """
    began = perf_counter_ns()
    tiers = reachable_tiers(machine)
    if not tiers:
        return resident(trace, machine, budget_bytes)
    pressure = Pressure(trace, machine)
    pressure.require(budget_bytes)
    idle, channels = pressure.idle, Channels(trace, machine)
    tier_of: dict[int, str] = {}  # storage -> tier of its contents while it is away
    held = {tier: np.zeros(len(trace.ticks), dtype=np.int64) for tier in tiers}
    for row in _by_area(pressure, budget_bytes):
        number = int(idle.storage[row])
        if not pressure.relieves(row, budget_bytes):
            continue
        for tier in [tier_of[number]] if number in tier_of else tiers[::-1]:
            capacity = machine.tier(tier).capacity_bytes
            replica = None if capacity is None else _replica(pressure, row)
            if capacity is not None and replica is not None and int((held[tier] + replica).max()) > capacity:
                continue
            if _book(pressure, channels, row, tier):
                held[tier] += 0 if replica is None else replica
                tier_of[number] = tier
                break
    eager = pressure.copy()
    _prefetch_eagerly(eager, budget_bytes)
    found = [_stays(way, tiers[-1], tier_of, budget_bytes) for way in (pressure, eager)]
    step_ns, best = fastest_of(trace, machine, budget_bytes, found)
    return make_plan("g10", trace, machine, budget_bytes, best, began, step_ns=step_ns)


def _stays(pressure: Pressure, last: str, tier_of: dict[int, str], budget_bytes: int) -> list[Stay]:
    """Return the stays, with LRU's evictions, which go to the ``last`` tier. They may overfill one that was booked."""
    pressure.squeeze(budget_bytes)
    return pressure.fitting(pressure.stays([tier_of.get(number, last) for number in pressure.idle.storage.tolist()]))


def _by_area(pressure: Pressure, budget_bytes: int) -> list[int]:
    """Return rows that are idle while the step holds too much, by bytes times that time."""
    trace, idle = pressure.trace, pressure.idle
    times = trace.ticks.time_ns.astype(np.float64)
    over = np.concatenate(([0.0], np.cumsum(np.tile(np.where(pressure.live > budget_bytes, times, 0.0), 2))))
    low = (idle.after + 1) % len(times)
    area = idle.nbytes * (over[low + idle.until - idle.after - 1] - over[low])
    return [row for row in np.argsort(-area, kind="stable").tolist() if area[row] > 0]


def _replica(pressure: Pressure, row: int) -> Ints:
    """Return the room of an interval's contents in a slow tier at each tick. Unwritten contents stay there for ever."""
    idle, n_ticks = pressure.idle, len(pressure.live)
    low, high, paged = (int(column[row]) for column in (idle.after + 1, idle.until, idle.paged_bytes))
    if not idle.dirty[idle.group[row]]:
        low, high = 0, n_ticks
    return levels(np.array([low]), np.array([high]), np.array([paged]), n_ticks)


def _book(pressure: Pressure, channels: Channels, row: int, tier: str) -> bool:
    """Take the interval if it is safe for the tier and the tier's channels have time. Says whether it was taken."""
    nbytes = int(pressure.idle.nbytes[row])
    slowest = max(link.copy_ns(nbytes) for link in pressure.machine.ways(tier))
    if float(pressure.idle_ns[row]) <= (2 + DELTA) * slowest:
        return False
    return book(pressure, channels, row, tier)


def _prefetch_eagerly(pressure: Pressure, budget_bytes: int) -> None:
    """Move fetches as early as the planned memory allows. They keep their booked order."""
    idle, n_ticks = pressure.idle, len(pressure.live)
    last = -n_ticks
    rows = np.flatnonzero((pressure.gone < pressure.back) & idle.returns)
    for row in rows[np.argsort(pressure.back[rows] % n_ticks, kind="stable")].tolist():
        out, done, gone, back = (
            int(column[row]) for column in (pressure.out, pressure.done, pressure.gone, pressure.back)
        )
        window = np.arange(gone, back)
        full = np.flatnonzero(pressure.level[window % n_ticks] + idle.paged_bytes[row] > budget_bytes)
        earliest = gone + int(full[-1]) + 1 if len(full) else gone + 1
        steps = back // n_ticks * n_ticks
        earliest = min(max(earliest, last + steps), back)
        last = earliest - steps
        if earliest < back:
            pressure.set(row, out, done, gone, earliest)
