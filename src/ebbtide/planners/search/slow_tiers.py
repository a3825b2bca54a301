"""Chooses the slow tier for the contents of each idle interval, where there are several.

The fastest slow tier takes all, if it has room. Otherwise, the next takes as much as its links can carry without
queues. Each interval, the longest first, asks for time on both links of the slower tier. Its write may go from when it
leaves on, and its fetch up to when it is needed. The interval goes there if neither has to wait for longer than a
patience. There is one patience for writes and one for fetches, each the least that makes the rest fit. So the links
work side by side, each as much as it can, in every part of the step. At last, intervals for which the faster tier still
has room go back to it, the shortest first.

Where the slower tier's links are the bottleneck, the *thrifty* way is better. By the prices of ``choice``, it moves
those intervals there that make the room at the least time of their copies. On a tier that packs, storages count with
their packed bytes, and storages that do not shrink go past it. Left out: moving contents from one slow tier to another
(``passing`` does), and different tiers for intervals of one storage. ``exchanges`` changes what it chose.
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
from ebbtide.planners.search.timing import Clock, Headroom

_BINS = 1000
"""A link's time is booked in this many parts of a step."""
_MOST = 20
"""Patience p is 2 ** (p / 2) bins. The largest is a step."""


def reachable_tiers(machine: Machine, packing: bool = False) -> list[str]:
    """Return slow tiers with links from and to the fastest, in the machine's order. Those that pack are only on
    request."""
    fast = machine.tiers[0].name
    names = [tier.name for tier in machine.tiers[1:] if packing or not tier.packs]
    return [name for name in names if machine.link(fast, name) and machine.link(name, fast)]


def homeless_tier(machine: Machine) -> str:
    """Return the tier for storages that are never used: the slowest with a way back, or else the fastest."""
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
    """Return one of the ``tiers`` for each of the ``chosen`` intervals, the same for all of a group.

    By default, ``tiers`` are all that can be reached and do not pack. ``held`` counts the bytes at each tick that lie
    on a tier for good, where these are more than the storages never used. Raises PlanError if they have no room.
    """
    tiers = reachable_tiers(machine) if tiers is None else tiers
    if len(tiers) == 1 and machine.tier(tiers[0]).capacity_bytes is None:
        return [tiers[0]] * len(chosen)
    stored = stored_groups(idle, chosen, len(trace.ticks), trace.storages.packed_bytes)
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
class Stored:
    """Groups as columns: each needs ``paged_bytes`` of a slow tier in ticks [low, high) of a step of ``n_ticks``.

    Its chosen intervals are ``chosen[first:last]``. On a tier that packs it needs ``packed_bytes``, or may not lie
    there if that is -1.
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
        """Return the bytes that these rows need at each tick, of a tier that packs or of another."""
        return levels(self.low[rows], self.high[rows], self.sizes(packs)[rows], self.n_ticks)

    def fits(self, rows: Flags, packs: bool, spare: Ints) -> bool:
        """Say whether these rows need no more than ``spare`` at any tick."""
        return bool((self.levels(rows, packs) <= spare).all())

    def sizes(self, packs: bool) -> Ints:
        return self.packed_bytes if packs else self.paged_bytes


def stored_groups(idle: IdleTable, chosen: Ints, n_ticks: int, packed_bytes: Ints) -> Stored:
    """Return each group's span from its write, which may be early, to the last use of its replica.

    The span of a group that is never written is the whole step.
    """
    group = idle.group[chosen]
    first = np.flatnonzero(np.diff(group, prepend=-1))
    last = np.append(first[1:], len(group)) if len(first) else first
    dirty = idle.dirty[group[first]]
    low = np.where(dirty, idle.written[group[first]] + 1, 0)
    high = np.where(dirty, idle.until[chosen[last - 1]], n_ticks)
    rows = chosen[first]
    return Stored(
        group[first], first, last, low, high, idle.paged_bytes[rows], packed_bytes[idle.storage[rows]], n_ticks
    )


class _Books:
    """The time of the two links of a tier, in bins of a step, as jobs book it. ``packs``: the faster tier does."""

    def __init__(
        self, machine: Machine, tier: str, idle: IdleTable, chosen: Ints, stored: Stored, clock: Clock, packs: bool
    ) -> None:
        inward, outward = machine.ways(tier)
        self.stored, self.bin_ns, self.packs = stored, clock.step_ns / _BINS, packs
        pays, returns = idle.payers(chosen), idle.returns[chosen]
        self.out_ns = np.where(pays, outward.copy_ns(idle.nbytes[chosen]), 0.0)
        self.in_ns = np.where(returns, inward.copy_ns(idle.nbytes[chosen]), 0.0)
        self.leaves = clock.of(idle.after[chosen] + 1) / self.bin_ns
        self.needed = clock.of(idle.until[chosen]) / self.bin_ns
        lengths = clock.of(stored.high) - clock.of(stored.low)
        self.order = np.argsort(-lengths, kind="stable")

    def take(self, left: Flags, spare: Ints, others: Flags) -> Flags:
        """Return the part of ``left`` that goes to this tier, so that the rest fits in ``spare``. ``others`` go
        anyway."""
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
        """Return the part of ``left`` that goes to this tier with the fewest copies, so that the rest fits in
        ``spare``."""
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
            if headroom.has_room(low, high, sizes[at]):
                headroom.take(low, high, sizes[at])
                taken[at] = False
        return taken

    def _within(self, left: Flags, write: int, fetch: int) -> Flags:
        """Return the groups that no link would have to carry later than these patiences allow."""
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
    """Return the least patience that fits. ``known`` fits."""
    low = -1
    while known - low > 1:
        middle = (low + known) // 2
        low, known = (low, middle) if fits(middle) else (middle, known)
    return known
