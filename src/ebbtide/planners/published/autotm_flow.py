"""AutoTM's tensor flow network: where a storage may lie from one operation to the next, between two tiers.

After AutoTM (ASPLOS 2020). *Gadgets* are the operations at which a storage may change its tier. At each, it is dirty
(in the fast tier, with contents that are nowhere else), clean (fast with a replica in the slow tier), or slow. A path
through these is its life. READ goes from slow to fast before the operation, and WRITE from dirty to slow after it. A
clean storage is dropped for free. A slow one may be used in place where the machine allows it.

Ours: storages are written more than once here, so a write in the fast tier makes a clean storage dirty. The network of
a persistent storage is a circle that starts at a write, where AutoTM keeps parameters in DRAM. A storage may also leave
after its last use, and its slow room ends with the last read of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ebbtide.ir.machine import InPlace
from ebbtide.ir.plan import Stay
from ebbtide.ir.trace import Access, Trace

REACH = 15
"""An operation up to so many positions from a user may hide a move."""


@dataclass(frozen=True, slots=True, eq=False)
class Gadgets:
    """The gadgets of one storage of ``nbytes`` in ``paged_bytes`` of pages: sorted operations ``ticks``, and their
    modes.

    ``modes`` are Access. An operation with 0 does not use the storage, which may be moved beside it (asynchronously).
    The birth counts as a write. ``end`` is the death, or for a persistent storage the first tick of the next round. On
    an ``exclusive`` machine no replica stays behind, so nothing is ever clean.
    """

    storage: int
    nbytes: int
    paged_bytes: int
    ticks: tuple[int, ...]
    modes: tuple[int, ...]
    end: int
    persistent: bool
    exclusive: bool = False

    def __len__(self) -> int:
        return len(self.ticks)

    @property
    def never_written(self) -> bool:
        return self.persistent and not self.exclusive and not any(mode & Access.WRITE for mode in self.modes)

    def after(self, at: int) -> int:
        """Return the tick of the gadget after ``at``, or the end."""
        return self.ticks[at + 1] if at + 1 < len(self) else self.end

    def following(self, at: int) -> int | None:
        """Return the gadget after ``at``: round the circle for a persistent storage, None at the end of a life."""
        return at + 1 if at + 1 < len(self) else 0 if self.persistent else None

    def may_be_slow(self, at: int, in_place: InPlace) -> bool:
        """Say whether the operation can use the storage in the slow tier."""
        mode = self.modes[at]
        return in_place.writes if mode & Access.WRITE else in_place.reads or not mode

    def users(self) -> list[int]:
        """Return the gadgets that use the storage."""
        return [at for at, mode in enumerate(self.modes) if mode]


def gadgets_of(trace: Trace, number: int, paged_bytes: int, exclusive: bool, longest: int) -> Gadgets | None:
    """Return a storage's gadgets. Returns None if it always stays in the fast tier, or is persistent and never used.

    Scratch stays, and what outlives a whole step. ``longest`` > 0 adds operations up to ``REACH`` positions after a
    user and before the next: so many of the longest on each side.
    """
    storage, n_ticks = trace.storage(number), len(trace.ticks)
    if storage.scratch or storage.death - storage.birth > n_ticks:
        return None
    rows = trace.accesses.of(number)
    uses = dict(zip(trace.accesses.tick[rows].tolist(), trace.accesses.mode[rows].tolist(), strict=True))
    end = storage.death
    if storage.persistent:
        if not uses:
            return None
        first = min((tick for tick, mode in uses.items() if mode & Access.WRITE), default=min(uses))
        uses = {tick if tick >= first else tick + n_ticks: mode for tick, mode in uses.items()}
        end = first + n_ticks
    else:
        uses[storage.birth] = uses.get(storage.birth, 0) | Access.WRITE
    users = sorted(uses)
    moves = _beside(trace, users, [*users[1:], end], longest) if longest else set()
    ticks = sorted(moves | uses.keys())
    modes = tuple(int(uses.get(tick, 0)) for tick in ticks)
    return Gadgets(number, storage.nbytes, paged_bytes, tuple(ticks), modes, end, storage.persistent, exclusive)


def _beside(trace: Trace, users: list[int], following: list[int], longest: int) -> set[int]:
    """Return the ticks beside whose operations a move could go on, between each user and the one after it."""
    n_ticks, times, found = len(trace.ticks), trace.ticks.time_ns, set[int]()
    for user, until in zip(users, following, strict=True):
        after, before = range(user + 1, min(user + REACH + 1, until)), range(max(until - REACH, user + 1), until)
        for side in (after, before):
            found |= set(sorted(side, key=lambda tick: (-times[tick % n_ticks], tick))[:longest])
    return {tick for tick in found if times[tick % n_ticks] > 0}


@dataclass(slots=True, eq=False)
class Life:
    """A path. At gadget g the storage is fast if ``fast[g]``, and then stays so up to the next if ``stay[g]``."""

    gadgets: Gadgets
    fast: list[bool]
    stay: list[bool]

    @staticmethod
    def always(gadgets: Gadgets, fast: bool) -> "Life":
        """Return a life in one tier for ever."""
        return Life(gadgets, [fast] * len(gadgets), [fast] * len(gadgets))

    def along(self, gadgets: Gadgets) -> "Life":
        """Return the same life over ``gadgets`` of the same storage, which have the same users and more moves."""
        users = dict(zip(self.gadgets.ticks, range(len(self.gadgets)), strict=True))
        fast, stay, at = list[bool](), list[bool](), 0
        for tick in gadgets.ticks:
            at = users.get(tick, at)
            fast.append(self.fast[at] if tick in users else self.stay[at])
            stay.append(self.stay[at])
        return Life(gadgets, fast, stay)

    def settle(self, in_place: InPlace) -> None:
        """Make it a path. It is fast where an operation needs that and at both ends of a stay, without idle round
        trips."""
        gadgets = self.gadgets
        for at in range(len(gadgets)):
            self.fast[at] = self.fast[at] or self.stay[at] or not gadgets.may_be_slow(at, in_place)
            following = gadgets.following(at)
            if self.stay[at] and following is not None:
                self.fast[following] = True
        for at in range(len(gadgets)):
            following = gadgets.following(at)
            touches = gadgets.after(at) == gadgets.ticks[at] + 1
            if self.fast[at] and touches and (following is None or self.fast[following]):
                self.stay[at] = True
        for at, mode in enumerate(gadgets.modes):
            dies = gadgets.following(at) is None and gadgets.after(at) == gadgets.ticks[at] + 1
            if not mode and self.reads(at) and (dies or not self.stay[at]):  # in and out beside one operation
                self.fast[at] = self.stay[at] = False

    def leave(self, at: int, until: int) -> None:
        """Be away between the users ``at`` and ``until``, with only moves between them."""
        size = len(self.gadgets)
        here = at
        while True:
            self.stay[here] = False
            here = (here + 1) % size
            if here == until % size:
                break
            self.fast[here] = False

    def levels(self) -> Iterator[tuple[int, int]]:
        """Return the intervals of ticks in which the storage has room in the fast tier."""
        for at, tick in enumerate(self.gadgets.ticks):
            if self.fast[at]:
                yield tick, self.gadgets.after(at) if self.stay[at] else tick + 1

    def reads(self, at: int) -> bool:
        """Say whether the storage comes in for gadget ``at``. A birth comes from nowhere."""
        before = self.stay[at - 1] if at or self.gadgets.persistent else True
        return self.fast[at] and not before

    def edges(self) -> Iterator[tuple[int, str]]:
        """Return each gadget and edge of the path: stay_dirty, stay_clean, write, drop, slow or read; see
        ``autotm``."""
        clean = self.gadgets.never_written
        for at, mode in enumerate(self.gadgets.modes):
            if self.reads(at):
                yield at, "read"
                clean = True
            if mode & Access.WRITE or self.gadgets.exclusive:
                clean = False
            if not self.fast[at]:
                yield at, "slow"
            elif self.stay[at]:
                yield at, "stay_clean" if clean else "stay_dirty"
            else:
                yield at, "drop" if clean else "write"
                clean = True


def stays_of_life(life: Life, fast: str, slow: str, n_ticks: int) -> list[Stay]:
    """Return the plan's stays for a path. Moves at a user are between two ticks; others last for their operation."""
    gadgets = life.gadgets
    if all(life.fast) and all(life.stay):
        start, stop = (0, n_ticks) if gadgets.persistent else (gadgets.ticks[0], gadgets.end)
        return [Stay(gadgets.storage, fast, start, start, stop)]
    rows = [(fast, *row) for row in _fast_rows(life)] + [
        (slow, *row) for row in _joined(list(_slow_rows(life, n_ticks)), n_ticks)
    ]
    found = []
    for tier, start, valid_from, stop in rows:
        shift = start // n_ticks * n_ticks if gadgets.persistent else 0
        found.append(Stay(gadgets.storage, tier, start - shift, valid_from - shift, stop - shift))
    return found


