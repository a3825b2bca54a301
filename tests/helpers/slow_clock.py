"""A second simulator, written from docs/simulator.md by somebody who had not read the engine.

It goes from moment to moment in exact fractions and asks at each one who may go on, in the page's own words. It knows
schedules, not policies. With ``Unsaid`` it leaves out evictions for lack of room, and three cases where the simulator
does not do what its page says: ``leave_out`` and ``first_in`` name them. Its callers leave out elders, tiers that pack,
exclusive machines, and pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ebbtide.ir.machine import Link, Machine, Sharing
from ebbtide.ir.native import Verb
from ebbtide.ir.trace import Access, Trace
from tests.helpers.schedules import Begin, Command

DEMAND, LATE, ROOM = "demand", "late", "room"


class Unsaid(Exception):
    """The clock comes to a case that it leaves out."""


@dataclass
class Replica:
    """A storage's bytes on one tier."""

    reserved: int = 0
    valid: bool = False
    leaving: bool = False  # a DROP came


@dataclass(eq=False)
class Life:
    """One generation of a storage."""

    number: int
    nbytes: int
    on: dict[int, Replica] = field(default_factory=dict)  # by tier number

    missed: bool = False  # the tick at hand uses what is leaving
    back: int | None = None  # a FETCH came too late to keep it; when it is due

    def valid(self) -> list[int]:
        return sorted(tier for tier, replica in self.on.items() if replica.valid)


@dataclass(eq=False)
class Copy:
    life: Life
    link: Link
    source: int
    target: int
    due: int  # counted in ticks from the very beginning
    demand: bool = False
    wait_ns: Fraction = Fraction(0)  # of the latency
    chunk: Fraction = Fraction(0)  # bytes to go of the chunk under way
    under_way: bool = False  # a chunk is
    claimed: int = 0
    done: int = 0
    waste: bool = False


@dataclass
class Report:
    """Of the last step: times are ns."""

    start: list[Fraction] = field(default_factory=list)
    stall: list[Fraction] = field(default_factory=list)
    causes: dict[str, Fraction] = field(default_factory=lambda: dict.fromkeys((DEMAND, LATE, ROOM), Fraction(0)))
    moved: dict[str, int] = field(default_factory=dict)
    area: list[Fraction] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    n_uses: int = 0
    hits: int = 0
    demand_fetches: int = 0
    demand_bytes: int = 0
    slower: Fraction = Fraction(0)


