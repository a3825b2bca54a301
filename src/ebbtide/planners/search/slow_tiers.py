"""Which slow tier the contents of an idle interval go to, where there are several.

The fastest of them takes all, if it has room. Otherwise the next takes what its links can carry without queues: each
interval, the longest first, asks for time on both links of the slower tier, for its write from when it leaves on and
for its fetch up to when it is needed, and goes there if neither has to wait for longer than a patience. The least
patience is used that makes the rest fit, one for writes and one for fetches. So the links work side by side, each as
much as it can, in every part of the step. What the faster tier still has room for goes back to it, the shortest first.
Where the slower tier's links are what binds, the *thrifty* way is better: that goes there which makes the room at the
least time of its copies, by the prices of ``choice``.
On a tier that packs, storages count with what they shrink to, and what does not shrink goes past it.
Left out: moving contents from one slow tier to another, and one interval of a storage to another tier than the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import ebbtide._planning as _planning
from ebbtide.errors import PlanError
from ebbtide.ir.base import Flags, Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import levels
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of
from ebbtide.planners.search.bound import never_used_bytes
from ebbtide.planners.search.choice import Demand, choose_rows
from ebbtide.planners.search.idle_table import IdleTable
from ebbtide.planners.search.timing import Clock, Headroom, copy_ns

_BINS = 1000
"""A link's time is booked in this many parts of a step."""
_MOST = 20
"""Patience p is 2 ** (p / 2) of them; the most is a step."""


def reachable_tiers(machine: Machine, packing: bool = False) -> list[str]:
    """Slow tiers with links from and to the fastest, in the machine's order; those that pack only where asked for."""
    fast = machine.tiers[0].name
    names = [tier.name for tier in machine.tiers[1:] if packing or not tier.packs]
    return [name for name in names if machine.link(fast, name) and machine.link(name, fast)]


def homeless_tier(machine: Machine) -> str:
    """Where what is never used lies: the slowest tier with a way back, or the fastest if there is no other."""
    return [machine.tiers[0].name, *reachable_tiers(machine)][-1]


