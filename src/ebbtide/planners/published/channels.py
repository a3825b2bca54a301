"""Links that copies book operation by operation, for methods that hide each copy behind the operations beside it."""

import numpy as np

from ebbtide.ir.base import Floats, Ints
from ebbtide.ir.machine import Link, Machine
from ebbtide.ir.trace import Trace
from ebbtide.planners.published.pressure import Pressure

_LOOK = 64
"""So many operations of a window are looked at first."""


class Channels:
    """The bytes that each link, and each group of links, can still move beside each operation."""

    def __init__(self, trace: Trace, machine: Machine) -> None:
        seconds = trace.ticks.time_ns.astype(np.float64) / 1e9
        self.free = {link.name: seconds * link.bytes_per_s for link in machine.links}
        self.shared = {group.name: seconds * group.bytes_per_s for group in machine.groups}
        self.taken: list[tuple[Floats, Ints, Floats]] = []

    def take(self, link: Link, window: Ints, nbytes: int) -> int | None:
        """Return how many operations of the window, in its order, a copy takes. Returns None if it is not done by its
        end."""
        need, looked_at = nbytes + link.latency_ns * link.bytes_per_s / 1e9, _LOOK
        while True:  # few need the whole window
            ticks = window[:looked_at] % len(self.free[link.name])
            free = self.free[link.name][ticks]
            if link.shares is not None:
                free = np.minimum(free, self.shared[link.shares][ticks])
            summed = np.cumsum(free)
            last = int(np.searchsorted(summed, need))
            if last < len(ticks):
                break
            if looked_at >= len(window):
                return None
            looked_at *= 4
        used = free[: last + 1].copy()
        used[last] -= summed[last] - need
        for pool in [self.free[link.name], *([] if link.shares is None else [self.shared[link.shares]])]:
            pool[ticks[: last + 1]] -= used
            self.taken.append((pool, ticks[: last + 1], used))
        return last + 1

    def give_back(self) -> None:
        """Undo what was taken since the last ``keep``."""
        for pool, ticks, used in self.taken:
            pool[ticks] += used
        self.taken.clear()

    def keep(self) -> None:
        self.taken.clear()


def book(pressure: Pressure, channels: Channels, row: int, tier: str) -> bool:
    """Take an interval if the channels of the tier have time for its copies. Says whether it was taken.

    Its eviction is as early and its fetch as late as they are free.
    """
    idle, nbytes = pressure.idle, int(pressure.idle.nbytes[row])
    low, high = int(idle.after[row]) + 1, int(idle.until[row])
    inward, outward = pressure.machine.ways(tier)
    window = np.arange(low, high)
    out = channels.take(outward, window, nbytes) if idle.dirty[idle.group[row]] else 0
    if out is None:
        return False
    come = channels.take(inward, window[out:][::-1], nbytes) if idle.returns[row] else 0
    if come is None:
        channels.give_back()
        return False
    channels.keep()
    pressure.set(row, low, low + out, low + out, high - come)
    return True
