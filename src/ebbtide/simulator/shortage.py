"""Where room is short in a simulation: who leaves, by the policy's rule in the native decider, and ahead of which need.

``engine`` runs a step on top of this; the rules stand there.
"""

from array import array
from collections.abc import Callable
from math import inf

from ebbtide._planning import Order
from ebbtide._planning import Policy as Rule
from ebbtide.ir.machine import Machine
from ebbtide.ir.trace import Trace
from ebbtide.simulator.links import Copy
from ebbtide.simulator.pieces import Pieces
from ebbtide.simulator.result import does_not_fit
from ebbtide.simulator.tier_state import TierState


class Shortage(TierState):
    """A state of tiers in which a policy makes room."""

    def __init__(self, trace: Trace, machine: Machine, pieces: Pieces, usable: list[int], rule: Rule) -> None:
        super().__init__(trace, machine, pieces, usable)
        self.rule = rule
        self._was_short = False
        """Whether room has been short in this step; ``_is_short``: or in the one before."""
        self._is_short = False

    def make_room(self, nbytes: int, forced: bool = True) -> None:
        """Until so much of the first tier is free, or will be, or nothing more may leave."""
        short = nbytes - self.free(0) - self.evicting_bytes
        if short <= 0:
            return
        if forced:
            self._is_short = self._was_short = True
            short += self.rule.batch_bytes(int(self.capacity[0]))
        for piece in self._victims(0, int(short), self.evictable):
            if not self.evict(piece):
                break
            self.transient[piece] = True
            if forced:
                self.record.rescue()

    def _end_step(self) -> None:
        self._is_short, self._was_short = self._was_short, False

    def _victims(self, rank: int, nbytes: int, evictable: Callable[[int], bool]) -> list[int]:
        if self.order is None:
            self.order = Order(
                self.rule,
                self.n_tiers,
                valid=self.valid,
                evicting=self.evicting,
                nbytes=array("Q", self.pieces.paged_bytes),
                last_use=self.last_use,
                next_use=self.next_use,
                moves=array("B", self.pieces.moves),
                transient=self.transient,
            )
        return self.order.victims(rank, nbytes, self.at, evictable)

    def _depart(self, tick: int) -> None:
        """What leaves as soon as its operation has ended."""
        rule = self.rule
        if not rule.evicts_some_after_use:
            return
        for piece, _, _ in self.pieces.uses[tick]:
            if rule.evicts_after_use(bool(self.transient[piece])) and self.evictable(piece):
                self.evict(piece)

    def _go_ahead(self) -> None:
        """Evicts ahead of need."""
        rule, capacity = self.rule, self.capacity[0]
        if not rule.goes_ahead or capacity == inf or not (rule.ahead_of_pressure or self._is_short):
            return
        free = max(int(self.free(0)) + self.evicting_bytes, 0)
        if ahead := rule.ahead_bytes(int(capacity), free):
            self.make_room(free + ahead, forced=False)

    # ---- the safety net ----------------------------------------------------------------------------------------------

    def _evict_for(self, missing: list[int]) -> None:
        """Evicts what the room lacks for the tick at hand."""
        wanted = sum(self.pieces.paged_bytes[piece] for piece in self.unborn)
        for piece in missing:
            taken = sum(copy.taken for copy in self.copies.get(piece, ()) if copy.target == 0)
            wanted += 0 if self.valid[piece] & 1 else self.pieces.paged_bytes[piece] - taken
        self.make_room(wanted)

    def _unstick(self, tick: int, missing: list[int]) -> None:
        """Compute waits, and nothing is under way that could help."""
        for copy in self.links.heads():
            if copy.target and self._make_slow_room(copy):
                return
        for copy in self.links.queued():
            if copy.target == 0 and copy.taken and copy.piece not in self.pinned:
                self._cancel(copy)
                return
        for piece, mode, _ in self.pieces.uses[tick]:  # kept where it was about to leave, but usable where it has gone
            in_place = self.valid[piece] & ~self.evicting[piece] & self._usable[mode] & ~1
            if in_place and self.valid[piece] & 1 and piece not in self.copies:
                self._drop(piece, 0)
                return
        if self._move_an_elder():
            return
        raise ValueError(does_not_fit(self.trace, tick))

    def _move_an_elder(self) -> bool:
        """The safety net knows no plan, so it takes what a plan cannot name, too; how long that takes is left out."""
        for piece, elders in self.elders.items():
            for at, reserved in enumerate(elders):
                others = (rank for rank in range(1, self.n_tiers) if reserved >> rank & 1 or self.has_room(piece, rank))
                target = next(others, None)
                if not reserved & 1 or target is None or not self.pieces.moves[piece]:
                    continue
                if not reserved >> target & 1:
                    self.record.change(target, self.room(piece, target), self.now)
                self.record.change(0, -self.room(piece, 0), self.now)
                elders[at] = reserved & ~1 | 1 << target
                self.record.rescue()
                self._place_unborn()
                return True
        return False

    def _make_slow_room(self, copy: Copy) -> bool:
        """For a copy that waits at the head of its link: where a replica can go, or contents can move on."""
        rank, needed = copy.target, self.room(copy.piece, copy.target) - copy.taken
        began = self.free(rank)

        def is_free(piece: int) -> bool:
            return piece not in self.copies and piece not in self.pinned

        if self.fits(rank, 0) and needed <= began:
            return False  # it has room, so something else holds it

        def is_double(piece: int) -> bool:
            return is_free(piece) and bool(self.valid[piece] & ~(1 << rank))

        for piece in self._victims(rank, max(int(needed - began), 1), is_double):
            self._drop(piece, rank)
        if self.free(rank) > began:
            return True
        for who in (is_free, self._has_only_plans):  # the latter: two that wait for each other's room
            for piece in self._victims(rank, 1, who):
                below = self._target(piece, rank)
                if below is None or not self.has_room(piece, below):
                    return False
                for planned in [*self.copies.get(piece, ())]:
                    self._cancel(planned)
                self._put(piece, rank, below, self.at)
                self._drop(piece, rank)
                return True
        return False

    def _has_only_plans(self, piece: int) -> bool:
        """Whether no copy of the piece has begun."""
        return not any(copy.has_begun for copy in self.copies.get(piece, ()))

    # ---- what policies ask -------------------------------------------------------------------------------------------

    def writes_in_place(self, rank: int) -> bool:
        return self.machine.tiers[rank].in_place.writes

    def is_born(self, piece: int) -> bool:
        return not self.trace.storages[self.pieces.storage[piece]].persistent

    def promote(self, piece: int) -> None:
        """Beside the compute, if there is room and a link."""
        if not self.valid[piece] & 1 and piece not in self.copies and self.pieces.moves[piece]:
            source = self._source(piece)
            if source is not None and self._hop[source] == 0 and self.fits(0, self.pieces.paged_bytes[piece]):
                self._put(piece, source, 0, self.at + 2 * self.n_ticks)
