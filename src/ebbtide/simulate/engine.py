"""Runs a schedule on a virtual clock, as the runtime does. Times are exact for the model, which is:

- Ticks run in order. Commands are issued when compute reaches their tick, in the schedule's order.
- EVICT queues a copy. DROP gives up the room once the copies from there are done.
- FETCH waits, in order, for room in the fast tier, then for its link. What a tick gives birth to goes first.
- A tick begins when all storages that it accesses are valid in the fast tier and all that is born in it has room.
- A storage that is absent although no command fetches it is fetched at once, before all that wait: a demand fetch.
- If compute waits and nothing is under way that could help, the safety net evicts the storage whose next use is the
  farthest.
- Links are those of ``links``. A busy link stretches ticks by its ``slows_compute``.

Steps repeat. Persistent storages begin where their first command finds them, or in the fast tier, and what is too much
there leaves before the first tick; what no tick uses is elsewhere. The last of ``n_steps`` is reported.

Left out: room on slow tiers, operations that work in place on them, split storages (ValueError), commands for storages
that live for longer than a step (ValueError), places on the clock within a tick, and the runtime's own costs.
"""

from bisect import bisect_right
from collections import deque
from math import inf

import numpy as np

from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import PageSize, exact, paged_bytes
from ebbtide.ir.schedule import Command, Schedule, Verb
from ebbtide.ir.timeline import COMPUTE_LANE, Level, Span, SpanKind
from ebbtide.ir.trace import Access, Trace
from ebbtide.simulate.links import Copy, Links
from ebbtide.simulate.result import Outcome

_ABSENT, _COMING, _VALID = range(3)
"""Of a storage in the fast tier: no room there; room, but a fetch is queued or under way; room and contents."""


def simulate(
    schedule: Schedule,
    trace: Trace,
    machine: Machine,
    page_bytes: PageSize = exact,
    n_steps: int = 3,
    record: bool = False,
) -> Outcome:
    """The steady step under ``schedule``. The budget is the first tier's capacity (``machine.with_budget``).

    ``record`` asks for spans and levels. ValueError if a tick's storages do not fit the budget together.
    """
    run = _Run(schedule, trace, machine, page_bytes)
    for step in range(n_steps):
        run.step(record=record and step == n_steps - 1)
    return run.outcome()