def assign_tiers(
    trace: Trace,
    machine: Machine,
    idle: IdleTable,
    chosen: Ints,
    clock: Clock,
    tiers: Sequence[str] | None = None,
    held: Mapping[str, Ints] | None = None,
    thrifty: bool = False,
) -> list[str]:
    """One of the ``tiers`` (None: all that can be reached and do not pack) for each of the ``chosen`` intervals, the
    same for all of a group. ``held`` has the bytes at each tick of what lies on a tier for good, where that is more
    than what is never used. PlanError if they have no room."""
    tiers = reachable_tiers(machine) if tiers is None else tiers
    if len(tiers) == 1 and machine.tier(tiers[0]).capacity_bytes is None:
        return [tiers[0]] * len(chosen)
    stored = _stored(idle, chosen, len(trace.ticks), trace.storages.packed_bytes)
    if held is None:
        held = {homeless_tier(machine): np.full(len(trace.ticks), never_used_bytes(trace, page_size_of(machine)))}
    nothing: Ints = np.zeros(len(trace.ticks), dtype=np.int64)
    home = np.zeros(len(stored.group), dtype=np.int64)  # the place of a tier in ``tiers``
    left = np.ones(len(stored.group), dtype=bool)
    for place, tier in enumerate(tiers):
        capacity, packs = machine.tier(tier).capacity_bytes, machine.tier(tier).packs
        here = left & (stored.packed_bytes >= 0) if packs else left
        left = left & ~here
        spare = None if capacity is None else capacity - held.get(tier, nothing)
        is_full = spare is not None and not stored.fits(here, packs, spare)
        if not is_full and not left.any():
            break
        if place + 1 == len(tiers):
            raise PlanError(("the slow tiers have no room for what has to leave the fast one",))
        if spare is not None and is_full:
            books = _Books(machine, tiers[place + 1], idle, chosen, stored, clock, packs)
            left = left | (books.least(here, spare) if thrifty else books.take(here, spare, left))
        home[left] = place + 1
    of_group = dict(zip(stored.group.tolist(), home.tolist(), strict=True))
    return [tiers[of_group[group]] for group in idle.group[chosen].tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """Columns: a group of intervals needs ``paged_bytes`` of a slow tier in ticks [low, high) of a step of ``n_ticks``.

    Its chosen intervals are ``chosen[first:last]``. ``packed_bytes`` is what it needs of a tier that packs, -1 where it
    may not lie there.
    """

    group: Ints
    first: Ints
    last: Ints
    low: Ints
    high: Ints
    paged_bytes: Ints
    packed_bytes: Ints
    n_ticks: int

    def levels(self, rows: Flags, packs: bool) -> Ints:
        """Bytes that these need at each tick, of a tier that packs or of another."""
        return levels(self.low[rows], self.high[rows], self.sizes(packs)[rows], self.n_ticks)

    def fits(self, rows: Flags, packs: bool, spare: Ints) -> bool:
        """Whether these need no more than ``spare`` at any tick."""
        return bool((self.levels(rows, packs) <= spare).all())

    def sizes(self, packs: bool) -> Ints:
        return self.packed_bytes if packs else self.paged_bytes


def _stored(idle: IdleTable, chosen: Ints, n_ticks: int, packed_bytes: Ints) -> _Stored:
    """From the write of each group, which may be early, to the last use of its replica; for ever if never written."""
    group = idle.group[chosen]
    first = np.flatnonzero(np.diff(group, prepend=-1))
    last = np.append(first[1:], len(group)) if len(first) else first
    dirty = idle.dirty[group[first]]
    low = np.where(dirty, idle.written[group[first]] + 1, 0)
    high = np.where(dirty, idle.until[chosen[last - 1]], n_ticks)
    rows = chosen[first]
    return _Stored(
        group[first], first, last, low, high, idle.paged_bytes[rows], packed_bytes[idle.storage[rows]], n_ticks
    )


class _Books:
    """The time of the two links of a tier, in bins of a step, as jobs book it. ``packs``: the faster one does."""

    def __init__(
        self, machine: Machine, tier: str, idle: IdleTable, chosen: Ints, stored: _Stored, clock: Clock, packs: bool
    ) -> None:
        fast = machine.tiers[0].name
        inward, outward = machine.link(tier, fast), machine.link(fast, tier)
        assert inward is not None
        assert outward is not None
        self.stored, self.bin_ns, self.packs = stored, clock.step_ns / _BINS, packs
        pays, returns = idle.payers(chosen), idle.returns[chosen]
        self.out_ns = np.where(pays, copy_ns(outward, idle.nbytes[chosen], 1.0), 0.0)
        self.in_ns = np.where(returns, copy_ns(inward, idle.nbytes[chosen], 1.0), 0.0)
        self.leaves = clock.of(idle.after[chosen] + 1) / self.bin_ns
        self.needed = clock.of(idle.until[chosen]) / self.bin_ns
        lengths = clock.of(stored.high) - clock.of(stored.low)
        self.order = np.argsort(-lengths, kind="stable")

    def take(self, left: Flags, spare: Ints, others: Flags) -> Flags:
        """Of ``left``, what goes to this tier, so that the rest fits in ``spare``; ``others`` go anyway."""
        self.others = others

        def fits(write: int, fetch: int) -> bool:
            return self.stored.fits(left & ~self._within(left, write, fetch), self.packs, spare)

        taken = left
        if fits(_MOST, _MOST):
            both = _least(lambda patience: fits(patience, patience))
            write = _least(lambda patience: fits(patience, both), both)
            fetch = _least(lambda patience: fits(write, patience), both)
            taken = self._within(left, write, fetch)
        return self._give_back(left, taken, spare)

    def least(self, left: Flags, spare: Ints) -> Flags:
        """Of ``left``, what goes to this tier so that the rest fits in ``spare``, with as little to copy as can be."""
        stored, rows = self.stored, np.flatnonzero(left)
        spent = np.concatenate(([0.0], np.cumsum(self.in_ns + self.out_ns)))
        demand = Demand(stored.low[rows], stored.high[rows], stored.levels(left, self.packs) - spare)
        sizes, cost = stored.sizes(self.packs)[rows], (spent[stored.last] - spent[stored.first])[rows]
        chosen = choose_rows(demand, demand, sizes, cost, np.arange(len(rows)), np.zeros(len(rows)))
        taken = np.zeros(len(left), dtype=bool)
        taken[rows] = True if chosen is None else chosen
        return taken

    def _give_back(self, left: Flags, taken: Flags, spare: Ints) -> Flags:
        stored, taken = self.stored, taken.copy()
        rest = left & ~taken
        sizes = stored.sizes(self.packs).tolist()
        headroom = Headroom(spare - stored.levels(rest, self.packs))
        for at in self.order[taken[self.order]][::-1].tolist():
            low, high = int(stored.low[at]), int(stored.high[at])
            if headroom.earliest(low, high, sizes[at]) == low:
                headroom.take(low, high, sizes[at])
                taken[at] = False
        return taken

    def _within(self, left: Flags, write: int, fetch: int) -> Flags:
        """What no link would have to carry later than these patiences after it could."""
        taken = _planning.carried(
            first=self.stored.first,
            last=self.stored.last,
            leaves=self.leaves,
            needed=self.needed,
            out_ns=self.out_ns,
            in_ns=self.in_ns,
            bin_ns=self.bin_ns,
            n_bins=_BINS,
            order=self.order[left[self.order]],
            others=self.others,
            write_bins=2.0 ** (write / 2),
            fetch_bins=2.0 ** (fetch / 2),
        )
        return taken.astype(bool)


def _least(fits: Callable[[int], bool], known: int = _MOST) -> int:
    """The least patience that fits; ``known`` does."""
    low = -1
    while known - low > 1:
        middle = (low + known) // 2
        low, known = (low, middle) if fits(middle) else (middle, known)
    return known
