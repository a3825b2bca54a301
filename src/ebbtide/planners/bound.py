"""A time that no plan can beat. The largest of three:

- the compute time;
- *prices*: the least transfer time that any choice of absences costs (``choice.find_prices``), with every byte read, or
  every byte written, or both together, at the machine's best rate;
- *windows*, after the bounds in the G10 traces' notes: during ticks [i, j), whatever is used there and was there
  before comes in, except for a budget's worth that may be there at i; whatever is written there and outlives j goes
  out, except for a budget's worth that may stay. So the window lasts at least as long as these copies, and as its
  compute. A step is a row of windows; the best row is found by dynamic programming over a grid of ticks.

Left out: latencies, the slowdown of compute by copies, the granularity of storages and the order of copies, all of
which only add time; and windows that lie across the step's end.
"""

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Link, Machine
from ebbtide.ir.occupancy import live_bytes
from ebbtide.ir.trace import Access, Trace
from ebbtide.planners.absences import Absences, Floats
from ebbtide.planners.base import PAGES
from ebbtide.planners.choice import Demand, find_prices

_GRID = 96
"""Windows begin and end at this many places of a step, at most."""


def total_rate(machine: Machine, links: list[Link]) -> float:
    """Bytes per ns that links could move together."""
    alone = sum(link.bytes_per_s for link in links if link.shares is None)
    for group in machine.groups:
        members = sum(link.bytes_per_s for link in links if link.shares == group.name)
        alone += min(members, group.bytes_per_s)
    return alone / 1e9


def lower_bound_ns(trace: Trace, machine: Machine, absences: Absences, budget_bytes: int) -> int:
    """Of the step's time under any plan that keeps the budget."""
    fast = machine.tiers[0].name
    inward = [link for link in machine.links if link.target == fast]
    outward = [link for link in machine.links if link.source == fast]
    if not inward or not outward:
        return trace.step_ns
    rates = (
        total_rate(machine, inward),
        total_rate(machine, outward),
        total_rate(machine, [*inward, *outward]),
    )
    priced = _by_prices(trace, absences, budget_bytes, rates)
    windowed = _by_windows(trace, budget_bytes, rates)
    return max(trace.step_ns, int(priced * (1 - 1e-9)), int(windowed * (1 - 1e-9)))


def _by_prices(trace: Trace, absences: Absences, budget_bytes: int, rates: tuple[float, float, float]) -> float:
    """The three ways to count time, each with its own prices."""
    demand = Demand(absences.after + 1, absences.until, live_bytes(trace, PAGES) - budget_bytes)
    read = np.where(absences.returns, absences.nbytes, 0).astype(np.float64)
    write = np.zeros(len(absences.dirty))
    write[absences.group] = absences.nbytes
    write *= absences.dirty
    never = never_used_bytes(trace)
    demand = Demand(demand.low, demand.high, demand.deficit - never)
    return max(
        find_prices(absences, demand, read / rates[2], write / rates[2]).bound,
        find_prices(absences, demand, read / rates[0], write * 0.0).bound,
        find_prices(absences, demand, read * 0.0, write / rates[1]).bound,
    )


def never_used_bytes(trace: Trace) -> int:
    """Of persistent storages that no tick uses: they need not be in fast memory at all."""
    used = set(trace.accesses.storage.tolist())
    return sum(
        -(-storage.nbytes // PAGES(storage.nbytes)) * PAGES(storage.nbytes)
        for number, storage in enumerate(trace.storages)
        if storage.persistent and number not in used and not storage.scratch
    )


def _by_windows(trace: Trace, budget_bytes: int, rates: tuple[float, float, float]) -> float:
    n_ticks = len(trace.ticks)
    starts = trace.start_ns(np.arange(n_ticks + 1)).astype(np.float64)
    even = np.searchsorted(starts, np.linspace(0, starts[-1], _GRID // 2 + 1))
    cuts = np.unique(np.concatenate((even, np.linspace(0, n_ticks, _GRID // 2 + 1).astype(np.int64), [0, n_ticks])))
    uses, writes = _uses(trace), _writes(trace)
    best = np.zeros(len(cuts))
    for at, low in enumerate(cuts[:-1].tolist()):
        ends = cuts[at + 1 :]
        before, used, nbytes = uses
        first = (before < low) & (used >= low)
        come = _up_to(used[first], nbytes[first], ends) - budget_bytes
        written, lives, nbytes = writes
        here = written >= low
        born = _up_to(written[here], nbytes[here], ends)
        gone = _up_to(lives[here] - 1, nbytes[here], ends)
        go = born - gone - budget_bytes
        come, go = np.maximum(come, 0.0), np.maximum(go, 0.0)
        length = np.maximum.reduce([starts[ends] - starts[low], come / rates[0], go / rates[1], (come + go) / rates[2]])
        best[at + 1 :] = np.maximum(best[at + 1 :], best[at] + length)
    return float(best[-1])


def _up_to(ticks: Ints, nbytes: Floats, ends: Ints) -> Floats:
    """For each end, the bytes of rows whose tick lies before it."""
    order = np.argsort(ticks, kind="stable")
    summed = np.concatenate(([0.0], np.cumsum(nbytes[order])))
    result: Floats = summed[np.searchsorted(ticks[order], ends, "left")]
    return result


def _uses(trace: Trace) -> tuple[Ints, Ints, Floats]:
    """(tick of the use before, tick of the use, bytes) of all uses in the step of what was there before its use.

    What is born in the step comes from nowhere, and its birth counts as a use.
    """
    n_ticks, rows = len(trace.ticks), trace.accesses
    found: list[tuple[int, int, int]] = []
    for number, storage in enumerate(trace.storages):
        if storage.scratch:
            continue
        ticks = rows.tick[rows.of(number)].tolist()
        if storage.persistent:
            before = [ticks[-1] - n_ticks, *ticks[:-1]] if ticks else []
        else:
            ticks = ticks if not ticks or ticks[0] != storage.birth else ticks[1:]
            before = [storage.birth, *ticks[:-1]] if ticks else []
        for earlier, tick in zip(before, ticks, strict=True):
            shift = tick // n_ticks * n_ticks
            found.append((earlier - shift, tick - shift, storage.nbytes))
    before_, tick_, nbytes = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return before_, tick_, nbytes.astype(np.float64)


def _writes(trace: Trace) -> tuple[Ints, Ints, Floats]:
    """(tick of a write or birth, tick from which its contents are of no use, bytes) of all writes in the step.

    Contents written again at tick w are of use up to w; those of a storage that dies at tick d, up to d - 1.
    """
    n_ticks, rows = len(trace.ticks), trace.accesses
    found: list[tuple[int, int, int]] = []
    for number, storage in enumerate(trace.storages):
        if storage.scratch:
            continue
        mine = rows.of(number)
        ticks = [
            tick
            for tick, mode in zip(rows.tick[mine].tolist(), rows.mode[mine].tolist(), strict=True)
            if mode & Access.WRITE
        ]
        if storage.persistent:
            ends = [*(tick + 1 for tick in ticks[1:]), ticks[0] + n_ticks + 1] if ticks else []
        else:
            ticks = ticks if ticks and ticks[0] == storage.birth else [storage.birth, *ticks]
            ends = [*(tick + 1 for tick in ticks[1:]), storage.death]
        for tick, end in zip(ticks, ends, strict=True):
            shift = tick // n_ticks * n_ticks
            found.append((tick - shift, end - shift, storage.nbytes))
    tick_, end_, nbytes = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return tick_, end_, nbytes.astype(np.float64)
