"""``10cache``: parameters and optimizer state over GPU, pinned memory and NVMe, by a table made in one warm-up step.

After 10Cache (SoCC 2025, arXiv 2511.14124), as its published code has it. Its four algorithms:

1. *Prefetch table* (``_Table``): the visits of modules to parameters, in the order in which they run, with their sizes.
2. *Buffers by size distribution* (``buffers``): each size s with c_s tensors gets s c_s / sum(u c_u) of M.
3. *Memory-aware placement* (``_placed``): parameters get their final places in the order of the forward pass. The fast
   tier comes first, then pinned memory, then NVMe, as long as there are buffers. So does optimizer state, in its order.
4. *Prefetch-eviction scheduler* (``_schedule``): a released parameter makes the next row of the table come in that is
   not in the window, as soon as a buffer of its size is free. A parameter that the window needs again stays.

A machine's fastest slow tier is the pinned memory, and its slowest the NVMe. A single slow tier is the pinned memory of
10Cache's GPU + CPU setting. Parameters are copied to pinned memory, clean or not. Their room there is given up when
they return (the cache is exclusive). Parameters whose final place is NVMe are dropped. The fast tier's cache is the
free part of the budget / 2.5. Optimizer state gets 0.67 of pinned memory, and parameters half of the rest.

Ours: no size has fewer buffers than are in use at once. Left out: the term -n_gpu + 12 of the cap on pinned buffers, 30
spare buffers where half of all are fewer, larger shares for rare sizes at the cost of the most numerous one, two-stage
swap-ins (gathered a step later), and displacement among pinned buffers. The optimizer's step on the CPU is an operation
in the fast tier here. State and gradients come for it through ``STAGING`` buffers. Activations are left alone.
"""

from collections import Counter
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import levels, paged_sizes, peak
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.trace import StorageKind, Trace
from ebbtide.planners.published.module_ends import leaves_module, offload
from ebbtide.planners.published.pressure import Pressure
from ebbtide.planners.resident import resident
from ebbtide.planners.search.make_plan import make_plan
from ebbtide.planners.search.slow_tiers import reachable_tiers

CACHE_SHARE = 1 / 2.5
OPTIMIZER_SHARE = 0.67
PINNED_SHARE = 0.5
SPARE_BUFFERS = 30
STAGING = 6
STATES = (StorageKind.OPTIMIZER_STATE, StorageKind.GRADIENT)


