"""Times at which offloading engines that work module by module release storages and bring them back."""

import numpy as np

from ebbtide.ir.base import Flags, Ints
from ebbtide.ir.trace import Trace
from ebbtide.planners.published.pressure import Pressure
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


def offload(pressure: Pressure, rows: Ints, depth: int) -> None:
    """Send away what these intervals are of, except for its use. It comes back ``depth`` uses ahead."""
    idle, n_ticks = pressure.idle, len(pressure.live)
    needs = np.sort(idle.until[rows[idle.returns[rows]]] % n_ticks)
    for row in rows.tolist():
        until = int(idle.until[row])
        pressure.leave(row, _ahead(needs, until, depth, n_ticks) if idle.returns[row] else until)


def _ahead(needs: Ints, until: int, depth: int, n_ticks: int) -> int:
    """Return the tick of the need that is ``depth`` before the one at ``until``, on the circle of a step."""
    steps, tick = divmod(until, n_ticks)
    place = int(np.searchsorted(needs, tick)) - depth
    turns, place = divmod(place, len(needs))
    return int(needs[place]) + (steps + turns) * n_ticks
