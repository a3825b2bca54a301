"""Which idle intervals to take, so that every tick fits: a covering problem, solved by prices and a greedy repair.

Each tick t lacks ``deficit[t]`` bytes of room; interval i gives ``paged_bytes[i]`` bytes to the ticks [low, high) of
its relief and costs ``cost[i]``, with ``write_cost`` once for its group. Prices per byte and tick (Lagrange multipliers
of the ticks, raised by Polyak's subgradient steps) tell intervals that are worth it from those that are not; at any
prices the Lagrangian's value is a lower bound on the cost of every choice, whole or fractional. What the prices leave
uncovered is covered by the best ratio of cost to bytes covered, and what is then superfluous is taken back, dearest
first.

Caching with known requests is a covering of this kind (Belady is its case of equal sizes and costs). Left out: an
exact solver; the gap to the bound was a few per cent where it was measured.
"""

import heapq
from dataclasses import dataclass

import numpy as np

import ebbtide._decider as _decider
from ebbtide.ir.base import Ints
from ebbtide.ir.occupancy import levels
from ebbtide.planners.search.idle_table import Flags, Floats, IdleTable

_RAISES = 60
_RAISE_STEPS = (1.01, 1.1)


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """``of_tick``: cost per byte of room at each tick. ``bound``: no choice that covers the deficits costs less."""

    of_tick: Floats
    bound: float


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What a choice is asked for: relief windows [low, high) of the intervals, and each tick's deficit.

    A row with low >= high gives no relief.
    """

    low: Ints
    high: Ints
    deficit: Ints

    def relief(self, idle: IdleTable, chosen: Flags) -> Ints:
        """Bytes of room that the chosen intervals give to each tick."""
        rows = np.flatnonzero(chosen & (self.high > self.low))
        return levels(self.low[rows], self.high[rows], idle.paged_bytes[rows], len(self.deficit))


def find_prices(idle: IdleTable, demand: Demand, cost: Floats, write_cost: Floats, rounds: int = 200) -> Prices:
    """Polyak steps towards the best prices, in ``native/search/prices.cpp``. ``write_cost`` is per group, 0 for clean
    ones."""
    low = demand.low % len(demand.deficit)
    of_tick, bound = _decider.find_prices(
        low=low,
        high=low + np.maximum(demand.high - demand.low, 0),
        paged=idle.paged_bytes,
        cost=cost,
        group=idle.group,
        write_cost=write_cost,
        deficit=demand.deficit,
        rounds=rounds,
    )
    return Prices(of_tick, bound)


class Cover:
    """A choice under construction. ``left`` is what each tick of one demand still lacks (below 0: to spare)."""

    def __init__(self, idle: IdleTable, demands: tuple[Demand, ...], cost: Floats, write_cost: Floats) -> None:
        self.idle, self.demands = idle, demands
        self.cost, self.write_cost = cost, write_cost
        self.n_ticks = len(demands[0].deficit)
        self.chosen = np.zeros(len(idle), dtype=bool)
        self.in_group = np.zeros(len(idle.dirty), dtype=np.int64)
        self.left = [np.array(demand.deficit) for demand in demands]

    def start_with(self, rows: Ints) -> None:
        """Takes many at once."""
        self.chosen[rows] = True
        self.in_group += np.bincount(self.idle.group[rows], minlength=len(self.in_group))
        for demand, left in zip(self.demands, self.left, strict=True):
            left -= demand.relief(self.idle, self.chosen)

    def price_of(self, row: int) -> float:
        """What choosing an interval adds to the cost."""
        group = self.idle.group[row]
        return float(self.cost[row]) + (0.0 if self.in_group[group] else float(self.write_cost[group]))

    def total(self) -> float:
        """What the choice costs."""
        return float(self.cost[self.chosen].sum() + self.write_cost[self.in_group > 0].sum())

    def set(self, row: int, chosen: bool) -> None:
        sign = 1 if chosen else -1
        self.chosen[row] = chosen
        self.in_group[self.idle.group[row]] += sign
        for demand, left in zip(self.demands, self.left, strict=True):
            for part in self._window(demand, row):
                left[part] -= sign * self.idle.paged_bytes[row]

    def _window(self, demand: Demand, row: int) -> tuple[slice, ...]:
        low, high = int(demand.low[row]), int(demand.high[row])
        if high <= low:
            return ()
        low, high = low % self.n_ticks, low % self.n_ticks + high - low
        if high <= self.n_ticks:
            return (slice(low, high),)
        return (slice(low, self.n_ticks), slice(0, high - self.n_ticks))

    def covered_by(self, which: int, row: int) -> float:
        """Bytes x ticks that an interval would cover of what one demand lacks."""
        paged, left = int(self.idle.paged_bytes[row]), self.left[which]
        return float(sum(int(np.clip(left[part], 0, paged).sum()) for part in self._window(self.demands[which], row)))

    def repair(self, which: int, weight: Floats | None = None) -> bool:
        """Adds the interval with the least cost per byte covered until one demand is met; False if it cannot be."""
        left = self.left[which]
        if left.max(initial=0) <= 0:
            return True
        demand = self.demands[which]
        lacks = np.concatenate(([0], np.cumsum(np.tile(left > 0, 2))))
        low = demand.low % self.n_ticks
        high = low + np.maximum(demand.high - demand.low, 0)
        rows = np.flatnonzero(~self.chosen & (lacks[high] > lacks[low]))
        heap = [(self._ratio(which, int(row)), int(row)) for row in rows]
        heapq.heapify(heap)
        while heap:
            ratio, row = heapq.heappop(heap)
            now = self._ratio(which, row)
            if now == np.inf:
                continue
            if heap and now > heap[0][0] and now > ratio:
                heapq.heappush(heap, (now, row))
                continue
            self.set(row, True)
            if left.max() <= 0:
                return True
        return bool(left.max() <= 0)

    def _ratio(self, which: int, row: int) -> float:
        covered = self.covered_by(which, row)
        return (self.price_of(row) + 1.0) / covered if covered else np.inf

    def take_back(self) -> None:
        """Gives up what no demand needs, the dearest first."""
        rows = np.flatnonzero(self.chosen)
        dear = self.cost + self.write_cost[self.idle.group]
        for row in sorted(rows.tolist(), key=lambda row: (-dear[row], row)):
            paged = int(self.idle.paged_bytes[row])
            spare = all(
                int(left[part].max()) <= -paged
                for demand, left in zip(self.demands, self.left, strict=True)
                for part in self._window(demand, row)
            )
            if spare:
                self.set(row, False)


def choose(
    idle: IdleTable, must: Demand, wish: Demand, cost: Floats, write_cost: Floats, rounds: int = 200
) -> Flags | None:
    """Intervals that cover what ``must`` lacks, and what ``wish`` lacks as far as that can be; None if ``must`` cannot.

    ``wish`` is the same with shorter reliefs and more to cover: room for copies on their way.
    """
    price = find_prices(idle, wish, cost, write_cost, rounds).of_tick
    found: list[tuple[float, Flags]] = []
    for step in _RAISE_STEPS:
        cover = Cover(idle, (must, wish), cost, write_cost)
        cover.start_with(_raised(idle, wish, price, cost, write_cost, step))
        cover.repair(1)
        if cover.repair(0):
            cover.take_back()
            found.append((cover.total(), cover.chosen))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _raised(idle: IdleTable, demand: Demand, price: Floats, cost: Floats, write_cost: Floats, step: float) -> Ints:
    """What is worth it when the prices of uncovered ticks have been raised, a little at a time, until few are left."""
    total = float(cost.sum() + write_cost.sum())
    least = total / max(float(np.maximum(demand.deficit, 0).sum()), 1.0) * 1e-2
    for _ in range(_RAISES):
        rows = _worth_it(idle, demand, price, cost, write_cost)
        chosen = np.zeros(len(idle), dtype=bool)
        chosen[rows] = True
        short = demand.deficit > demand.relief(idle, chosen)
        if not short.any():
            break
        price = np.where(short, np.maximum(price * step, least), price)
    return rows


def _worth_it(idle: IdleTable, demand: Demand, price: Floats, cost: Floats, write_cost: Floats) -> Ints:
    """The intervals that save more than they cost at these prices."""
    n_ticks = len(demand.deficit)
    summed = np.concatenate(([0.0], np.cumsum(np.tile(price, 2))))
    low = demand.low % n_ticks
    high = low + np.maximum(demand.high - demand.low, 0)
    gain = idle.paged_bytes * (summed[high] - summed[low]) - cost
    group_gain = np.bincount(idle.group, np.maximum(gain, 0.0), len(write_cost)) - write_cost
    rows: Ints = np.flatnonzero((gain > 0) & (group_gain[idle.group] > 0))
    return rows