def ten_cache(trace: Trace, machine: Machine, budget_bytes: int, prefetches: bool = True) -> Plan:
    """Make the plan. Without ``prefetches`` its cache stands alone: what is not there comes when it is used.

    Raises InfeasibleBudgetError, which names the least budget.

    At that budget, all parameters, gradients and optimizer state are away. Raises PlanError if the slow tiers have no
    room for them.
    """
    began = perf_counter_ns()
    tiers = reachable_tiers(machine)
    if not tiers:
        return resident(trace, machine, budget_bytes)
    pressure = Pressure(trace, machine)
    idle = pressure.idle
    kinds = trace.storages.kind[idle.storage]
    is_parameter, is_state = kinds == StorageKind.PARAMETER, np.isin(kinds, STATES)
    pressure.evictable = is_parameter | is_state
    pressure.require(budget_bytes)
    apart = leaves_module(trace, idle)
    offload(pressure, np.flatnonzero(is_state & apart), STAGING)
    table = _Table.of(pressure, np.flatnonzero(is_parameter & apart))
    cached = buffers(table.sizes, CACHE_SHARE * _free_bytes(pressure, budget_bytes), table.least)
    _schedule(pressure, table, cached, prefetches)
    pressure.squeeze(budget_bytes)
    homes = _placed(pressure, table, cached, tiers, [machine.tier(tier).capacity_bytes for tier in tiers])
    pinned_only = [homes.get(number, tiers[-1]) for number in idle.storage.tolist()]
    exclusive = {number for number in table.parameters if homes[number] == tiers[0]}
    stays = _exclusive(pressure.stays(pinned_only), pressure, pinned_only, exclusive)
    return make_plan("10cache", trace, machine, budget_bytes, pressure.fitting(stays), began)


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The table, whose rows are intervals of parameters between two visits.

    ``releases`` is in the order in which they begin, and ``needs`` in that of the visits after them. ``sizes`` counts
    parameters by size, and ``least`` those in use at once.
    """

    releases: list[int]
    needs: list[int]
    parameters: list[int]
    sizes: Counter[int]
    least: Counter[int]

    @staticmethod
    def of(pressure: Pressure, rows: Ints) -> "_Table":
        idle, n_ticks = pressure.idle, len(pressure.live)
        releases = rows[np.argsort(idle.after[rows] % n_ticks, kind="stable")]
        needs = rows[np.argsort(idle.until[rows] % n_ticks, kind="stable")]
        parameters = list(dict.fromkeys(idle.storage[needs].tolist()))
        size = {number: int(pressure.trace.storages.nbytes[number]) for number in parameters}
        least: Counter[int] = Counter()
        for nbytes in set(size.values()):
            mine = [row for row in rows.tolist() if size[int(idle.storage[row])] == nbytes]
            low, high = idle.after[mine] + 1, idle.until[mine]
            away = levels(low, high, np.ones(len(mine), dtype=np.int64), n_ticks)
            least[nbytes] = list(size.values()).count(nbytes) - int(away.min())
        return _Table(releases.tolist(), needs.tolist(), parameters, Counter(size.values()), least)


def buffers(sizes: Counter[int], cache_bytes: float, least: Counter[int] | None = None) -> Counter[int]:
    """Return the number of buffers of each size, from its share of the cache.

    Up to two tensors of a size get a buffer each. No size gets fewer than its tensors in use at once.
    """
    total = sum(nbytes * count for nbytes, count in sizes.items())
    found: Counter[int] = Counter()
    for nbytes, count in sizes.items():
        share = nbytes * count / total * max(cache_bytes, 0.0)
        found[nbytes] = count if count <= 2 else min(round(share / nbytes), count)
        if least is not None:
            found[nbytes] = max(found[nbytes], least[nbytes])
    return found


def _free_bytes(pressure: Pressure, budget_bytes: int) -> int:
    """Return the part of the budget that the step leaves to parameters, with idle gradients and states away."""
    trace, idle = pressure.trace, pressure.idle
    left = idle.left(np.isin(trace.storages.kind, STATES)[idle.storage], pressure.live)
    paged = paged_sizes(trace, pressure.page_bytes)
    mine = (trace.storages.kind == StorageKind.PARAMETER) & trace.storages.persistent
    mine &= np.isin(np.arange(len(mine)), trace.accesses.storage)
    return budget_bytes - peak(left) + int(paged[mine].sum())


def _schedule(pressure: Pressure, table: _Table, cached: Counter[int], prefetches: bool) -> None:
    """Follow the sliding window round the circle until it is steady. Take the intervals that it leaves."""
    if not table.needs:
        return
    idle, n_ticks = pressure.idle, len(pressure.live)
    window = _Window(pressure, table, Counter(cached))
    count, place = len(table.needs), {row: at for at, row in enumerate(table.needs)}
    gone: set[int] = set()
    for turn in range(4):
        for row in table.releases:
            tick = int(idle.after[row]) % n_ticks
            wraps = int(idle.until[row]) % n_ticks <= tick
            last = place[row] + (turn + 1) * count + 1
            window.advance(tick + turn * n_ticks, last)
            if window.end > place[row] + (turn + wraps) * count:
                gone.discard(row)
                continue
            gone.add(row)
            window.release(int(idle.storage[row]))
            window.advance(tick + turn * n_ticks, last)
    for row in sorted(gone):
        ahead = window.ahead.get(row, 0) if prefetches else 0
        pressure.leave(row, int(idle.until[row]) - max(ahead, 0))


class _Window:
    """The rows of the table up to ``end``, counted on through the steps, whose parameters hold buffers.

    ``ahead`` says how many ticks before its need the parameter of a row last came in.
    """

    def __init__(self, pressure: Pressure, table: _Table, free: Counter[int]) -> None:
        self._pressure, self._table, self._free = pressure, table, free
        self._resident: set[int] = set()
        self.end = 0
        self.ahead: dict[int, int] = {}

    def release(self, number: int) -> None:
        """Give up a parameter's buffer. Parameters that were there at the beginning have none."""
        self._free[self._size(number)] += number in self._resident
        self._resident.discard(number)

    def advance(self, tick: int, last: int) -> None:
        """Go on to ``last`` while there are buffers. Parameters of the next operation come in even without one."""
        idle, n_ticks = self._pressure.idle, len(self._pressure.live)
        while self.end < last:
            steps, at = divmod(self.end, len(self._table.needs))
            row = self._table.needs[at]
            number = int(idle.storage[row])
            if number not in self._resident:
                due = int(idle.until[row]) % n_ticks + steps * n_ticks
                if self._free[self._size(number)] <= 0 and due > tick + 1:
                    return
                self._free[self._size(number)] -= 1
                self._resident.add(number)
                self.ahead[row] = due - (tick + 1)
            self.end += 1

    def _size(self, number: int) -> int:
        return int(self._pressure.trace.storages.nbytes[number])


