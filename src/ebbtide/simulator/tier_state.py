"""Where the pieces of a step are during a simulation: what they reserve on tiers, replicas and copies, and the verbs
that change them.

``engine`` runs a step on top of this; the rules stand there.
"""

from array import array
from collections import deque
from math import inf

from ebbtide._planning import Order
from ebbtide.ir.machine import Machine
from ebbtide.ir.trace import Trace
from ebbtide.simulator.links import Copy, Links
from ebbtide.simulator.pieces import Pieces
from ebbtide.simulator.record import Record


class TierState:
    """Bit r of ``valid``, ``reserved`` and ``evicting`` stands for the tier of rank r: contents there; bytes reserved
    there; bytes there that are freed once the copies from there are done."""

    def __init__(self, trace: Trace, machine: Machine, pieces: Pieces, usable: list[int]) -> None:
        self._usable = usable
        """For each mode of access, the ranks at which it may happen, as bits."""
        self.trace, self.machine, self.pieces, self.exclusive = trace, machine, pieces, machine.exclusive
        self.n_ticks, self.n_tiers = len(trace.ticks), len(machine.tiers)
        count = len(pieces)
        self.valid, self.evicting = array("Q", bytes(8 * count)), array("Q", bytes(8 * count))
        self.reserved = [0] * count
        self.last_use = array("q", [-1] * count)
        self.next_use = array("q", pieces.first_use)
        """Ticks since the first step began."""
        self.transient = array("B", bytes(count))
        """What found no room on the first tier at its birth, or lost it since."""
        self.elders: dict[int, deque[int]] = {}
        """Of a piece that was born again while it lived: where those before have bytes reserved, the oldest first."""
        self.copies: dict[int, list[Copy]] = {}
        self.wanted_back: set[int] = set()
        self.packs = [tier.packs for tier in machine.tiers]
        self.capacity = [inf if tier.capacity_bytes is None else tier.capacity_bytes for tier in machine.tiers]
        self.promised = [0] * self.n_tiers
        """Bytes that copies in queues will reserve on each tier."""
        self.evicting_bytes = 0
        """Bytes on the first tier that copies under way will free."""
        self.order: Order | None = None
        """Who leaves first, once that has been asked: most simulations of plans never do."""
        self.unborn: deque[int] = deque()
        self.pinned: set[int] = set()
        """What the tick at hand uses or gives birth to."""
        self.now = 0.0
        self.at = 0
        """Ticks since the first step began."""
        self.record = Record(trace, machine, pieces)
        self.links = Links(machine, self)
        self._hop = self._hops()

    def _hops(self) -> dict[int, int]:
        """From each tier, where a copy on its way to the first tier goes next."""
        hop: dict[int, int] = {0: 0}
        ends = [0]
        for end in ends:
            for rank in range(self.n_tiers):
                if rank not in hop and self.links.between(rank, end):
                    hop[rank] = end
                    if not self.packs[rank]:  # not everything could stop there
                        ends.append(rank)
        return hop

    # ---- tiers -------------------------------------------------------------------------------------------------------

    def free(self, rank: int) -> float:
        return self.capacity[rank] - self.record.used[rank]

    def fits(self, rank: int, nbytes: int) -> bool:
        """Whether so many bytes are free that no copy in a queue will take."""
        return self.free(rank) - self.promised[rank] >= nbytes

    def room(self, piece: int, rank: int) -> int:
        """What a piece takes on a tier where it may lie."""
        if not self.packs[rank]:
            return self.pieces.paged_bytes[piece]
        packed = self.pieces.packed_bytes[piece]
        assert packed is not None
        return packed

    def may_lie(self, piece: int, rank: int) -> bool:
        return not self.packs[rank] or self.pieces.packed_bytes[piece] is not None

    def has_room(self, piece: int, rank: int) -> bool:
        """Whether a piece may lie on a tier, and fits there."""
        return self.may_lie(piece, rank) and self.fits(rank, self.room(piece, rank))

    def is_only_slow(self, piece: int) -> bool:
        """Whether a piece lies on slower tiers alone."""
        return bool(self.valid[piece]) and not self.valid[piece] & 1

    def evictable(self, piece: int) -> bool:
        """Whether a piece may be evicted from the first tier now."""
        return piece not in self.pinned and self._is_there(piece, 0)

    def evict(self, piece: int) -> bool:
        """The piece leaves the first tier, without a copy if there is another replica. Whether it could."""
        if not self.valid[piece] & ~1 and not any(copy.source == 0 for copy in self.copies.get(piece, ())):
            target = self._target(piece, 0)
            if target is None:
                return False
            self._put(piece, 0, target, self.at)
        self._drop(piece, 0)
        return True

    def admits(self, copy: Copy, nbytes: int) -> bool:
        target = copy.target
        if self.packs[target]:  # what its chunks come to is known at its end: all at once
            nbytes = 0 if copy.has_begun else self.room(copy.piece, target)
        elif not copy.has_begun:
            nbytes += self.pieces.paged_bytes[copy.piece] - self.pieces.nbytes[copy.piece]
        if target == 0 and self.unborn:
            if self.exclusive:
                self._place_unborn()
            elif copy.piece not in self.pinned:
                return False
        if nbytes > self.free(target):
            return False
        copy.taken += nbytes
        self.promised[target] -= nbytes
        self.record.change(target, nbytes, self.now)
        return True

    def arrived(self, copy: Copy, nbytes: int) -> None:
        piece, source = copy.piece, copy.source
        if copy.dead:
            self.record.change(copy.target, -copy.taken, self.now)
            return
        bit = 1 << source
        if self.exclusive and not self.evicting[piece] & bit:
            self._mark_evicting(piece, source)
        is_alone = sum(other.source == source for other in self.copies[piece]) == 1
        if copy.left and is_alone and self.evicting[piece] & bit and not self.packs[source]:
            self.valid[piece] &= ~bit
            copy.freed += nbytes
            self._release(source, nbytes)
        if copy.left:
            return
        self._forget(copy)
        self.valid[piece] |= 1 << copy.target
        self.reserved[piece] |= 1 << copy.target
        self._note_change(piece)
        if self.evicting[piece] & bit:
            self._free_if_done(piece, source, copy.freed)
        if piece in self.wanted_back:
            self.wanted_back.discard(piece)
            if piece in self.pinned:
                self._demand(piece)
            elif self._hop.get(copy.target) == 0:
                self._put(piece, copy.target, 0, self.at + self.n_ticks)

    def _is_there(self, piece: int, rank: int) -> bool:
        return bool(self.valid[piece] & ~self.evicting[piece] & 1 << rank) and self.pieces.moves[piece]

    def _note_change(self, piece: int) -> None:
        """Where it is valid, or when it is used."""
        if self.order is not None:
            self.order.changed(piece)

    def _take(self, piece: int, rank: int) -> None:
        self.valid[piece] |= 1 << rank
        self.reserved[piece] |= 1 << rank
        self.record.change(rank, self.room(piece, rank), self.now)
        self._note_change(piece)

    def _release(self, rank: int, nbytes: int) -> None:
        self.record.change(rank, -nbytes, self.now)
        if rank == 0:
            self.evicting_bytes -= nbytes

    def _drop(self, piece: int, rank: int) -> None:
        """Frees the bytes once the copies from there are done."""
        bit = 1 << rank
        if self.evicting[piece] & bit or not self.reserved[piece] & bit:
            return
        reading = any(copy.source == rank for copy in self.copies.get(piece, ()))
        if not reading and not self.valid[piece] & ~self.evicting[piece] & ~bit:
            if self.exclusive and rank == 0 and not self.valid[piece] & ~1:  # else another replica is about to go, too
                self.evict(piece)
            return
        self._mark_evicting(piece, rank)
        self._free_if_done(piece, rank)

    def _mark_evicting(self, piece: int, rank: int) -> None:
        self.evicting[piece] |= 1 << rank
        if rank == 0:
            self.evicting_bytes += self.pieces.paged_bytes[piece]

    def _cancel_eviction(self, piece: int, rank: int) -> None:
        """Takes back an eviction or a drop."""
        self.evicting[piece] &= ~(1 << rank)
        if rank == 0:
            self.evicting_bytes -= self.pieces.paged_bytes[piece]
        self._note_change(piece)

    def _free_if_done(self, piece: int, rank: int, freed: int = 0) -> None:
        if any(copy.source == rank for copy in self.copies.get(piece, ())):
            return
        bit = 1 << rank
        if not self.valid[piece] & ~bit:
            self._cancel_eviction(piece, rank)
            return
        self.valid[piece] &= ~bit
        self.reserved[piece] &= ~bit
        self.evicting[piece] &= ~bit
        self._note_change(piece)
        self._release(rank, self.room(piece, rank) - freed)

    def _missing(self, tick: int) -> list[int]:
        """What the tick uses and cannot use yet."""
        valid, evicting, missing = self.valid, self.evicting, []
        for piece, mode, _ in self.pieces.uses[tick]:
            is_valid = valid[piece]
            if is_valid & 1 and not evicting[piece] & 1:
                continue
            if not is_valid and piece in self.unborn:
                continue
            here = is_valid & ~evicting[piece] & self._usable[mode]
            if here and not any(copy.due <= self.at for copy in self.copies.get(piece, ()) if copy.target == 0):
                continue
            missing.append(piece)
        return missing

    def _place_unborn(self) -> None:
        """To what is born, in order. On an exclusive machine it comes last, when all else that the tick needs is there,
        and all at once: until then copies may take the room (the judge of tiertrace/1)."""
        if self.exclusive:
            if (
                self.unborn
                and sum(self.pieces.paged_bytes[piece] for piece in self.unborn) <= self.free(0)
                and not self._missing(self.at % self.n_ticks)
            ):
                while self.unborn:
                    self._take(self.unborn.popleft(), 0)
            return
        while self.unborn and self.pieces.paged_bytes[self.unborn[0]] <= self.free(0):
            self._take(self.unborn.popleft(), 0)

    def _die(self, piece: int) -> None:
        """A storage's contents are gone, and the copies of them end unheard."""
        if elders := self.elders.get(piece):
            reserved = elders.popleft()
            for rank in range(self.n_tiers):
                if reserved >> rank & 1:
                    self.record.change(rank, -self.room(piece, rank), self.now)
            return
        freed = [0] * self.n_tiers
        for copy in [*self.copies.get(piece, ())]:
            freed[copy.source] += copy.freed
            copy.freed = 0
            self._cancel(copy)
        for rank in range(self.n_tiers):
            if self.evicting[piece] >> rank & 1:
                self._cancel_eviction(piece, rank)
                self.evicting_bytes += freed[rank] if rank == 0 else 0
            if self.reserved[piece] >> rank & 1:
                self.record.change(rank, freed[rank] - self.room(piece, rank), self.now)
        self.valid[piece] = self.reserved[piece] = self.evicting[piece] = 0
        self.wanted_back.discard(piece)

    def _grow_old(self, piece: int) -> None:
        """Its successor is about to be born: it stays where it is, and what it was about to do is not done."""
        for copy in [*self.copies.get(piece, ())]:
            self._cancel(copy)
        for rank in range(self.n_tiers):
            if self.evicting[piece] >> rank & 1:
                self._cancel_eviction(piece, rank)
        self.elders.setdefault(piece, deque()).append(self.reserved[piece])
        self.valid[piece] = self.reserved[piece] = 0
        self.wanted_back.discard(piece)
        self._note_change(piece)

    def _overwrite(self, piece: int, rank: int) -> None:
        """All but the replica that is written are gone."""
        for copy in [*self.copies.get(piece, ())]:
            self._cancel(copy)
        for other in range(self.n_tiers):
            if self.evicting[piece] >> other & 1:
                self._cancel_eviction(piece, other)
            if other != rank and self.reserved[piece] >> other & 1:
                self.record.change(other, -self.room(piece, other), self.now)
        self.valid[piece] = self.reserved[piece] = 1 << rank

    # ---- copies ------------------------------------------------------------------------------------------------------

    def _put(self, piece: int, source: int, target: int, due: int, demanded: bool = False) -> None:
        copy = Copy(piece, source, target, self.pieces.nbytes[piece], due, demanded, demanded)
        self.copies.setdefault(piece, []).append(copy)
        self.promised[target] += self.room(piece, target)
        self.links.put(copy)

    def _forget(self, copy: Copy) -> None:
        mine = self.copies[copy.piece]
        mine.remove(copy)
        if not mine:
            del self.copies[copy.piece]

    def _cancel(self, copy: Copy) -> None:
        """What the copy gave up on its source comes back."""
        self._forget(copy)
        self.promised[copy.target] -= self.room(copy.piece, copy.target) - copy.taken
        if not copy.chunk:
            self.record.change(copy.target, -copy.taken, self.now)
        if copy.freed:
            self.record.change(copy.source, copy.freed, self.now)
            self.valid[copy.piece] |= 1 << copy.source
            if copy.source == 0:
                self.evicting_bytes += copy.freed
        self.links.cancel(copy)

    def _source(self, piece: int) -> int | None:
        """The fastest tier with valid contents and a way to the first."""
        valid = self.valid[piece] & ~1
        return next((rank for rank in range(1, self.n_tiers) if valid >> rank & 1 and rank in self._hop), None)

    def _target(self, piece: int, source: int) -> int | None:
        """The fastest tier below with a link and room; without any room the fastest, where room can be made."""
        linked = (rank for rank in range(source + 1, self.n_tiers) if self.links.between(source, rank))
        below = [rank for rank in linked if self.may_lie(piece, rank)]
        with_room = (rank for rank in below if self.has_room(piece, rank))
        large = (rank for rank in below if self.capacity[rank] >= self.room(piece, rank))
        return next(with_room, None) or next(large, None)

    def _demand(self, piece: int) -> None:
        """The tick needs the piece in the first tier."""
        mine = self.copies.get(piece, ())
        for copy in mine:
            if copy.target == 0:
                self.links.hurry(copy)
                return
        if self.valid[piece] & self.evicting[piece] & 1:
            self._keep(piece)
        elif self.valid[piece] & 1:
            pass
        elif (source := self._source(piece)) is not None and not self.evicting[piece] >> source & 1:
            hop = self._hop[source]
            if not any(copy.target == hop for copy in mine):
                self.record.demand_fetch(self.pieces.nbytes[piece])
                self._put(piece, source, hop, self.at, demanded=True)
        else:
            self.wanted_back.add(piece)

    def _keep(self, piece: int) -> None:
        """What is about to leave the first tier stays. A copy of it that has not begun is of no use if it is a move."""
        self._cancel_eviction(piece, 0)
        for copy in [*self.copies.get(piece, ())]:
            if self.exclusive and not copy.has_begun:
                self._cancel(copy)
            elif self.exclusive:
                self._mark_evicting(piece, 0)
                self.wanted_back.add(piece)