class SlowClock:
    """Methods are the page's rules, so that a test can break one of them."""

    def __init__(
        self, commands: Sequence[Command], begins: Sequence[Begin], trace: Trace, machine: Machine
    ) -> None:
        self.machine, self.commands = machine, commands
        self.tier = {tier.name: at for at, tier in enumerate(machine.tiers)}
        self.storages = list(trace.storages)
        self.times = trace.ticks.time_ns.tolist()
        self.n_ticks = len(self.times)
        self.now = Fraction(0)
        self.tick = -1  # from the very beginning
        self.waiting = False
        self.work = Fraction(0)  # ns to go of the operation
        self.lives: dict[int, Life] = {}
        self.used = [0] * len(machine.tiers)
        self.queues: dict[str, list[Copy]] = {link.name: [] for link in machine.links}
        self.births: list[tuple[Life, int]] = []
        self.uses: list[tuple[Life, int]] = []
        self.report = Report()
        self.accesses: dict[int, list[tuple[int, int]]] = {}  # of a tick: storage, mode
        rows = trace.accesses
        for number, tick, mode in zip(rows.storage.tolist(), rows.tick.tolist(), rows.mode.tolist(), strict=True):
            if not self.storages[number].scratch:
                self.accesses.setdefault(tick % self.n_ticks, []).append((number, mode))
        for number, row in enumerate(self.storages):
            for tick in range(row.birth, row.death) if row.scratch else ():
                self.accesses.setdefault(tick % self.n_ticks, []).append((number, 3))
        self.begins: dict[int, list[int]] = {}
        for begin in begins:
            self.begins.setdefault(begin.storage, []).append(self.tier[begin.tier])
        for command in commands:
            if self.storages[command.storage].persistent:
                both = [command.source, command.target or machine.tiers[0].name]  # what is dropped has another replica
                names = both if command.verb is Verb.DROP else both[:1]
                self.begins.setdefault(command.storage, [self.tier[name] for name in names])

    # -- the run

    def run(self, n_steps: int = 3) -> Report:
        for number, row in enumerate(self.storages):
            if row.persistent:
                self.put(number, self.begins.get(number, [0]))
            elif row.death > self.n_ticks and row.room_of is None:
                self.put(number, [self.where_it_went(number)])
        self.next_tick(n_steps)
        while self.tick < n_steps * self.n_ticks:
            while self.anything_happens(n_steps):
                pass
            if self.tick < n_steps * self.n_ticks:
                self.let_time_pass()
        return self.report

    def put(self, number: int, tiers: list[int]) -> None:
        life = self.lives[number] = Life(number, self.storages[number].nbytes)
        for tier in tiers:
            if self.free(tier) < life.nbytes:
                raise Unsaid("too much at the beginning")
            life.on[tier] = Replica(valid=True)
            self.take(life, tier, life.nbytes)

    def where_it_went(self, number: int) -> int:
        """In the step of its birth, before the first: the tier to which it had been evicted by the step's end."""
        at, evicted, birth = self.begins.get(number, [0])[0], None, self.storages[number].birth
        first = at
        for row in self.commands:
            if row.storage != number or row.at <= birth:
                continue
            if row.verb is Verb.FETCH and self.tier[str(row.target)] == 0:
                at = first
            elif self.tier[row.source] == 0 and row.verb is Verb.EVICT:
                evicted = self.tier[str(row.target)]
            elif self.tier[row.source] == 0 and evicted is not None:
                at = evicted
        return at

    def anything_happens(self, n_steps: int) -> bool:
        """Does one thing that is due at this moment."""
        for copy in self.copies():
            if copy.under_way and not copy.wait_ns and not copy.chunk:
                self.end_chunk(copy)
                return True
        if self.tick == n_steps * self.n_ticks:
            return False
        if self.waiting and self.births_claim():
            return True
        if any(self.link_begins(link) for link in self.machine.links):
            return True
        if self.waiting and self.operation_begins():
            return True
        if self.waiting or self.work:
            return False
        self.uses = []
        self.next_tick(n_steps)
        return True

    def let_time_pass(self) -> None:
        rates, slow = self.rates(), self.slowness()
        ends = [] if self.waiting else [self.work * slow]
        for copy in self.copies():
            if copy.under_way and copy.wait_ns:
                ends.append(copy.wait_ns)
            elif copy.under_way and rates[copy.link.name]:
                ends.append(copy.chunk / rates[copy.link.name])
        if not ends:
            raise Unsaid("nothing can go on")
        dt = min(ends)
        self.now += dt
        for copy in self.copies():
            if copy.under_way and copy.wait_ns:
                copy.wait_ns -= dt
            elif copy.under_way:
                copy.chunk -= rates[copy.link.name] * dt
        if self.waiting:
            self.report.causes[self.kind_of_stall()] += dt
        else:
            self.work -= dt / slow
        for tier, nbytes in enumerate(self.used):
            if self.report.area:
                self.report.area[tier] += nbytes * dt

    # -- ticks

    def next_tick(self, n_steps: int) -> None:
        self.tick += 1
        at = self.tick % self.n_ticks
        if at == 0 and self.tick < n_steps * self.n_ticks:
            self.report = Report(area=[Fraction(0)] * len(self.used), peak=list(self.used))
            self.step_began = self.now
        self.report.start.append(self.now - self.step_began)
        if self.tick == n_steps * self.n_ticks:
            return
        self.waiting, self.reached = True, self.now
        for number, life in list(self.lives.items()):
            row = self.storages[number]
            if not row.persistent and row.death % self.n_ticks == at:
                self.die(life)
        existed = set(self.lives)
        for command in self.commands:
            if command.at == at:
                self.issue(command)
        for number, row in enumerate(self.storages):
            if not row.persistent and row.birth == at and row.room_of is None:
                if number in self.lives:
                    raise Unsaid("an elder")
                life = self.lives[number] = Life(number, row.nbytes)
                self.births.append((life, self.begins.get(number, [0])[0]))
        self.uses = [(self.lives[number], mode) for number, mode in self.accesses.get(at, []) if number in self.lives]
        for life, mode in self.uses:
            stay = [tier for tier in life.valid() if not life.on[tier].leaving and self.allows(tier, mode)]
            if life.number in existed:
                self.report.n_uses += 1
                self.report.hits += bool(stay) and not self.waits_for(life, mode)
            if not stay and 0 in life.valid():
                life.on[0].leaving = False  # what is about to leave is kept, as by a FETCH
        self.ask_on_demand()

    def ask_on_demand(self) -> None:
        """For all that has a replica that stays, and is not on its way."""
        for life in dict.fromkeys(life for life, _ in self.lacking()):
            source = min(life.valid(), default=0)
            coming = any(copy.target == 0 and not copy.waste for copy in self.copies_of(life))
            if source and not coming and not life.on[source].leaving:
                if life.missed:
                    life.missed = False
                    self.leave_out(source)
                self.enqueue(Copy(life, self.link(source, 0), source, 0, self.tick, demand=True))
                self.report.demand_fetches += 1
                self.report.demand_bytes += life.nbytes
            elif not source and 0 in life.on and life.on[0].leaving:
                life.missed = True

    def leave_out(self, tier: int) -> None:
        """What is leaving could be used in place, where it is or where it goes. There the simulator leaves its page:
        it fetches to the first tier all the same, and no access waits for a FETCH that came too late to keep it."""
        if self.machine.tiers[tier].in_place.reads:
            raise Unsaid("leaving, and usable in place")

    def lacking(self) -> list[tuple[Life, int]]:
        """What the tick at hand uses and cannot use yet."""
        born = {life for life, _ in self.births}
        rows = self.uses if self.waiting else []
        return [
            (life, mode)
            for life, mode in rows
            if life not in born and (life.missed or self.place(life, mode) is None or self.waits_for(life, mode))
        ]

    def kind_of_stall(self) -> str:
        """At this moment. Until the source of a demand fetch has come itself, it is late."""
        lacking = {life for life, _ in self.lacking()}
        copies = [copy for copy in self.copies() if copy.life in lacking]
        if any(copy.demand and copy.life.valid() for copy in copies):
            return DEMAND
        return LATE if lacking else ROOM

    def births_claim(self) -> bool:
        if not self.births:
            return False
        life, tier = self.births[0]
        if self.free(tier) < life.nbytes:
            self.short_of_room()
            return False
        life.on[tier] = Replica(valid=True)
        self.take(life, tier, life.nbytes)
        self.births.pop(0)
        return True

    def short_of_room(self) -> None:
        here = [life.on[0] for life in self.lives.values() if 0 in life.on]
        coming = sum(row.reserved for row in here if row.leaving)
        if self.free(0) + coming < self.wanted():
            raise Unsaid("short of room")

    def operation_begins(self) -> bool:
        if self.births or self.lacking():
            return False
        stall = self.now - self.reached
        self.report.stall.append(stall)
        self.waiting, self.work = False, self.operation_ns()
        for life, mode in self.uses:
            if mode & Access.WRITE:
                self.write(life, self.place(life, mode))
        return True

    def operation_ns(self) -> Fraction:
        """What operands in place cost: docs/format.md, Operations in place."""
        here = Fraction(self.times[self.tick % self.n_ticks])
        tiers, moving, extra = self.machine.tiers, Fraction(0), Fraction(0)

        def per_byte(tier: int, writes: bool) -> Fraction:
            row = tiers[tier]
            rate = (row.write_bytes_per_s if writes else None) or row.bytes_per_s
            return Fraction(10**9, rate) if rate else Fraction(0)

        for tier in range(len(tiers)):
            longer = Fraction(0)
            for life, mode in self.uses:
                for access in (Access.READ, Access.WRITE):
                    if mode & access and self.place(life, mode) == tier:
                        first = per_byte(0, access is Access.WRITE)
                        longer += life.nbytes * (per_byte(tier, access is Access.WRITE) - first)
                        moving += life.nbytes * first
            extra += max(longer, Fraction(0))
        slower = max(extra - Fraction(self.machine.compute.overlap) * max(here - moving, Fraction(0)), Fraction(0))
        self.report.slower += slower
        return here + slower

    # -- where operands are

    def allows(self, tier: int, mode: int) -> bool:
        in_place = self.machine.tiers[tier].in_place
        return in_place.writes if mode & Access.WRITE else in_place.reads

    def place(self, life: Life, mode: int) -> int | None:
        found = next((tier for tier in life.valid() if self.allows(tier, mode)), None)
        if found and life.on[found].leaving:
            self.leave_out(found)
        return found

    def waits_for(self, life: Life, mode: int) -> bool:
        """A copy to the first tier on which the plan counts by now."""
        return self.place(life, mode) != 0 and any(
            copy.target == 0 and copy.due <= self.tick for copy in self.copies_of(life) if not copy.waste
        )

    # -- commands

    def issue(self, command: Command) -> None:
        life = self.lives.get(command.storage)
        if life is None:
            return
        source = self.tier[command.source]
        if command.verb is Verb.DROP:
            others = [tier for tier in life.valid() if tier != source and not life.on[tier].leaving]
            if source in life.on and life.on[source].valid and (others or self.reading(life, source)):
                life.on[source].leaving = True
                self.leave(life, source)
            return
        assert command.target is not None
        target = self.tier[command.target]
        due = self.tick + (command.due - command.at) % self.n_ticks
        if self.is_done(life, target, due):
            return
        if target == 0 and target in life.on:
            life.back = due if life.back is None else min(life.back, due)
            return
        if command.verb is Verb.EVICT:
            if source not in life.on or not life.on[source].valid:
                return
            if self.room_left(target) < life.nbytes:
                slower = [tier for tier in range(source + 1, len(self.used)) if self.room_left(tier) >= life.nbytes]
                target = slower[0] if slower else target
                if self.is_done(life, target, due):
                    return
        elif not (source in life.on and life.on[source].valid):
            source = next((tier for tier in life.valid() if self.link(tier, target)), source)
        self.enqueue(Copy(life, self.link(source, target), source, target, due))

    def is_done(self, life: Life, target: int, due: int) -> bool:
        """Or under way."""
        coming = [copy for copy in self.copies_of(life) if copy.target == target and not copy.waste]
        for copy in coming:
            copy.due = min(copy.due, due)
        known = life.on.get(target)
        if known and (coming or known.valid):
            known.leaving = False
        return bool(coming) or (known is not None and known.valid)

    def room_left(self, tier: int) -> int:
        """What nobody has claimed, less what copies on their way will claim."""
        coming = (copy for copy in self.copies() if copy.target == tier and not copy.waste)
        return self.free(tier) - sum(copy.life.nbytes - copy.claimed for copy in coming)

    def leave(self, life: Life, tier: int) -> None:
        """Gives up what a DROP asked for, as far as it can go by now."""
        replica = life.on.get(tier)
        if replica is None or not replica.leaving:
            return
        if self.reading(life, tier):
            return
        if any(other != tier for other in life.valid()):
            self.vanish(life, tier)
            if tier == 0:
                self.come_back(life)
        else:
            replica.leaving = False

    def reading(self, life: Life, tier: int) -> list[Copy]:
        return [copy for copy in self.copies_of(life) if copy.source == tier and not copy.waste]

    def come_back(self, life: Life) -> None:
        """What had begun to leave when a FETCH came, and is not asked for on demand."""
        if life.back is not None and not life.missed:
            source = min(life.valid())
            self.leave_out(source)
            self.enqueue(Copy(life, self.link(source, 0), source, 0, life.back))
        life.back = None

    # -- copies

    def enqueue(self, copy: Copy) -> None:
        copy.wait_ns = Fraction(copy.link.latency_ns)
        self.queues[copy.link.name].append(copy)

    def first_in(self, link: Link) -> Copy | None:
        """By the page an urgent copy waits for one chunk at most. In the simulator it waits for all of that copy."""
        queue = self.queues[link.name]
        first = next((copy for copy in queue if self.urgent(copy)), queue[0] if queue else None)
        if first and first is not queue[0] and queue[0].done:
            raise Unsaid("an urgent copy overtakes one that has begun")
        return first

    def urgent(self, copy: Copy) -> bool:
        return copy.demand or self.of_tick_at_hand(copy)

    def of_tick_at_hand(self, copy: Copy) -> bool:
        return any(life is copy.life for life, _ in self.lacking())

    def link_begins(self, link: Link) -> bool:
        if any(copy.under_way for copy in self.queues[link.name]):
            return False
        copy = self.first_in(link)
        if copy is None:
            return False
        source, target = copy.life.on.get(copy.source), copy.life.on.get(copy.target)
        if not copy.done and (source is None or not source.valid or target is not None):
            return False
        nbytes = self.chunk_of(copy)
        if self.free(copy.target) - self.held_back(copy) < nbytes:
            if self.of_tick_at_hand(copy) and copy.target == 0:
                self.short_of_room()
            return False
        copy.life.on.setdefault(copy.target, Replica())
        self.take(copy.life, copy.target, nbytes)
        copy.claimed += nbytes
        copy.chunk, copy.under_way = Fraction(nbytes), True
        return True

    def chunk_of(self, copy: Copy) -> int:
        rest = copy.life.nbytes - copy.done
        return min(rest, self.machine.chunk_bytes or rest)

    def held_back(self, copy: Copy) -> int:
        """What is about to be born, and what the tick at hand uses, goes before all others in the first tier."""
        return 0 if copy.target or self.of_tick_at_hand(copy) else self.wanted()

    def wanted(self) -> int:
        """In the first tier, by the tick at hand."""
        born = sum(life.nbytes for life, tier in self.births if tier == 0)
        copies = (copy for copy in self.copies() if copy.target == 0 and self.of_tick_at_hand(copy))
        return born + sum(copy.life.nbytes - copy.claimed for copy in copies)

    def end_chunk(self, copy: Copy) -> None:
        queue, life = self.queues[copy.link.name], copy.life
        copy.under_way = False
        nbytes = copy.claimed - copy.done
        self.report.moved[copy.link.name] = self.report.moved.get(copy.link.name, 0) + nbytes
        copy.done = copy.claimed
        if not copy.waste and copy.done < life.nbytes:
            source = life.on[copy.source]
            if source.leaving and self.reading(life, copy.source) == [copy]:
                source.valid = False
                self.take(life, copy.source, -min(nbytes, source.reserved))
            return
        queue.remove(copy)
        if copy.waste:
            self.vanish(life, copy.target)
            return
        life.on[copy.target].valid = True
        self.leave(life, copy.source)
        self.ask_on_demand()

    def write(self, life: Life, tier: int | None) -> None:
        self.forget(life, {tier})

    def die(self, life: Life) -> None:
        self.forget(life, set())
        del self.lives[life.number]

    def forget(self, life: Life, kept: set[int | None]) -> None:
        for copy in self.copies_of(life):
            copy.waste = True
            if not copy.under_way:
                self.queues[copy.link.name].remove(copy)
        arriving = {copy.target for copy in self.copies_of(life)}
        for tier in set(life.on) - kept - arriving:
            self.vanish(life, tier)
        for tier in kept & set(life.on):
            life.on[tier].leaving = False

    # -- bytes and rates

    def copies(self) -> list[Copy]:
        return [copy for queue in self.queues.values() for copy in queue]

    def copies_of(self, life: Life) -> list[Copy]:
        return [copy for copy in self.copies() if copy.life is life]

    def link(self, source: int, target: int) -> Link:
        tiers = self.machine.tiers
        return self.machine.link(tiers[source].name, tiers[target].name)

    def free(self, tier: int) -> int:
        capacity = self.machine.tiers[tier].capacity_bytes
        return 2**62 if capacity is None else capacity - self.used[tier]

    def take(self, life: Life, tier: int, nbytes: int) -> None:
        life.on[tier].reserved += nbytes
        self.used[tier] += nbytes
        if self.report.peak:
            self.report.peak[tier] = max(self.report.peak[tier], self.used[tier])

    def vanish(self, life: Life, tier: int) -> None:
        self.take(life, tier, -life.on[tier].reserved)
        del life.on[tier]

    def carrying(self) -> list[Link]:
        busy = {copy.link.name for copy in self.copies() if copy.under_way and not copy.wait_ns}
        return [link for link in self.machine.links if link.name in busy]

    def rates(self) -> dict[str, Fraction]:
        """Bytes per ns."""
        rates = {link.name: Fraction(link.bytes_per_s, 10**9) for link in self.machine.links}
        for group in self.machine.groups:
            links = [link for link in self.carrying() if link.shares == group.name]
            total, left = sum(rates[link.name] for link in links), Fraction(group.bytes_per_s, 10**9)
            if total <= left:
                continue
            share = left / total
            for link in links:
                if self.is_fair(group.sharing):
                    rates[link.name] *= share
                else:
                    rates[link.name] = min(rates[link.name], left)
                    left -= rates[link.name]
        return rates

    def is_fair(self, sharing: Sharing) -> bool:
        return sharing is Sharing.FAIR

    def slowness(self) -> Fraction:
        busy = {copy.link.name for copy in self.copies() if copy.under_way}
        return 1 + sum((Fraction(link.slows_compute) for link in self.machine.links if link.name in busy), Fraction(0))
