"""Times at which offloading engines that work module by module release storages and bring them back."""

import numpy as np

from ebbtide.ir.base import Flags, Ints
from ebbtide.ir.trace import Trace
from ebbtide.planners.search.idle_table import IdleTable


def leaves_module(trace: Trace, idle: IdleTable) -> Flags:
    """Return the intervals in which another module runs. Engines that work module by module release nothing before."""
    names, module = np.unique(trace.ticks.module, return_inverse=True)
    n_ticks = len(module)
    if len(names) == 1:
        return np.ones(len(idle), dtype=bool)
    changes = np.concatenate(([0], np.cumsum(np.tile(module != np.roll(module, 1), 2))))
    low = (idle.after + 1) % n_ticks
    high = low + idle.until - idle.after - 1
    result: Flags = changes[high] > changes[low]
    return result


def ahead(needs: Ints, until: int, depth: int, n_ticks: int) -> int:
    """Return the tick of the need that is ``depth`` before the one at ``until``, on the circle of a step."""
    steps, tick = divmod(until, n_ticks)
    place = int(np.searchsorted(needs, tick)) - depth
    turns, place = divmod(place, len(needs))
    return int(needs[place]) + (steps + turns) * n_ticks
