"""A layout of the fast tier, for methods that need each storage at one address.

It is greedy by size: the largest first, each at the lowest address that is free throughout its stay.
"""

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import paged_sizes
from ebbtide.ir.plan import Stay
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of


def lay_out(trace: Trace, stays: list[Stay], machine: Machine) -> tuple[list[Stay], Ints]:
    """Return the stays on the fast tier and their addresses. No two that overlap in time overlap in addresses."""
    n_ticks, paged, tier = len(trace.ticks), paged_sizes(trace, page_size_of(machine)).tolist(), machine.tiers[0].name
    mine = sorted((stay for stay in stays if stay.tier == tier), key=lambda stay: (-paged[stay.storage], stay.start))
    start = np.array([stay.start for stay in mine], dtype=np.int64)
    stop = np.array([stay.stop for stay in mine], dtype=np.int64)
    size = np.array([paged[stay.storage] for stay in mine], dtype=np.int64)
    address = np.zeros(len(mine), dtype=np.int64)
    for at in range(len(mine)):
        meets = np.zeros(at, dtype=bool)
        for shift in (-2 * n_ticks, -n_ticks, 0, n_ticks, 2 * n_ticks):
            meets |= (start[:at] + shift < stop[at]) & (start[at] < stop[:at] + shift)
        rows = np.flatnonzero(meets)
        place = 0
        for row in rows[np.argsort(address[rows], kind="stable")].tolist():
            if address[row] >= place + size[at]:
                break
            place = max(place, int(address[row] + size[row]))
        address[at] = place
    return mine, address
