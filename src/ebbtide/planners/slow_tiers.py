"""Which slow tier the contents of an absence go to, where there are several.

The fastest of them takes all, if it has room. Otherwise a share of the bytes passes it over, the least that makes the
rest fit, and is spread evenly over the absences in the order of their lengths, so that the links work side by side.
Left out: moving contents from one slow tier to another.
"""

from dataclasses import dataclass

import numpy as np

from ebbtide.errors import PlanError
from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import levels
from ebbtide.ir.trace import Trace
from ebbtide.planners.absences import Absences
from ebbtide.planners.bound import never_used_bytes

_SHARES = 32
"""How finely the share is searched."""


def reachable_tiers(machine: Machine) -> list[str]:
    """Slow tiers with links from and to the fastest, in the machine's order."""
    fast = machine.tiers[0].name
    names = [tier.name for tier in machine.tiers[1:]]
    return [name for name in names if machine.link(fast, name) and machine.link(name, fast)]


def homeless_tier(machine: Machine) -> str:
    """Where what is never used lies: the slowest tier with a way back, or the fastest if there is no other."""
    return [machine.tiers[0].name, *reachable_tiers(machine)][-1]


def assign_tiers(trace: Trace, machine: Machine, absences: Absences, chosen: Ints) -> list[str]:
    """A tier for each of the ``chosen`` absences, the same for all of a storage. PlanError if they have no room."""
    tiers = reachable_tiers(machine)
    if len(tiers) == 1 and machine.tier(tiers[0]).capacity_bytes is None:
        return [tiers[0]] * len(chosen)
    spans = _spans(absences, chosen, len(trace.ticks))
    held = dict.fromkeys(tiers, 0)
    held[homeless_tier(machine)] = never_used_bytes(trace)
    home: dict[int, str] = {}
    for tier in tiers:
        capacity = machine.tier(tier).capacity_bytes
        left = sorted(set(spans.storage.tolist()) - home.keys(), key=lambda number: (-spans.length[number], number))
        if capacity is None:
            home |= dict.fromkeys(left, tier)
            break
        low, high = -1, _SHARES  # a share of ``high`` passes all over, so that what is left fits
        while high - low > 1:
            middle = (low + high) // 2
            stays = _not_passed_over(left, spans, middle / _SHARES)
            fits = spans.peak(stays, len(trace.ticks)) + held[tier] <= capacity
            low, high = (low, middle) if fits else (middle, high)
        home |= dict.fromkeys(_not_passed_over(left, spans, high / _SHARES), tier)
    if home.keys() != set(spans.storage.tolist()):
        raise PlanError(("the slow tiers have no room for what has to leave the fast one",))
    return [home[number] for number in absences.storage[chosen].tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Columns: ``storage`` needs ``room`` bytes of a slow tier in ticks [low, high); of each, ``length`` is the sum."""

    storage: Ints
    low: Ints
    high: Ints
    room: Ints
    length: dict[int, int]
    room_of: dict[int, int]

    def peak(self, storages: list[int], n_ticks: int) -> int:
        """The most bytes that these storages need at one tick."""
        rows = np.isin(self.storage, storages)
        return int(levels(self.low[rows], self.high[rows], self.room[rows], n_ticks).max())


def _spans(absences: Absences, chosen: Ints, n_ticks: int) -> _Spans:
    """From the write of each group, which may be early, to the last use of its replica; for ever if never written."""
    group = absences.group[chosen]
    first = np.flatnonzero(np.diff(group, prepend=-1))
    last = np.append(first[1:], len(group)) - 1 if len(first) else first
    storage, dirty = absences.storage[chosen[first]], absences.dirty[group[first]]
    low = np.where(dirty, absences.written[group[first]] + 1, 0)
    high = np.where(dirty, absences.until[chosen[last]], n_ticks)
    room, length = absences.room[chosen[first]], dict[int, int]()
    for number, ticks in zip(storage.tolist(), (high - low).tolist(), strict=True):
        length[number] = length.get(number, 0) + ticks
    return _Spans(storage, low, high, room, length, dict(zip(storage.tolist(), room.tolist(), strict=True)))


def _not_passed_over(order: list[int], spans: _Spans, share: float) -> list[int]:
    """What remains of ``order`` when ``share`` of its bytes, spread evenly, has been passed over."""
    seen = passed = 0
    remaining = []
    for number in order:
        seen += spans.room_of[number]
        if passed + spans.room_of[number] <= share * seen:
            passed += spans.room_of[number]
        else:
            remaining.append(number)
    return remaining
