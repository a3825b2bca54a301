"""Chooses the idle intervals to take so that every tick fits: a covering problem, solved by prices and a greedy repair.

Each tick t lacks ``deficit[t]`` bytes of room. Interval i gives ``paged_bytes[i]`` bytes to the ticks [low, high) of
its relief. It costs ``cost[i]``, and ``write_cost`` once for its group.

Prices per byte and tick tell intervals that are worth their cost from the others. They are Lagrange multipliers of the
ticks, raised by Polyak's subgradient steps. At any prices, the Lagrangian's value is a lower bound on the cost of every
choice, whole or fractional. What the prices leave uncovered is covered by the best ratio of cost to bytes covered.
Superfluous intervals are then taken back, the dearest first.

Caching with known requests is a covering of this kind (Belady is its case of equal sizes and costs). Left out: an exact
solver. The gap to the bound was a few per cent where it was measured.
"""

from dataclasses import dataclass

import numpy as np

import ebbtide._planning as _planning
from ebbtide.ir.base import Flags, Floats, Ints
from ebbtide.planners.search.idle_table import IdleTable


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """The demand on a choice: relief windows [low, high) of the intervals, and each tick's deficit.

    A row with low >= high gives no relief.
    """

    low: Ints
    high: Ints
    deficit: Ints

    @property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Return the windows with ``low`` in the step."""
        low = self.low % len(self.deficit)
        return low, low + np.maximum(self.high - self.low, 0), self.deficit


def least_cost(idle: IdleTable, demand: Demand, cost: Floats, write_cost: Floats, anew: Floats | None = None) -> float:
    """Return a bound that no choice's cost is below: the value of the best prices (``native/search/prices.cpp``).

    ``write_cost`` is per group, 0 for clean ones. ``anew`` is what it costs to make an interval's contents anew instead
    of moving them, infinite where that cannot be.
    """
    low, high, deficit = demand.columns
    _, bound = _planning.find_prices(
        low=low,
        high=high,
        paged=idle.paged_bytes,
        cost=cost,
        group=idle.group,
        write_cost=write_cost,
        deficit=deficit,
        anew=np.zeros(0) if anew is None else anew,
    )
    return bound


def choose(idle: IdleTable, must: Demand, wish: Demand, cost: Floats, write_cost: Floats) -> Flags | None:
    """Choose intervals that cover the deficit of ``must``, and as much as possible of that of ``wish``.

    Returns None if ``must`` cannot be covered. ``wish`` has shorter reliefs and more to cover: room for copies on their
    way. The work is done in ``native/search/choice.cpp``.
    """
    return choose_rows(must, wish, idle.paged_bytes, cost, idle.group, write_cost)


def choose_rows(must: Demand, wish: Demand, paged: Ints, cost: Floats, group: Ints, write_cost: Floats) -> Flags | None:
    """Choose in the same way from any rows that give so many bytes of room."""
    found = _planning.choose(
        must=must.columns, wish=wish.columns, paged=paged, cost=cost, group=group, write_cost=write_cost
    )
    return None if found is None else found.astype(bool)
