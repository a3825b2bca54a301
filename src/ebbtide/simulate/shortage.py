"""Where room is short in a simulation: who leaves, by the policy's rule in the native decider, and ahead of which need.

``engine`` runs a step on top of this; the rules stand there.
"""

from array import array
from collections.abc import Callable
from math import inf

from ebbtide._decider import Order
from ebbtide.ir.machine import Machine
from ebbtide.ir.trace import Trace
from ebbtide.simulate.links import Copy
from ebbtide.simulate.pieces import Pieces
from ebbtide.simulate.policies import Policy
from ebbtide.simulate.rooms import Rooms


class Shortage(Rooms):
    """Rooms whose policy finds room."""

    def __init__(self, trace: Trace, machine: Machine, pieces: Pieces, usable: list[int], policy: Policy) -> None:
        super().__init__(trace, machine, pieces, usable)
        self.policy = policy
        self._was_short = False
        """Whether room has been short in this step; ``_is_short``: or in the one before."""
        self._is_short = False

    def make_room(self, nbytes: int, forced: bool = True) -> None:
        """Until so much of the first tier is free, or will be, or nothing more may leave."""
        short = nbytes - self.free(0) - self.leaving_bytes
        if short <= 0:
            return
        if forced:
            self._is_short = self._was_short = True
            short += self.policy.rule.batch_bytes(int(self.capacity[0]))
        for piece in self._victims(0, int(short), self.may_leave):
            if not self.evict(piece):
                break
            self.visitor[piece] = True
            if forced:
                self.record.rescue()

    def _end_step(self) -> None:
        self._is_short, self._was_short = self._was_short, False

    def _victims(self, rank: int, nbytes: int, may_leave: Callable[[int], bool]) -> list[int]:
        if self.order is None:
            self.order = Order(
                self.policy.rule,
                self.n_tiers,
                valid=self.valid,
                leaving=self.leaving,
                nbytes=array("Q", self.pieces.room),
                last_use=self.last_use,
                next_use=self.next_use,
                moves=array("B", self.pieces.moves),
                visitor=self.visitor,
            )
        return self.order.victims(rank, nbytes, self.at, may_leave)

    def _depart(self, tick: int) -> None:
        """What leaves as soon as its operation has ended."""
        rule = self.policy.rule
        if not rule.some_depart:
            return
        for piece, _, _ in self.pieces.uses[tick]:
            if rule.departs(bool(self.visitor[piece])) and self.may_leave(piece):
                self.evict(piece)

    def _go_ahead(self) -> None:
        """Evicts ahead of need."""
        rule, capacity = self.policy.rule, self.capacity[0]
        if not rule.goes_ahead or capacity == inf or not (rule.ahead_of_pressure or self._is_short):
            return
        free = max(int(self.free(0)) + self.leaving_bytes, 0)
        if ahead := rule.ahead_bytes(int(capacity), free):
            self.make_room(free + ahead, forced=False)

    # ---- the safety net ----------------------------------------------------------------------------------------------

    def _find_room(self, missing: list[int]) -> None:
        """Evicts what the room lacks for the tick at hand."""
        wanted = sum(self.pieces.room[piece] for piece in self.unborn)
        for piece in missing:
            taken = sum(copy.taken for copy in self.copies.get(piece, ()) if copy.target == 0)
            wanted += 0 if self.valid[piece] & 1 else self.pieces.room[piece] - taken
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
            in_place = self.valid[piece] & ~self.leaving[piece] & self._usable[mode] & ~1
            if in_place and self.valid[piece] & 1 and piece not in self.copies:
                self._drop(piece, 0)
                return
        operator = self.trace.ticks[tick].operator
        raise ValueError(f"tick {tick} ({operator}) does not fit the budget with what cannot leave")

    def _make_slow_room(self, copy: Copy) -> bool:
        """For a copy that waits at the head of its link: where a replica can go, or contents can move on."""
        rank, room = copy.target, self.pieces.room[copy.piece] - copy.taken
        began = self.free(rank)

        def is_free(piece: int) -> bool:
            return piece not in self.copies and piece not in self.pinned

        if self.has_room(rank, 0) and room <= began:
            return False  # it has room, so something else holds it

        def is_double(piece: int) -> bool:
            return is_free(piece) and bool(self.valid[piece] & ~(1 << rank))

        for piece in self._victims(rank, max(int(room - began), 1), is_double):
            self._drop(piece, rank)
        if self.free(rank) > began:
            return True
        for who in (is_free, self._has_only_plans):  # the latter: two that wait for each other's room
            for piece in self._victims(rank, 1, who):
                below = self._target(piece, rank)
                if below is None or not self.has_room(below, self.pieces.room[piece]):
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
