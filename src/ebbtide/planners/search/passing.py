"""Sends a part of what goes to the slowest tier through the tier before it, so that two links write there.

A tier may take more from two links than from one: a drive may write 5.5 GB/s for the first tier alone, and 7 for both.
Writes take turns in the plan's order. Each goes where it ends first, if the tier between has room for it meanwhile, and
leaves the first tier as soon as the tier between has it. Times are those of the last simulation.

Left out: fetches the same way, and contents that stay in the first tier into the next step.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from ebbtide.ir.base import LARGEST, Ints
from ebbtide.ir.machine import Link, Machine
from ebbtide.ir.occupancy import levels, paged_sizes
from ebbtide.ir.stay_columns import StayColumns
from ebbtide.ir.trace import Trace
from ebbtide.planners.search.bound import total_rate
from ebbtide.planners.search.problem import Problem
from ebbtide.planners.search.timing import Headroom
from ebbtide.simulator import Outcome


@dataclass(frozen=True, slots=True)
class Detour:
    """The two hops of a way from the first tier to the slowest, and the ns for a byte where it ends beside the direct
    way."""

    first: Link
    onward: Link
    ns_per_byte: float


def detour_of(machine: Machine, tiers: tuple[str, ...]) -> Detour | None:
    """Return the way through the next to last of the ``tiers``. Returns None if there is none, or it is no gain."""
    if len(tiers) < 2 or machine.exclusive or any(machine.tier(name).packs for name in tiers[-2:]):
        return None
    fast = machine.tiers[0].name
    direct, first = machine.link(fast, tiers[-1]), machine.link(fast, tiers[-2])
    onward = machine.link(tiers[-2], tiers[-1])
    if direct is None or first is None or onward is None:
        return None
    together = total_rate(machine, [direct, onward])
    return Detour(first, onward, 2 / together) if together > direct.bytes_per_s / 1e9 else None


def passing(problem: Problem, detour: Detour, moved: StayColumns, outcome: Outcome) -> StayColumns:
    """Return the stays with some writes by the detour."""
    trace, machine = problem.trace, problem.machine
    between, slowest = machine.rank(detour.onward.source), machine.rank(detour.onward.target)
    nbytes, paged = trace.storages.nbytes.tolist(), paged_sizes(trace, problem.page_bytes)
    reached, headroom = outcome.start_ns.tolist(), Headroom(_free(problem, moved, between, paged))
    start, valid_from, stop = moved.start.copy(), moved.valid_from.copy(), moved.stop.copy()
    added: list[tuple[int, int, int, int, int]] = []
    direct_ns = onward_ns = 0.0  # when the links have time
    for row, source, until in _writes(problem, moved, between, slowest):
        storage, out = int(moved.storage[row]), int(start[row])
        copy_ns = nbytes[storage] * detour.ns_per_byte
        arrives_ns = reached[out] + nbytes[storage] * 1e9 / detour.first.bytes_per_s
        begins_ns = max(onward_ns, arrives_ns)
        here = min(max(bisect_left(reached, arrives_ns), out + 1), int(stop[source]))
        leaves = max(bisect_left(reached, begins_ns), here)
        gone = max(bisect_left(reached, begins_ns + copy_ns), leaves + 1)
        direct_end_ns = max(direct_ns, reached[out]) + copy_ns
        first = begins_ns + copy_ns < direct_end_ns
        if not first or gone >= until or not headroom.has_room(out, gone, int(paged[storage])):
            direct_ns = direct_end_ns
            continue
        onward_ns = begins_ns + copy_ns
        headroom.take(out, gone, int(paged[storage]))
        added.append((storage, between, out, here, gone))
        start[row], valid_from[row] = leaves, gone
        stop[source] = max(here, _after_last_use(trace, storage, int(start[source]), int(stop[source])))
    both = StayColumns(moved.storage, moved.tier, start, valid_from, stop)
    both += StayColumns(*np.array(added, dtype=np.int64).reshape(-1, 5).T)
    order = np.argsort(both.storage, kind="stable")
    return StayColumns(*(column[order] for column in both.columns))


def _free(problem: Problem, moved: StayColumns, between: int, paged: Ints) -> Ints:
    tier, n_ticks = problem.machine.tiers[between], len(problem.trace.ticks)
    here = moved.tier == between
    held = levels(moved.start[here], moved.stop[here], paged[moved.storage[here]], n_ticks)
    for_good = problem.held.get(tier.name, np.zeros(n_ticks, dtype=np.int64))
    capacity = LARGEST if tier.capacity_bytes is None else tier.capacity_bytes
    free: Ints = capacity - held - for_good
    return free


def _writes(problem: Problem, moved: StayColumns, between: int, slowest: int) -> list[tuple[int, int, int]]:
    """Return the stays in the slowest tier that begin with a copy from the first, in order.

    Each comes with the stay in the first tier, and with the tick before which the copy has to be done.
    """
    rows, n_ticks = problem.trace.storages, len(problem.trace.ticks)
    bounds = np.append(np.flatnonzero(np.diff(moved.storage, prepend=-1)), len(moved))
    found = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        storage, tiers = moved.storage[low], moved.tier[low:high]
        if (tiers == between).any() or rows.death[storage] - rows.birth[storage] > n_ticks:
            continue
        fast = low + np.flatnonzero(tiers == 0)
        for row in (low + np.flatnonzero(tiers == slowest)).tolist():
            out, done = moved.start[row], moved.valid_from[row]
            sources = fast[(moved.start[fast] <= out) & (out <= moved.stop[fast]) & (done <= moved.stop[fast])]
            if len(sources) and moved.stop[sources[0]] <= n_ticks:
                source = int(sources[0])
                later = moved.start[fast][moved.start[fast] >= moved.stop[source]]
                until = min(int(later.min(initial=n_ticks)), int(moved.stop[row]), n_ticks)
                found.append((row, source, until))
    return sorted(found, key=lambda write: int(moved.start[write[0]]))


def _after_last_use(trace: Trace, storage: int, start: int, stop: int) -> int:
    """Return the tick after the last use before ``stop``; without one, that after ``start``."""
    low, high = np.searchsorted(trace.accesses.storage, [storage, storage + 1])
    used = int(np.searchsorted(trace.accesses.tick[low:high], stop))
    return int(trace.accesses.tick[low + used - 1]) + 1 if used else start + 1
