"""A second simulator, written from docs/simulator.md by somebody who had not read the engine.

It goes from moment to moment in exact fractions and asks at each one who may go on, in the page's own words. It knows
schedules, not policies, and stops with ``Unsaid`` where room is short. Its callers leave out scratch, tiers that pack,
exclusive machines, pages, and operands whose cost was measured.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ebbtide.ir.machine import Link, Machine, Sharing
from ebbtide.ir.native import Verb
from ebbtide.ir.trace import Access, Trace
from tests.helpers.schedules import Begin, Command


class Unsaid(Exception):
    """The clock comes to a case that it leaves out."""


@dataclass(eq=False)
class Life:
    """One generation of a storage. Tiers are numbers."""

    number: int
    nbytes: int
    reserved: Counter[int] = field(default_factory=Counter)  # bytes by tier
    valid: set[int] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)  # a DROP came
    back: int | None = None  # a FETCH came when it was half gone; when that is due


@dataclass(eq=False)
class Copy:
    life: Life
    link: Link
    source: int
    target: int
    due: int  # counted in ticks from the very beginning
    demand: bool = False
    wait_ns: Fraction = Fraction(0)  # of the latency
    chunk: Fraction | None = None  # bytes to go of the one under way
    claimed: int = 0
    done: int = 0
    gone: int = 0  # from the source
    waste: bool = False


class Report:
    """Of the last step: times are ns."""

    def __init__(self, used: Counter[int]) -> None:
        self.start: list[Fraction] = []
        self.stall: list[Fraction] = []
        self.causes: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()  # bytes by link
        self.area: Counter[int] = Counter()  # by tier
        self.peak = Counter(used)
        self.n_uses = self.hits = self.demand_fetches = self.demand_bytes = 0
        self.slower = Fraction(0)


class SlowClock:
    """Methods are the page's rules, so that a test can break one of them."""

    def __init__(self, commands: Sequence[Command], begins: Sequence[Begin], trace: Trace, machine: Machine) -> None:
        self.machine, self.storages, self.times = machine, list(trace.storages), trace.ticks.time_ns.tolist()
        self.tier = {tier.name: at for at, tier in enumerate(machine.tiers)}
        self.n_ticks = len(self.times)
        self.now = self.began = self.reached = self.work = Fraction(0)  # the last: ns to go of the operation
        self.tick = -1  # from the very beginning
        self.waiting = self.is_set = False
        self.lives: dict[int, Life] = {}
        self.elders: dict[int, list[Life]] = defaultdict(list)  # the oldest first
        self.births: list[Life] = []  # that have no room yet
        self.uses: list[tuple[Life, int]] = []  # of the tick at hand, with modes
        self.copies: list[Copy] = []  # a link's queue is those on it
        self.used: Counter[int] = Counter()
        self.report = Report(self.used)
        self.begins: dict[int, list[int]] = defaultdict(list)
        for begin in begins:
            self.begins[begin.storage].append(self.tier[begin.tier])
        self.commands: dict[int, list[Command]] = defaultdict(list)
        for command in commands:
            self.commands[command.at].append(command)
        self.accesses: dict[int, list[tuple[int, int]]] = defaultdict(list)
        rows = trace.accesses
        for number, tick, mode in zip(rows.storage.tolist(), rows.tick.tolist(), rows.mode.tolist(), strict=True):
            if tick < self.storages[number].birth + self.n_ticks:  # not by an elder
                self.accesses[tick % self.n_ticks].append((number, mode))

    # -- the run

    def run(self, n_steps: int = 3) -> Report:
        self.end = n_steps * self.n_ticks
        for number, row in enumerate(self.storages):
            for _ in range(1 if row.persistent else row.death // self.n_ticks):
                if number in self.lives:
                    self.grow_old(self.lives[number])
                life = self.lives[number] = Life(number, row.nbytes)
                for tier in self.begins[number] if row.persistent else [self.where_it_went(number)]:
                    if self.free(tier) < row.nbytes:
                        raise Unsaid("too much at the beginning")
                    self.put(life, tier)
        self.next_tick()
        while self.tick < self.end:
            if not self.anything_happens():
                self.let_time_pass()
        return self.report

    def where_it_went(self, number: int) -> int:
        """Born in the step before the first: the tier to which it had been evicted by the end of that step."""
        at, first = [next(iter(self.begins[number]), 0)] * 2
        evicted = None
        for row in (
            row for tick in range(self.storages[number].birth + 1, self.n_ticks) for row in self.commands[tick]
        ):
            target = self.tier.get(row.target or "")
            if row.storage == number and row.verb is Verb.FETCH and target == 0:
                at = first
            elif row.storage == number and self.tier[row.source] == 0:
                at = at if row.verb is Verb.EVICT or evicted is None else evicted
                evicted = target if row.verb is Verb.EVICT else evicted
        return at

    def anything_happens(self) -> bool:
        """Does one thing that is due at this moment."""
        for copy in self.copies:
            if copy.chunk == 0 and not copy.wait_ns:
                self.end_chunk(copy)
                return True
        if self.waiting and (self.tick_is_set() or self.birth_claims()):
            return True
        if any(self.link_begins(link) for link in self.machine.links):
            return True
        if self.waiting:
            return self.operation_begins()
        if not self.work:
            self.next_tick()
        return not self.work

    def let_time_pass(self) -> None:
        """To the next moment at which something may happen."""
        under_way, rates, slow = [copy for copy in self.copies if copy.chunk], self.rates(), self.slowness()
        ends = [copy.wait_ns or copy.chunk / rates[copy.link.name] for copy in under_way if rates[copy.link.name]]
        ends += [] if self.waiting else [self.work * slow]
        if self.waiting:
            self.ask_for_room()
        if not ends:
            raise Unsaid("nothing can go on")
        dt = min(ends)
        for copy in under_way:
            if copy.wait_ns:
                copy.wait_ns -= dt
            else:
                copy.chunk -= rates[copy.link.name] * dt
        if self.waiting:
            self.report.causes[self.kind_of_stall()] += dt
        else:
            self.work -= dt / slow
        for tier, nbytes in self.used.items():
            self.report.area[tier] += nbytes * dt
        self.now += dt

    # -- ticks

    def next_tick(self) -> None:
        self.tick += 1
        at, self.uses = self.tick % self.n_ticks, []
        if at == 0 and self.tick < self.end:
            self.report, self.began = Report(self.used), self.now
        self.report.start.append(self.now - self.began)
        if self.tick == self.end:
            return
        self.waiting, self.is_set, self.reached = True, False, self.now
        for number, row in enumerate(self.storages):
            if not row.persistent and row.death % self.n_ticks == at and (self.elders[number] or number in self.lives):
                self.keep_only(self.elders[number].pop(0) if self.elders[number] else self.lives.pop(number), None)
        for command in self.commands[at]:
            if command.storage in self.lives:
                self.issue(command, self.lives[command.storage])

    def tick_is_set(self) -> bool:
        """Once predecessors have left the first tier that were about to, births take their places."""
        at = self.tick % self.n_ticks
        born = [number for number, row in enumerate(self.storages) if not row.persistent and row.birth == at]
        old = [self.lives[number] for number in born if number in self.lives]
        if self.is_set or any(0 in life.leaving for life in old):
            return False
        self.is_set = True
        for life in old:
            self.grow_old(life)
        for number in born:
            life = self.lives[number] = Life(number, self.storages[number].nbytes)
            tier = next(iter(self.begins[number]), 0)
            if tier and self.room_left(tier) >= life.nbytes:
                self.put(life, tier)
            else:
                self.births.append(life)
        self.uses = [(self.lives[number], mode) for number, mode in self.accesses[at] if number in self.lives]
        existed = [(life, mode) for life, mode in self.uses if life.number not in born]
        self.report.n_uses += len(existed)
        self.report.hits += sum(not self.lacks(life, mode) for life, mode in existed)
        self.ask_on_demand()
        return True

    def place(self, life: Life, mode: int) -> int | None:
        return min(self.places(life, mode), default=None)

    def places(self, life: Life, mode: int) -> list[int]:
        tiers = self.machine.tiers
        return [
            at for at in life.valid if (tiers[at].in_place.writes if mode & Access.WRITE else tiers[at].in_place.reads)
        ]

    def lacks(self, life: Life, mode: int) -> bool:
        """It is not there, or the plan counts by now on a copy to the first tier."""
        place = self.place(life, mode)
        if place is None:
            return life not in self.births
        return place != 0 and any(copy.due <= self.tick for copy in self.copies_of(life, target=0))

    def lacking(self) -> list[Life]:
        return [life for life, mode in self.uses if self.waiting and self.lacks(life, mode)]

    def ask_on_demand(self) -> None:
        """For all that the tick at hand lacks, but for what is on its way, or half gone."""
        for life in self.lacking():
            source = min(life.valid, default=0)
            if source and not life.reserved[0] and source not in life.leaving and not self.copies_of(life, target=0):
                self.enqueue(Copy(life, self.link(source, 0), source, 0, self.tick, demand=True))
                self.report.demand_fetches += 1
                self.report.demand_bytes += life.nbytes

    def kind_of_stall(self) -> str:
        copies = [copy for life in self.lacking() for copy in self.copies_of(life)]
        return "demand" if any(copy.demand for copy in copies) else "late" if self.lacking() else "room"

    def birth_claims(self) -> bool:
        if not self.births or self.free(0) < self.births[0].nbytes:
            return False
        self.put(self.births.pop(0), 0)
        return True

    def ask_for_room(self) -> None:
        leaving = sum(life.reserved[0] for life in self.lives.values() if 0 in life.leaving)
        if self.free(0) + leaving < self.wanted():
            raise Unsaid("short of room")

    def operation_begins(self) -> bool:
        if not self.is_set or self.births or self.lacking():
            return False
        self.report.stall.append(self.now - self.reached)
        self.waiting, self.work = False, self.operation_ns()
        for life, mode in self.uses:
            if mode & Access.WRITE:
                self.write(life, self.place(life, mode))
        return True

    def operation_ns(self) -> Fraction:
        """What operands in place cost: docs/format.md, Operations in place."""
        here = Fraction(self.times[self.tick % self.n_ticks])
        moving, longer = Fraction(0), Counter[int | None]()
        for life, mode in self.uses:
            for access in (access for access in (Access.READ, Access.WRITE) if mode & access):
                first, place = life.nbytes * self.ns_per_byte(0, access), self.place(life, mode)
                longer[place] += life.nbytes * self.ns_per_byte(place, access) - first
                moving += first
        extra = sum(max(ns, Fraction(0)) for ns in longer.values())
        slower = max(extra - Fraction(self.machine.compute.overlap) * max(here - moving, Fraction(0)), Fraction(0))
        self.report.slower += slower
        return here + slower

    def ns_per_byte(self, tier: int | None, access: Access) -> Fraction:
        row = self.machine.tiers[tier or 0]
        rate = (row.write_bytes_per_s if access is Access.WRITE else None) or row.bytes_per_s
        return Fraction(10**9, rate) if rate else Fraction(0)

    # -- commands

    def issue(self, command: Command, life: Life) -> None:
        source = self.tier[command.source]
        if command.verb is Verb.DROP:
            if source in life.valid and (life.valid - life.leaving - {source} or self.copies_of(life, source=source)):
                life.leaving.add(source)
                self.leave(life, source)
            return
        target = self.tier[str(command.target)]
        due = self.tick + (command.due - command.at) % self.n_ticks
        if self.is_done(life, target, due):
            return
        if life.reserved[target] or not life.valid:  # half gone
            if target == 0 and self.copies_of(life):
                life.back = min(due, life.back or due)
            return
        if source not in life.valid:
            if command.verb is Verb.EVICT:
                return
            source = min(life.valid)
        if command.verb is Verb.EVICT and self.room_left(target) < life.nbytes:
            slower = range(source + 1, len(self.tier))
            target = next((tier for tier in slower if self.room_left(tier) >= life.nbytes), target)
            if self.is_done(life, target, due):
                return
        self.enqueue(Copy(life, self.link(source, target), source, target, due))

    def is_done(self, life: Life, target: int, due: int) -> bool:
        """Or under way."""
        coming = self.copies_of(life, target=target)
        for copy in coming:
            copy.due = min(copy.due, due)
        life.leaving -= {target} & life.valid
        return bool(coming) or target in life.valid

    def leave(self, life: Life, tier: int) -> None:
        """Gives up what a DROP asked for, if it can go by now."""
        if tier not in life.leaving or self.copies_of(life, source=tier):
            return
        life.leaving.remove(tier)
        if life.valid != {tier} and not self.is_held(life, tier):
            self.give_up(life, tier)

    def is_held(self, life: Life, tier: int) -> bool:
        """The tick at hand can use it there alone."""
        return any(used is life and self.places(life, mode) == [tier] for used, mode in self.uses)

    # -- copies

    def enqueue(self, copy: Copy) -> None:
        copy.wait_ns = Fraction(copy.link.latency_ns)
        self.copies.append(copy)

    def urgent(self, copy: Copy) -> bool:
        return copy.demand or copy.life in self.lacking()

    def link_begins(self, link: Link) -> bool:
        queue = self.on(link)
        if not queue or any(copy.chunk is not None for copy in queue):
            return False
        copy = next((copy for copy in queue if self.urgent(copy)), queue[0])
        nbytes = self.chunk_of(copy)
        before = self.wanted() if copy.target == 0 and copy.life not in self.lacking() else 0
        if self.free(copy.target) - before < nbytes:
            return False
        self.take(copy.life, copy.target, nbytes)
        copy.claimed += nbytes
        copy.chunk = Fraction(nbytes)
        return True

    def chunk_of(self, copy: Copy) -> int:
        rest = copy.life.nbytes - copy.done
        return min(rest, self.machine.chunk_bytes or rest)

    def wanted(self) -> int:
        """In the first tier, by the tick at hand: it claims room before all others."""
        lacking = list(dict.fromkeys(self.lacking()))
        coming = sum(copy.claimed for life in lacking for copy in self.copies_of(life, target=0))
        return sum(life.nbytes for life in self.births + lacking) - coming

    def end_chunk(self, copy: Copy) -> None:
        life, source, nbytes = copy.life, copy.source, copy.claimed - copy.done
        copy.chunk, copy.done = None, copy.claimed
        self.report.moved[copy.link.name] += nbytes
        if copy.done < life.nbytes and not copy.waste:
            leaves = source in life.leaving and not self.is_held(life, source)
            if leaves and self.copies_of(life, source=source) == [copy]:
                life.valid -= {source}
                self.take(life, source, -nbytes)
                copy.gone += nbytes
            return
        self.copies.remove(copy)
        if copy.waste:
            self.give_up(life, copy.target)
            return
        life.valid.add(copy.target)
        self.leave(life, source)
        if life.back is not None:
            self.enqueue(Copy(life, self.link(copy.target, 0), copy.target, 0, life.back))
            life.back = None
        self.ask_on_demand()

    def cancel_copies(self, life: Life) -> None:
        """A chunk under way ends as waste. What is gone from the source stays where it went."""
        life.back = None
        for copy in self.copies_of(life):
            rest = copy.claimed - copy.gone
            self.take(life, copy.target, -rest)
            if copy.chunk is None:
                self.copies.remove(copy)
            else:
                copy.life, copy.waste = Life(life.number, life.nbytes), True
                self.take(copy.life, copy.target, rest)

    def write(self, life: Life, tier: int | None) -> None:
        self.keep_only(life, tier)

    def keep_only(self, life: Life, kept: int | None) -> None:
        """None: it dies."""
        self.cancel_copies(life)
        life.leaving.clear()
        for tier in set(life.reserved) - {kept}:
            self.give_up(life, tier)

    def grow_old(self, life: Life) -> None:
        self.cancel_copies(life)
        life.leaving.clear()
        self.elders[life.number].append(self.lives.pop(life.number))

    # -- bytes and rates

    def on(self, link: Link) -> list[Copy]:
        return [copy for copy in self.copies if copy.link is link]

    def copies_of(self, life: Life, source: int | None = None, target: int | None = None) -> list[Copy]:
        """Of a life; from a tier or to one, if asked."""
        found = [copy for copy in self.copies if copy.life is life]
        return [copy for copy in found if source in (None, copy.source) and target in (None, copy.target)]

    def link(self, source: int, target: int) -> Link:
        return self.machine.link(self.machine.tiers[source].name, self.machine.tiers[target].name)

    def free(self, tier: int) -> int:
        capacity = self.machine.tiers[tier].capacity_bytes
        return 2**62 if capacity is None else capacity - self.used[tier]

    def room_left(self, tier: int) -> int:
        """What nobody has claimed, less what copies on their way will claim."""
        coming = [copy for copy in self.copies if copy.target == tier and not copy.waste]
        return self.free(tier) - sum(copy.life.nbytes - copy.claimed for copy in coming)

    def put(self, life: Life, tier: int) -> None:
        life.valid.add(tier)
        self.take(life, tier, life.nbytes)

    def take(self, life: Life, tier: int, nbytes: int) -> None:
        life.reserved[tier] += nbytes
        self.used[tier] += nbytes
        self.report.peak[tier] = max(self.report.peak[tier], self.used[tier])

    def give_up(self, life: Life, tier: int) -> None:
        life.valid -= {tier}
        self.take(life, tier, -life.reserved[tier])

    def carrying(self) -> list[Link]:
        return [link for link in self.machine.links if any(row.chunk and not row.wait_ns for row in self.on(link))]

    def rates(self) -> dict[str, Fraction]:
        """Bytes per ns."""
        rates = {link.name: Fraction(self.alone(link), 10**9) for link in self.machine.links}
        for group in self.machine.groups:
            links, left = (
                [link for link in self.carrying() if link.shares == group.name],
                Fraction(group.bytes_per_s, 10**9),
            )
            wanted = sum(rates[link.name] for link in links)
            if wanted <= left:
                continue
            share = left / wanted
            for link in links:
                rates[link.name] = (
                    rates[link.name] * share if self.is_fair(group.sharing) else min(rates[link.name], left)
                )
                left -= rates[link.name]
        return rates

    def alone(self, link: Link) -> int:
        return link.bytes_per_s if self.waiting or link.beside_bytes_per_s is None else link.beside_bytes_per_s

    def is_fair(self, sharing: Sharing) -> bool:
        return sharing is Sharing.FAIR

    def slowness(self) -> Fraction:
        busy = [link for link in self.machine.links if any(copy.chunk is not None for copy in self.on(link))]
        return 1 + sum((Fraction(link.slows_compute) for link in busy), Fraction(0))
