"""Online policies: who leaves when room is short, where births go, and what is started beside, seen from one moment.

They know the past, except for ``lru-next-use`` (Belady, 1966), which knows when each storage is used next. All but
those that work in place bring every operand to the first tier on demand, as a hardware-managed cache would.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ebbtide.simulate.pieces import NEVER

if TYPE_CHECKING:
    from ebbtide.simulate.engine import Run


class Policy:
    """The base of all: ``lru-next-use`` without a name, the safety net under a plan.

    ``uses_in_place`` says whether operations may use a slower tier that allows it, instead of a fetch.
    """

    uses_in_place = False

    def begins(self, run: "Run") -> None:
        """Before the first step: keys of what nobody has used yet."""
        for piece, first in enumerate(run.pieces.first_use):
            run.order.key[piece] = -float(first)

    def key(self, run: "Run", piece: int, until_next_use: int) -> float:
        """Of a piece that the tick just used; the smallest leaves first."""
        return -float(run.at + until_next_use)

    def home(self, run: "Run", piece: int) -> int:
        """The rank of the tier on which a piece is born, or is at the beginning."""
        return 0

    def before(self, run: "Run", tick: int) -> None:
        """When compute reaches a tick."""

    def after(self, run: "Run", tick: int) -> None:
        """When its operation has ended."""


class Plan(Policy):
    """Under a plan operations work in place where the plan has it so."""

    uses_in_place = True


class NextUse(Policy):
    """Whose next use is the farthest leaves first."""


class Lru(Policy):
    """The least recently used leaves first: a cache of whole storages, as AutoTM's 2LM is one of cache lines."""

    def begins(self, run: "Run") -> None:
        run.order.key[:] = [-1.0] * len(run.pieces)

    def key(self, run: "Run", piece: int, until_next_use: int) -> float:
        return float(run.at)


class EvictAll(Lru):
    """Everything leaves at once when its operation has ended, and comes back on demand."""

    def after(self, run: "Run", tick: int) -> None:
        for piece, _, until in run.pieces.uses[tick]:
            if until > 1 and run.may_leave(piece):
                run.evict(piece)


class FirstTouch(Lru):
    """Whatever finds room on the first tier when it is born stays there for life, the rest on the next tier with room.

    AutoTM's NUMA baseline. What operations cannot use where it is comes for one tick and leaves again.
    """

    uses_in_place = True

    def begins(self, run: "Run") -> None:
        super().begins(run)
        self._home: dict[int, int] = {}

    def home(self, run: "Run", piece: int) -> int:
        rank = next((rank for rank in range(run.n_tiers) if run.has_room(rank, run.pieces.room[piece])), 0)
        self._home[piece] = rank
        return rank if not run.is_born(piece) or run.writes_in_place(rank) else 0

    def key(self, run: "Run", piece: int, until_next_use: int) -> float:
        return float(run.at) - (1e18 if self._home.get(piece) else 0.0)

    def after(self, run: "Run", tick: int) -> None:
        for piece, _, until in run.pieces.uses[tick]:
            if until > 1 and self._home.get(piece) and run.may_leave(piece):
                run.evict(piece)


class Reactive(Lru):
    """After TPP (ASPLOS'23): samples accesses, promotes what is seen twice, demotes in the background.

    One access in ``_SAMPLE`` is seen, in turn, as page-protection faults would. What is seen on a slow tier for the
    second time within a step is promoted beside the compute, once there is room for it. When less than ``_LOW`` of the
    first tier is free, or a promotion lacks room, what was seen least recently is demoted until there is, and ``_HIGH``
    is free. Reconstructed from the paper's abstract
    design: pages, active lists and their ageing are left out. Where a slow tier cannot be used in place, absent
    storages come on demand, and this is the kernel's swap with its background reclaim.
    """

    uses_in_place = True
    _SAMPLE = 4
    _LOW, _HIGH = 0.02, 0.05

    def begins(self, run: "Run") -> None:
        super().begins(run)
        self._count = 0
        self._seen: dict[int, int] = {}
        self._hot: set[int] = set()

    def home(self, run: "Run", piece: int) -> int:
        if run.has_room(0, run.pieces.room[piece]):
            return 0
        return next((rank for rank in range(1, run.n_tiers) if run.writes_in_place(rank)), 0)

    def key(self, run: "Run", piece: int, until_next_use: int) -> float:
        self._count += 1
        if self._count % self._SAMPLE:
            return run.order.key[piece]
        before = self._seen.get(piece)
        self._seen[piece] = run.at
        if before is not None and run.at - before <= run.n_ticks:
            self._hot.add(piece)
        return float(run.at)

    def after(self, run: "Run", tick: int) -> None:
        capacity = run.capacity[0]
        for piece in sorted(self._hot):
            room = run.pieces.room[piece]
            if run.is_only_slow(piece) and not run.has_room(0, room):
                run.make_room(0, room, forced=False)
                if run.leaving_bytes:
                    continue  # until it has left
            self._hot.discard(piece)
            run.promote(piece)
        if run.free(0) + run.leaving_bytes < self._LOW * capacity:
            run.make_room(0, self._HIGH * capacity, forced=False)


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "lru": Lru,
    "lru-next-use": NextUse,
    "first-touch": FirstTouch,
    "reactive": Reactive,
    "evict-all": EvictAll,
}
"""By name; each simulation has one of its own."""

__all__ = ["NEVER", "POLICIES", "Policy"]