def _placed(
    pressure: Pressure, table: _Table, cached: Counter[int], tiers: list[str], capacity: list[int | None]
) -> dict[int, str]:
    """Return the tier of each storage while it is away. Final places in the fast tier count as pinned memory."""
    storages = pressure.trace.storages
    states = list(dict.fromkeys(pressure.idle.storage[pressure.evictable].tolist()))
    states = [number for number in states if storages.kind[number] in STATES]
    if len(tiers) == 1 or capacity[0] is None:
        return dict.fromkeys([*table.parameters, *states], tiers[0])
    homes: dict[int, str] = {}
    left = OPTIMIZER_SHARE * capacity[0]
    for number in states:
        nbytes = int(storages.nbytes[number])
        homes[number] = tiers[0] if nbytes <= left else tiers[-1]
        left -= nbytes if homes[number] == tiers[0] else 0
    pinned = buffers(table.sizes, PINNED_SHARE * (1 - OPTIMIZER_SHARE) * capacity[0])
    fast_rows = max(cached.total() - min(SPARE_BUFFERS, cached.total() // 2), 0)
    free = Counter(cached)
    for at, number in enumerate(table.parameters):
        nbytes = int(storages.nbytes[number])
        if at < fast_rows and free[nbytes] > 0:
            free[nbytes] -= 1
            homes[number] = tiers[0]
            continue
        fast_rows = 0  # the first size without a free buffer ends the walk
        homes[number] = tiers[0] if pinned[nbytes] > 0 else tiers[-1]
        pinned[nbytes] -= 1
    return homes


def _exclusive(stays: list[Stay], pressure: Pressure, slow: list[str], exclusive: set[int]) -> list[Stay]:
    """Replace these storages' stays on slow tiers: each interval writes, clean or not, and ends when the storage is
    back."""
    fast, n_ticks = pressure.machine.tiers[0].name, len(pressure.live)
    moved = [move for move in pressure.moves(slow) if int(pressure.idle.storage[move.row]) in exclusive]
    found = [stay for stay in stays if stay.storage not in exclusive or stay.tier == fast]
    kept = {int(pressure.idle.storage[move.row]) for move in moved}
    found += [stay for stay in stays if stay.storage in exclusive - kept and stay.tier != fast]
    for move in moved:
        number = int(pressure.idle.storage[move.row])
        until = int(pressure.idle.until[move.row])
        shift = move.gone // n_ticks * n_ticks if pressure.trace.storages.persistent[number] else 0
        found.append(Stay(number, move.slow, *(at - shift for at in (move.gone, move.gone, until))))
    return found
