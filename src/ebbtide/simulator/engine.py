"""Runs a step on a virtual clock, as the runtime does. Times are exact for the model, which is:

- Ticks run in order. Commands are issued when compute reaches their tick, in the schedule's order.
- EVICT and FETCH queue a copy on a link. DROP gives up the room once the copies from there are done, and never the last
  replica.
- A copy takes room on its target when it begins, and those behind it on the link wait for it. What a tick gives birth
  to, and what it needs, go before all other copies to the first tier; on an exclusive machine births come last.
- A tick begins when each storage that it accesses is valid where it may be used ([Note: in place] in ``ir.machine``)
  and all that is born in it has room. What is valid on no such tier is fetched at once: a demand fetch.
- Where room is short and nothing under way makes it, the policy says who leaves, to the fastest tier with room; under a
  plan that is the piece whose next use is the farthest, and it is a *rescue*.
- A write makes other replicas invalid, and a copy under way arrives as waste.
- Links are those of ``links``. A busy link stretches ticks by its ``slows_compute``.

Steps repeat. Persistent storages begin where the schedule says, else where their first command finds them, else in the
first tier, and what is too much there leaves before the first tick; without a plan, what no tick uses is elsewhere.

What lives on when its successor is born is an elder ([Note: elders] in ``planners.search.idle_table``): it stays where
it is, unless room cannot be had otherwise.

Left out: what elders are used for, places on the clock within a tick, and the runtime's own costs.
"""

from itertools import count
from math import inf

from ebbtide.ir.machine import Machine
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import PageSize
from ebbtide.ir.schedule import Schedule
from ebbtide.ir.timeline import SpanKind
from ebbtide.ir.trace import Access, Trace
from ebbtide.simulator.measured_in_place import MeasuredInPlace
from ebbtide.simulator.pieces import Command, Pieces, pieces_of
from ebbtide.simulator.policies import Policy
from ebbtide.simulator.result import does_not_fit
from ebbtide.simulator.shortage import Shortage

_WRITE = int(Access.WRITE)


def _usable_ranks(machine: Machine, policy: Policy) -> list[int]:
    """For each mode of access, the ranks at which it may happen, as bits."""
    usable = [0, 1, 1, 1]
    if policy.uses_in_place:
        for rank, tier in enumerate(machine.tiers):
            for mode in (1, 2, 3):
                if tier.in_place.writes if mode & _WRITE else tier.in_place.reads:
                    usable[mode] |= 1 << rank
    return usable


