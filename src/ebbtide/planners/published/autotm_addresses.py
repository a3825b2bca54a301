"""A layout of the fast tier, for methods that need each storage at one address, and new limits if it is too high.

The layout is greedy by size: the largest first, each at the lowest address that is free throughout its stay. The rule
for limits is AutoTM's (``defrag.jl``). Operations near the users of a storage that sticks out get less room in the next
solution. Left out: workspaces with addresses of their own (scratch is laid out like the rest).
"""

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import paged_sizes
from ebbtide.ir.plan import Stay
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of

_NEAR = 10
"""Operations up to so many positions from a user get less room."""
_LEAST = 0.9
"""A limit is lowered to no less than this part of itself at a time."""


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


def lower_limits(trace: Trace, stays: list[Stay], machine: Machine, budget_bytes: int, limit: Ints) -> Ints | None:
    """Return the limits for the next solution, or None if the layout fits the budget."""
    mine, address = lay_out(trace, stays, machine)
    paged = paged_sizes(trace, page_size_of(machine)).tolist()
    top = {stay: int(place) + paged[stay.storage] for stay, place in zip(mine, address, strict=True)}
    worst = max(top.values(), default=0)
    if worst <= budget_bytes:
        return None
    near = np.zeros(len(limit), dtype=bool)
    for stay, reached in top.items():
        if reached > budget_bytes:
            users = trace.accesses.tick[trace.accesses.of(stay.storage)]
            for user in {stay.start, *users.tolist()}:
                near[np.arange(user - _NEAR, user + _NEAR + 1) % len(limit)] = True
    factor = max(_LEAST, 1 - (worst / budget_bytes - 1) / 2)
    return np.where(near, (limit * factor).astype(np.int64), limit)
