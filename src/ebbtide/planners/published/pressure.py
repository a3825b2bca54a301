"""Idle intervals under construction, for methods without a rule that always keeps the budget, and a last resort.

A method says which intervals it wants and when their copies go. Where ticks still hold more than the budget, *pressure*
acts as a memory manager would on the spot. Storages that are there and not in use leave, in the method's own order. A
fetch without the room it counted on waits. Such copies are between two ticks, so compute may wait.
"""

from copy import copy

import numpy as np

from ebbtide.errors import PlanError
from ebbtide.ir.base import Flags, Floats
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes, occupancy
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.remakes import Split
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of, require_levels
from ebbtide.planners.search.bound import never_used_bytes
from ebbtide.planners.search.idle_table import IdleTable, idle_table
from ebbtide.planners.search.make_plan import make_plan
from ebbtide.planners.search.slow_tiers import assign_tiers, homeless_tier, reachable_tiers
from ebbtide.planners.search.timing import Clock, Move, stays_of, still_stays
from ebbtide.units import KIB

_STRIDES = 128
"""A fetch that waits does so by this part of a step at a time, or by one tick in shorter steps."""

SMALLEST_REMADE = 64 * KIB
"""The smallest storage that methods without moves make anew: for less, whole operators would run."""


class Pressure:
    """The taken intervals and their times, as columns over the rows of ``idle``.

    An interval is away in ticks [gone, back) and written during [out, done). ``evictable`` are the rows that the method
    moves at all. Persistent storages that no tick uses lie in the slowest tier. All ``rows`` of one storage have the
    same slow tier. ``idle_ns`` is the longest that each interval could last.
    """

    def __init__(self, trace: Trace, machine: Machine) -> None:
        self.trace, self.machine, self.page_bytes = trace, machine, page_size_of(machine)
        self.idle: IdleTable = idle_table(trace, machine.exclusive, self.page_bytes)
        self.clock = Clock(trace.start_ns(np.arange(len(trace.ticks) + 1)))
        self.evictable: Flags = np.ones(len(self.idle), dtype=bool)
        self.out, self.done = self.idle.after + 1, self.idle.after + 1
        self.gone, self.back = self.idle.after + 1, self.idle.after + 1
        self.live = live_bytes(trace, self.page_bytes)
        if homeless_tier(machine) != machine.tiers[0].name:
            self.live = self.live - never_used_bytes(trace, self.page_bytes)
        self.level = np.array(self.live)
        self.idle_ns: Floats = self.clock.of(self.idle.until) - self.clock.of(self.idle.after + 1)

    def require(self, budget_bytes: int) -> None:
        """Raise InfeasibleBudgetError if the budget is too small even with all away that may leave."""
        require_levels(self.idle.left(self.evictable, self.live), self.trace, budget_bytes)

    def leave(self, row: int, back: int) -> None:
        """Be away from the last use up to ``back``, with copies between two ticks."""
        gone = int(self.idle.after[row]) + 1
        self.set(row, gone, gone, gone, back)

    def set(self, row: int, out: int, done: int, gone: int, back: int) -> None:
        """Take an interval, or give it other times. It is not taken if it would not be away for a tick."""
        if gone >= back:
            gone = back = done = out = int(self.idle.after[row]) + 1
        paged = int(self.idle.paged_bytes[row])
        for low, high, change in ((int(self.gone[row]), int(self.back[row]), paged), (gone, back, -paged)):
            for part in self.parts(low, high):
                self.level[part] += change
        self.out[row], self.done[row], self.gone[row], self.back[row] = out, done, gone, back

    def copy(self) -> "Pressure":
        """Return a copy that changes independently."""
        other = copy(self)
        for name in ("out", "done", "gone", "back", "level"):
            setattr(other, name, np.array(getattr(self, name)))
        return other

    def relieves(self, row: int, budget_bytes: int) -> bool:
        """Say whether an interval covers a tick that holds too much."""
        parts = self.parts(int(self.idle.after[row]) + 1, int(self.idle.until[row]))
        return any(bool(np.any(self.level[part] > budget_bytes)) for part in parts)

    def squeeze(self, budget_bytes: int, last_to_leave: Floats | None = None) -> None:
        """Keep the budget. Of the rows that are there, the one with the least value leaves first, by default LRU's.

        ``require`` MUST have passed. Raises PlanError where it would not have.
        """
        idle, n_ticks = self.idle, len(self.live)
        order = idle.after if last_to_leave is None else last_to_leave
        low, high, stride = idle.after + 1, idle.until, max(1, n_ticks // _STRIDES)
        while np.any(over := self.level > budget_bytes):
            tick = int(over.argmax())
            shift = np.where(low <= tick, 0, n_ticks)
            here = tick + shift
            present = self.evictable & (low <= here) & (here < high) & ~((self.gone <= here) & (here < self.back))
            rows = np.flatnonzero(present)
            for row in rows[np.argsort(order[rows], kind="stable")].tolist():
                if self.level[tick] <= budget_bytes:
                    break
                self._vacate(row, int(here[row]), stride)
            if self.level[tick] > budget_bytes:
                raise PlanError((f"tick {tick} holds {self.level[tick]:,} bytes with all away that may leave",))

    def _vacate(self, row: int, tick: int, stride: int) -> None:
        """Be away at ``tick``, where the row is there and idle. If its fetch came before, it waits for ``stride``
        ticks."""
        out, done = int(self.out[row]), int(self.done[row])
        gone, back, until = int(self.gone[row]), int(self.back[row]), int(self.idle.until[row])
        if gone >= back:
            self.set(row, tick, tick, tick, until)
        elif tick < gone:
            self.set(row, min(out, tick), min(done, tick), tick, back)
        else:
            self.set(row, out, done, gone, min(tick + stride, until))

    def parts(self, low: int, high: int) -> list[slice]:
        """Return ticks [low, high) of the circle, at most once round."""
        if low >= high:
            return []
        n_ticks = len(self.live)
        low, high = low % n_ticks, low % n_ticks + high - low
        return [slice(low, high)] if high <= n_ticks else [slice(low, n_ticks), slice(0, high - n_ticks)]

    def moves(self, slow: list[str] | None = None) -> list[Move]:
        """Return the moves of the taken intervals. ``slow`` has the tier of each row; by default, it is the fastest
        with room."""
        rows = np.flatnonzero(self.gone < self.back)
        tiers = assign_tiers(self.trace, self.machine, self.idle, rows, self.clock)
        if slow is not None:
            tiers = [slow[row] for row in rows.tolist()]
        times = zip(*(column[rows].tolist() for column in (self.out, self.done, self.gone, self.back)), strict=True)
        return [Move(row, tier, *time) for row, tier, time in zip(rows.tolist(), tiers, times, strict=True)]

    def stays(self, slow: list[str] | None = None) -> list[Stay]:
        """Return the plan's stays."""
        still = still_stays(self.trace, self.machine.rank(homeless_tier(self.machine)))
        return stays_of(self.trace, self.idle, self.moves(slow), still, self.machine)

    def fitting(self, stays: list[Stay]) -> list[Stay]:
        """Return these stays. If they overfill a slow tier, tiers are assigned anew."""
        capacities = {tier: self.machine.tier(tier).capacity_bytes for tier in reachable_tiers(self.machine)}
        level = occupancy(self.trace, stays, [*capacities], self.page_bytes)
        full = any(most is not None and int(level[tier].max()) > most for tier, most in capacities.items())
        return self.stays() if full else stays


def with_moves(
    name: str, made: Split, trace: Trace, machine: Machine, budget_bytes: int, began_ns: int, out_of_time: bool = False
) -> Plan:
    """Make the plan of a method that moves nothing: LRU moves what of the split step ``made`` exceeds the budget.

    Raises InfeasibleBudgetError if the budget is too small even with all away that may leave.
    """
    pressure = Pressure(made.trace, machine)
    if not reachable_tiers(machine):
        pressure.evictable = np.zeros(len(pressure.idle), dtype=bool)
    pressure.require(budget_bytes)
    pressure.squeeze(budget_bytes)
    return make_plan(name, trace, machine, budget_bytes, pressure.stays(), began_ns, out_of_time, made=made)