def _most_rounds(machine: Machine, pieces: Pieces) -> int:
    """Of waiting for one tick: every piece through every tier, chunk by chunk, and as often again.

    Copies that make room for one another for ever would go on after that.
    """
    chunk = machine.chunk_bytes
    chunks = sum(nbytes // chunk + 1 for nbytes in pieces.nbytes) if chunk else len(pieces)
    return 100 + 16 * len(machine.tiers) * chunks


class Run(Shortage):
    """A simulation. Policies read it and call its verbs."""

    def __init__(
        self,
        schedule: Schedule,
        trace: Trace,
        machine: Machine,
        page_bytes: PageSize,
        policy: Policy,
        measured: MeasuredInPlace | None = None,
    ) -> None:
        self.rank = {tier.name: rank for rank, tier in enumerate(machine.tiers)}
        pieces = pieces_of(schedule, trace, page_bytes)
        super().__init__(trace, machine, pieces, _usable_ranks(machine, policy), policy.rule)
        self.policy = policy
        self.measured = measured or MeasuredInPlace(trace, machine)
        self._accesses = 0
        self._most_rounds = _most_rounds(machine, pieces)
        self.times = [float(tick.time_ns) for tick in trace.ticks]
        self._is_demanded = not (len(schedule) or len(schedule.begin_storage))
        self._place()

    # ---- the beginning -----------------------------------------------------------------------------------------------

    def _place(self) -> None:
        """Puts what is there before the first tick where the schedule or the policy has it."""
        trace, pieces = self.trace, self.pieces
        first: dict[int, Command] = {}
        replica, gone = dict[int, int](), dict[int, int]()  # where what was born in the step before lies at its end
        for tick, row in enumerate(pieces.commands):
            for command, piece in row:
                if 0 in (command.source, command.target):
                    first.setdefault(piece, command)
                if tick > trace.storages[pieces.storage[piece]].birth:
                    if command.source == 0 and command.target is not None:
                        replica[piece] = command.target
                    elif command.source == 0 and piece in replica:
                        gone[piece] = replica[piece]
                    elif command.target == 0:
                        gone.pop(piece, None)
        for piece, number in enumerate(pieces.storage):
            storage = trace.storages[number]
            if not storage.persistent:
                generations = storage.death // self.n_ticks  # those of the steps before are there
                if generations:
                    rank = gone.get(piece, self._birth_rank(piece))
                    rank = rank if self.may_lie(piece, rank) else self._birth_rank(piece)
                    self._take(piece, rank)
                    for _ in range(generations - 1):
                        self._grow_old(piece)
                        self._take(piece, rank)
                continue
            for rank in self._first_ranks(piece, first.get(piece)):
                self._take(piece, rank)

    def _first_ranks(self, piece: int, begin: Command | None) -> list[int]:
        number = self.pieces.storage[piece]
        if ranks := [rank for rank in self.pieces.begins.get(piece, ()) if self.may_lie(piece, rank)]:
            return sorted(ranks)[:1] if self.exclusive else ranks
        if begin is not None and begin.verb is Verb.FETCH and self.may_lie(piece, begin.source):
            return [begin.source]
        storage, is_used = self.trace.storages[number], self.pieces.first_use[piece] < self.n_ticks
        reachable = [rank for rank in range(1, self.n_tiers) if rank in self._hop and self.may_lie(piece, rank)]
        if begin is not None and begin.verb is Verb.DROP and reachable and not self.exclusive:
            return [0, reachable[0]]
        if self._is_demanded and not (is_used or storage.scratch) and self.capacity[0] < inf:
            reachable = [rank for rank in reachable if self.has_room(piece, rank)]
            if reachable:
                return [reachable[-1]]
        return [self.policy.home(self, piece)] if self.pieces.moves[piece] else [0]

    def _birth_rank(self, piece: int) -> int:
        ranks = self.pieces.begins.get(piece)
        rank = ranks[0] if ranks else self.policy.home(self, piece) if self.pieces.moves[piece] else 0
        return rank if rank and self.has_room(piece, rank) else 0

    # ---- one step ----------------------------------------------------------------------------------------------------

    def step(self, is_last: bool) -> None:
        record, uses, births = self.record, self.pieces.uses, self.pieces.births
        record.begin(self.now, self.links, is_last)
        for tick in range(self.n_ticks):
            record.reach(tick, self.now)
            for piece in self.pieces.deaths[tick]:
                self._die(piece)
            for command, piece in self.pieces.commands[tick]:
                self._issue(command, piece)
            self.pinned = {use[0] for use in uses[tick]}
            self.pinned.update(births[tick])
            for piece in births[tick]:
                self._bear(piece)
            self._wait(tick)
            self._compute(tick, self._use(tick))
            self.pinned = set()
            self._depart(tick)
            self.policy.after(self, tick)
            self._go_ahead()
            self.links.start(self.now)
            self.at += 1
        record.end(self.now, self.links)
        self._end_step()

    def _wait(self, tick: int) -> None:
        """Until the tick may begin."""
        self._place_unborn()
        missing = self._missing(tick)
        self.record.uses(self.pieces.n_used[tick], len(missing))
        for waited in count():
            if waited == self._most_rounds:
                raise ValueError(does_not_fit(self.trace, tick))
            for piece in missing:
                self._demand(piece)
            self.links.start(self.now)
            if missing:
                missing = self._missing(tick)
            if not missing and not self.unborn and self.free(0) >= 0:
                return
            self._evict_for(missing)
            cause = SpanKind.STALL_LATE if missing else SpanKind.STALL_ROOM
            if any(copy.demanded for piece in missing for copy in self.copies.get(piece, ())):
                cause = SpanKind.STALL_DEMAND
            began = self.now
            self.links.start(self.now)
            if self.links.idle:
                self._place_unborn()
                missing = self._missing(tick)
                if missing or self.unborn or self.free(0) < 0:
                    self._unstick(tick, missing)
                continue
            self._go_on()
            self.record.stall(tick, cause, began, self.now)
            missing = self._missing(tick)

    def _use(self, tick: int) -> float:
        """The operation touches what it uses; returns how long it takes."""
        extra_ns, at, valid, last_use, next_use = 0.0, self.at, self.valid, self.last_use, self.next_use
        every, order = self.rule.sees_every, self.order
        slow: dict[int, dict[int, float]] = {}  # by rank, the share of each operand whose cost was measured
        for piece, mode, until in self.pieces.uses[tick]:
            is_valid = valid[piece]
            rank = 0
            if not is_valid & 1:
                usable = is_valid & self._usable[mode]
                rank = (usable & -usable).bit_length() - 1
                nbytes = self.pieces.nbytes[piece]
                reads, writes = nbytes * (mode & 1), nbytes * (mode >> 1)
                storage = self.pieces.storage[piece]
                operand = self.measured.operand(tick, rank, storage)
                if operand is None:
                    extra_ns += self.machine.in_place_ns(self.machine.tiers[rank].name, reads, writes)
                else:
                    shares = slow.setdefault(rank, {})
                    shares[operand] = shares.get(operand, 0.0) + nbytes / self.trace.storages[storage].nbytes
                self.record.use_in_place(rank, reads, writes)
            if mode & _WRITE and (is_valid != 1 << rank or piece in self.copies):
                self._overwrite(piece, rank)
            next_use[piece] = at + until
            self._accesses += 1
            if self._accesses % every == 0:
                self.policy.sees(self, piece)
                last_use[piece] = at
            if order is not None:
                order.changed(piece)
        time_ns = self.times[tick]
        if extra_ns or slow:
            reads, writes = self.record.operand_bytes(tick)
            longer = self.machine.tick_ns(time_ns, reads, writes, extra_ns) if extra_ns else time_ns
            longer += sum(self.measured.extra_ns(tick, rank, shares) for rank, shares in slow.items())
            self.record.slower(longer - time_ns)
            return longer
        return time_ns

    def _compute(self, tick: int, work: float) -> None:
        began, links = self.now, self.links
        while True:
            end = self.now + work * links.slowdown
            if end < links.next_end:
                self.now = end
                break
            work -= (links.next_end - self.now) / links.slowdown
            self._go_on()
            if work <= 0:
                break
        self.record.compute(tick, began, self.now)

    def _go_on(self) -> None:
        """To the next event of a link."""
        self.now = max(self.now, self.links.next_end)
        self.links.advance(self.now)
        self._place_unborn()

    def _bear(self, piece: int) -> None:
        if self.valid[piece]:
            self._await_eviction(piece)
            self._grow_old(piece)
        rank = self._birth_rank(piece)
        if rank:
            self._take(piece, rank)
        else:
            self.unborn.append(piece)

    def _await_eviction(self, piece: int) -> None:
        """Until it has left the first tier, if it is on its way: after that it is an elder."""
        began = self.now
        self.links.start(self.now)
        while self.evicting[piece] & 1 and not self.links.idle:
            self._go_on()
            self.links.start(self.now)
        if self.now > began:
            self.record.stall(self.at % self.n_ticks, SpanKind.STALL_ROOM, began, self.now)

    def _issue(self, command: Command, piece: int) -> None:
        source, target, due = command.source, command.target, self.at + command.later
        if target is None:
            self._drop(piece, source)
            return
        for copy in self.copies.get(piece, ()):
            if copy.target == target:
                copy.due = min(copy.due, due)
                return
        if self.valid[piece] >> target & 1:
            if self.evicting[piece] >> target & 1:  # it has not left yet
                self._keep(piece) if target == 0 else self._cancel_eviction(piece, target)
            return
        if not self.valid[piece] >> source & 1:
            other = self._source(piece)
            if command.verb is Verb.FETCH and other is None and target == 0:
                self.wanted_back.add(piece)  # it is on its way out, chunk by chunk
            if command.verb is Verb.EVICT or other is None or not self.links.between(other, target):
                return
            source = other
        if command.verb is Verb.EVICT and not self.has_room(piece, target):
            target = self._target(piece, source) or target
            if self.valid[piece] >> target & 1:
                return
        if self.may_lie(piece, target):
            self._put(piece, source, target, due)