def _fast_rows(life: Life) -> Iterator[tuple[int, int, int]]:
    """Return start, valid_from and stop of each time in the fast tier."""
    gadgets, size = life.gadgets, len(life.gadgets)
    for at in range(size):
        if not life.fast[at] or not (life.reads(at) or (at == 0 and not gadgets.persistent)):
            continue
        start = gadgets.ticks[at]
        valid_from = start if gadgets.modes[at] else start + 1
        last, turns = at, 0
        while life.stay[last]:
            following = gadgets.following(last)
            if following is None:
                break
            turns += following <= last
            last = following
        stop = gadgets.after(last) if life.stay[last] else gadgets.ticks[last] + 1
        yield start, valid_from, stop + turns * (gadgets.end - gadgets.ticks[0])


def _slow_rows(life: Life, n_ticks: int) -> Iterator[tuple[int, int, int]]:
    """Return rows from each write-out, birth or write in place to the last tick that needs this replica."""
    gadgets = life.gadgets
    if gadgets.never_written or (gadgets.persistent and not any(life.fast)):
        yield 0, 0, n_ticks
        return
    start: tuple[int, int] | None = None
    stop = 0
    for at, edge in life.edges():
        tick, beside = gadgets.ticks[at], not gadgets.modes[at]
        if edge == "read":
            stop = tick + 1 if beside else tick
            if (gadgets.modes[at] & Access.WRITE or gadgets.exclusive) and start is not None:
                yield *start, stop
                start = None
        elif edge == "write":
            if start is not None:
                yield *start, stop
            start = (tick, tick + 1) if beside else (tick + 1, tick + 1)
            stop = gadgets.after(at)
        elif edge == "slow":
            if start is None:
                start = (tick, tick)
            stop = gadgets.after(at)
        elif edge == "drop":
            stop = gadgets.after(at)
        elif gadgets.modes[at] & Access.WRITE and start is not None:  # clean becomes dirty
            yield *start, stop
            start = None
    if start is not None:
        yield *start, stop


def _joined(rows: list[tuple[int, int, int]], n_ticks: int) -> list[tuple[int, int, int]]:
    """Join a copy that ends with the round to the replica with which the next round begins."""
    if not rows or rows[-1][1] < rows[-1][2]:
        return rows
    (_, _, stop), *between, (start, valid_from, _) = rows
    return [*between, (start, valid_from, stop + n_ticks)]


def gaps(gadgets: Gadgets) -> Iterator[tuple[int, int]]:
    """Return pairs of users (gadgets) that follow each other with ticks between. The end of a life is
    ``len(gadgets)``."""
    users = gadgets.users()
    for at, until in zip(users, [*users[1:], len(gadgets)], strict=True):
        stop = gadgets.ticks[until] if until < len(gadgets) else gadgets.end
        if stop > gadgets.ticks[at] + 1:
            yield at, until