class _Run:
    def __init__(self, schedule: Schedule, trace: Trace, machine: Machine, page_bytes: PageSize) -> None:
        n_ticks, rows = len(trace.ticks), trace.accesses
        self.trace = trace
        self.fast = machine.tiers[0].name
        self.slower = [tier.name for tier in machine.tiers[1:]]
        self.room = [paged_bytes(trace, at, 0, row.nbytes, page_bytes) for at, row in enumerate(trace.storages)]
        self.times = [float(tick.time_ns) for tick in trace.ticks]
        self.commands: list[list[Command]] = [[] for _ in range(n_ticks)]
        self.births: list[list[int]] = [[] for _ in range(n_ticks)]
        self.deaths: list[list[int]] = [[] for _ in range(n_ticks)]
        self.uses: list[list[tuple[int, bool]]] = [[] for _ in range(n_ticks)]
        for storage, tick, mode in zip(rows.storage.tolist(), rows.tick.tolist(), rows.mode.tolist(), strict=True):
            self.uses[tick % n_ticks].append((storage, bool(mode & Access.WRITE)))
        # State of each storage. Of one that lives for longer than a step there is only room, not state.
        count = len(trace.storages)
        self.state = [_ABSENT] * count
        self.replica: list[str | None] = [None] * count  # the slow tier with valid contents
        self.leaving = [0] * count  # copies from the fast tier that are queued or under way
        self.dropping = [False] * count  # the room goes when ``leaving`` comes to 0
        self.demanded = [False] * count
        self.generation = [0] * count  # how often the storage has died
        self.capacity = machine.tiers[0].capacity_bytes
        self.free: float = inf if self.capacity is None else self.capacity
        self.waiting: deque[tuple[int, str]] = deque()  # fetches that wait for room, with where from
        self.unborn: deque[int] = deque()
        self.links = Links(machine)
        self.now = 0.0
        self.spans: list[Span] | None = None
        self.levels: list[Level] = []
        self._place(schedule)

    def _place(self, schedule: Schedule) -> None:
        """Sorts commands, births and deaths by tick, and puts persistent storages where their commands expect them."""
        n_ticks = len(self.trace.ticks)
        first: dict[int, Command] = {}
        used = set(self.trace.accesses.storage.tolist())
        reachable = [tier for tier in self.slower if self.links.between(tier, self.fast)]
        for command in schedule.commands:
            storage = self.trace.storages[command.storage]
            if (command.low, command.high) != (0, storage.nbytes):
                raise ValueError(f"storage {command.storage} is split, which the simulator does not model")
            if storage.death - storage.birth > n_ticks:
                raise ValueError(f"storage {command.storage} lives for longer than a step and has commands")
            self.commands[command.at.tick].append(command)
            if self.fast in (command.source, command.target):
                first.setdefault(command.storage, command)
        for number, storage in enumerate(self.trace.storages):
            if not storage.persistent:
                self.births[storage.birth].append(number)
                self.deaths[storage.death % n_ticks].append(number)
                if storage.death >= n_ticks:  # those of the steps before are there
                    self.free -= storage.death // n_ticks * self.room[number]
                    self.state[number] = _VALID
                continue
            begin = first.get(number)
            if begin is not None and begin.verb is Verb.FETCH:
                self.replica[number] = begin.source
            elif begin is None and not (number in used or storage.scratch) and self.free < inf and reachable:
                self.replica[number] = reachable[-1]
            else:
                self.state[number] = _VALID
                self.free -= self.room[number]
                if begin is not None and begin.verb is Verb.DROP:
                    self.replica[number] = self._source(number)

    # ---- one step ----------------------------------------------------------------------------------------------------

    def step(self, record: bool) -> None:
        n_ticks = len(self.times)
        self.began = self.now
        self.starts = [0.0] * (n_ticks + 1)
        self.stalls = [0.0] * n_ticks
        self.by_cause = dict.fromkeys((SpanKind.STALL_ROOM, SpanKind.STALL_LATE, SpanKind.STALL_DEMAND), 0.0)
        self.rescues = 0
        self.moved_before = self.links.moved_bytes()
        if record:
            self.spans = []
            self.links.finished = self._copied
            self._level()
        for tick in range(n_ticks):
            self.starts[tick] = self.now - self.began
            for number in self.deaths[tick]:
                self._die(number)
            for command in self.commands[tick]:
                self._issue(command)
            if self.births[tick]:
                self.unborn.extend(self.births[tick])
            if self.unborn or self.waiting:
                self._give_room()
            self._wait(tick)
            self._compute(tick)
            for number, writes in self.uses[tick]:
                if writes and self.replica[number] is not None:
                    self.replica[number] = None
        self.starts[n_ticks] = self.now - self.began

    def outcome(self) -> Outcome:
        moved = {
            name: nbytes - self.moved_before.get(name, 0)
            for name, nbytes in self.links.moved_bytes().items()
            if nbytes > self.moved_before.get(name, 0)
        }
        return Outcome(
            np.rint(self.starts).astype(np.int64),
            np.rint(self.stalls).astype(np.int64),
            {kind: round(spent) for kind, spent in self.by_cause.items()},
            moved,
            self.rescues,
            tuple(sorted(self.spans or (), key=lambda span: (span.start_ns, span.stop_ns))),
            tuple(self.levels),
        )

    def _compute(self, tick: int) -> None:
        began, work, links = self.now, self.times[tick], self.links
        while True:
            end = self.now + work * links.slowdown
            if end < links.next_end:
                self.now = end
                break
            work -= (links.next_end - self.now) / links.slowdown
            self._go_on()
            if work <= 0:
                break
        if self.spans is not None:
            self._span(COMPUTE_LANE, SpanKind.COMPUTE, began, self.now, tick)

    def _go_on(self) -> None:
        """To the next event of a link."""
        self.now = max(self.now, self.links.next_end)
        self.links.advance(self.now)

    def _wait(self, tick: int) -> None:
        """Until the tick may begin."""
        while (cause := self._cause(tick)) is not None:
            began = self.now
            if self.links.idle:
                self._rescue(tick)
                continue
            self._go_on()
            self.by_cause[cause] += self.now - began
            self.stalls[tick] += self.now - began
            if self.spans is not None:
                self._span(COMPUTE_LANE, cause, began, self.now, tick)

    def _cause(self, tick: int) -> SpanKind | None:
        """Why the tick cannot begin; fetches what nobody asked for."""
        cause = None
        for number, _ in self.uses[tick]:
            if self.state[number] == _VALID or number in self.unborn:
                continue
            if self.state[number] == _ABSENT and not any(number == waiting for waiting, _ in self.waiting):
                self.demanded[number] = True
                self.rescues += 1
                self.waiting.appendleft((number, self._source(number)))
                self._give_room()
                if self.state[number] == _VALID:
                    continue
            if cause is not SpanKind.STALL_DEMAND:
                cause = SpanKind.STALL_DEMAND if self.demanded[number] else SpanKind.STALL_LATE
        if cause is None and (self.unborn or self.free < 0):
            return SpanKind.STALL_ROOM
        return cause

    def _rescue(self, tick: int) -> None:
        """The safety net: compute waits for room that nothing will make."""
        used = {number for number, _ in self.uses[tick]} | set(self.births[tick])
        candidates = [
            (self._next_use(number, tick), self.room[number], -number)
            for number, state in enumerate(self.state)
            if state == _VALID and number not in used and not self.dropping[number] and self._may_leave(number)
        ]
        if not candidates:
            operator = self.trace.ticks[tick].operator
            raise ValueError(f"tick {tick} ({operator}) does not fit the budget with what cannot leave")
        victim = -max(candidates)[2]
        self.rescues += 1
        target = next(tier for tier in self.slower if self.links.between(self.fast, tier))
        if self.replica[victim] is None:
            self._evict(victim, self.fast, target)
        self._drop(victim)
        self._give_room()

    def _may_leave(self, number: int) -> bool:
        storage = self.trace.storages[number]
        return not storage.scratch and storage.death - storage.birth <= len(self.times)

    def _next_use(self, number: int, tick: int) -> int:
        """In ticks from now; a storage that is not used again comes after all others."""
        rows, n_ticks = self.trace.accesses, len(self.times)
        ticks = sorted(int(at) % n_ticks for at in rows.tick[rows.of(number)])
        if not ticks:
            return 2 * n_ticks
        place = bisect_right(ticks, tick)
        return ticks[place] - tick if place < len(ticks) else ticks[0] + n_ticks - tick

    # ---- commands ----------------------------------------------------------------------------------------------------

    def _issue(self, command: Command) -> None:
        number = command.storage
        if command.verb is Verb.FETCH:
            assert command.target is not None
            if self.dropping[number]:  # it has not left yet
                self.dropping[number] = False
            elif self.state[number] == _ABSENT and command.target == self.fast:
                self.waiting.append((number, command.source))
        elif command.verb is Verb.EVICT:
            assert command.target is not None
            if self.state[number] == _VALID and command.source == self.fast and self.replica[number] is None:
                self._evict(number, command.source, command.target)
        elif command.source == self.fast:
            if self.state[number] == _VALID and (self.leaving[number] or self.replica[number] is not None):
                self._drop(number)
        elif self.state[number] == _VALID and self.replica[number] == command.source:
            self.replica[number] = None

    def _evict(self, number: int, source: str, target: str) -> None:
        self.leaving[number] += 1

        generation = self.generation[number]

        def arrived(_copy: Copy) -> None:
            if self.generation[number] != generation:
                return
            self.leaving[number] -= 1
            self.replica[number] = target
            if self.dropping[number] and not self.leaving[number]:
                self._leave(number)

        self.links.put(source, target, Copy(number, self.trace.storages[number].nbytes, arrived), self.now)

    def _drop(self, number: int) -> None:
        self.dropping[number] = True
        if not self.leaving[number]:
            self._leave(number)

    def _leave(self, number: int) -> None:
        self.dropping[number] = False
        self.state[number] = _ABSENT
        self.free += self.room[number]
        self._level()
        self._give_room()

    def _die(self, number: int) -> None:
        """A storage's contents are gone; a copy under way ends unheard."""
        if self.trace.storages[number].death - self.trace.storages[number].birth > len(self.times):
            self.free += self.room[number]
            return
        if self.dropping[number]:
            self.dropping[number] = False
        if self.state[number] != _ABSENT:
            self.free += self.room[number]
        self.state[number], self.replica[number], self.demanded[number] = _ABSENT, None, False
        self.leaving[number] = 0
        self.generation[number] += 1
        if any(number == waiting for waiting, _ in self.waiting):
            self.waiting = deque(fetch for fetch in self.waiting if fetch[0] != number)
        self._level()

    def _source(self, number: int) -> str:
        """Where a demand fetch reads from; what was never written comes from the first tier with a link."""
        return self.replica[number] or next(tier for tier in self.slower if self.links.between(tier, self.fast))

    def _give_room(self) -> None:
        """First to what is born, then to fetches in order."""
        while self.unborn and self.room[self.unborn[0]] <= self.free:
            number = self.unborn.popleft()
            self.free -= self.room[number]
            self.state[number] = _VALID
            self._level()
        while self.waiting and not self.unborn and self.room[self.waiting[0][0]] <= self.free:
            number, source = self.waiting.popleft()
            self.free -= self.room[number]
            self.state[number] = _COMING
            self._level()
            self.links.put(source, self.fast, Copy(number, self.trace.storages[number].nbytes, self._fetched), self.now)

    def _fetched(self, copy: Copy) -> None:
        if self.state[copy.storage] == _COMING:
            self.state[copy.storage] = _VALID
            self.demanded[copy.storage] = False

    # ---- the record --------------------------------------------------------------------------------------------------

    def _span(self, lane: str, kind: SpanKind, start: float, stop: float, tick: int) -> None:
        low, high = round(start - self.began), round(stop - self.began)
        assert self.spans is not None
        if high > low:
            self.spans.append(Span(lane, kind, low, high, tick, label=self.trace.ticks[tick].operator))

    def _copied(self, lane: str, copy: Copy, now: float) -> None:
        kind = SpanKind.FETCH if lane.endswith(f"->{self.fast}") else SpanKind.EVICT
        low = max(round(copy.began - self.began), 0)
        assert self.spans is not None
        self.spans.append(Span(lane, kind, low, round(now - self.began), None, copy.storage, copy.nbytes))

    def _level(self) -> None:
        if self.spans is not None and self.capacity is not None:
            self.levels.append(Level(self.fast, round(self.now - self.began), round(self.capacity - self.free)))
