"""Links as fluids: each carries one copy at a time, in order, and those of a group share its bandwidth.

A copy takes its link's latency, in which it uses no bandwidth, and then n bytes at the link's rate, chunk by chunk. Its
first chunk begins when its receiver admits it, which takes the room, and so does every later one; until then those
behind it wait. While the links of a group that carry bytes could together move more than the group allows, they share
as the group's ``sharing`` says. Time is a float of ns. Left out: bandwidth by block size, and seeks between copies.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Protocol

from ebbtide.ir.machine import Link, Machine, Sharing

_SOON_NS = 1e-3
"""What rounding may leave of a chunk that has ended, as time at its rate."""


@dataclass(slots=True, eq=False)
class Copy:
    """A piece's bytes on their way between two tiers, by their ranks.

    ``left`` bytes are not there yet, ``chunk`` of them are on the link. ``due`` is the tick, counted from the first
    step on, at which the plan counts on them. ``taken`` is the room that the copy has on its target, ``freed`` what it
    has given up on its source. One that is ``dead`` ends with its chunk.
    """

    piece: int
    source: int
    target: int
    left: int
    due: int
    demanded: bool = False
    urgent: bool = False
    dead: bool = False
    chunk: int = 0
    taken: int = 0
    freed: int = 0
    began: float = -1.0

    @property
    def has_begun(self) -> bool:
        return self.began >= 0


class Receiver(Protocol):
    """Who keeps the state of the tiers. ``arrived`` is told of every chunk, with its bytes."""

    def admits(self, copy: Copy, nbytes: int) -> bool: ...

    def arrived(self, copy: Copy, nbytes: int) -> None: ...


class _Lane:
    """A link, its queue, whose first copy is the one under way, and what is left of that one's chunk."""

    __slots__ = ("busy", "bytes_left", "group", "latency_left", "link", "moved", "queue", "rate", "speed")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.speed = link.bytes_per_s / 1e9  # bytes per ns, alone
        self.group: int | None = None
        self.queue: deque[Copy] = deque()
        self.busy = False
        self.latency_left = 0.0
        self.bytes_left = 0.0
        self.rate = 0.0
        self.moved = 0


class Links:
    """All links of a machine and their clock. ``next_end`` is when the next of them changes by itself."""

    def __init__(self, machine: Machine, receiver: Receiver) -> None:
        groups = {group.name: place for place, group in enumerate(machine.groups)}
        self._limits = [group.bytes_per_s / 1e9 for group in machine.groups]
        self._in_order = [group.sharing is Sharing.IN_ORDER for group in machine.groups]
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._chunk = inf if machine.chunk_bytes is None else machine.chunk_bytes
        self._receiver = receiver
        for link in machine.links:
            lane = _Lane(link)
            lane.group = None if link.shares is None else groups[link.shares]
            self._lanes[machine.rank(link.source), machine.rank(link.target)] = lane
        self._all = list(self._lanes.values())
        self._busy: list[_Lane] = []
        self._n_copies = 0
        self._since = 0.0
        self.next_end = inf
        self.slowdown = 1.0
        """By what factor operations take longer now."""
        self.finished: Callable[[str, Copy, float], None] | None = None
        """Told of each copy that ends: the link's name, the copy, when."""

    @property
    def idle(self) -> bool:
        return not self._busy

    def between(self, source: int, target: int) -> bool:
        return (source, target) in self._lanes

    def moved_bytes(self) -> dict[str, int]:
        """So far, by the link's name; links that moved nothing are left out."""
        return {lane.link.name: lane.moved for lane in self._all if lane.moved}

    def heads(self) -> list[Copy]:
        """The copies that wait for room at the head of a link."""
        return [lane.queue[0] for lane in self._all if lane.queue and not lane.busy]

    def queued(self) -> list[Copy]:
        return [copy for lane in self._all for copy in lane.queue]

    def put(self, copy: Copy) -> None:
        """Queues a copy, one that is urgent before those that are not. ``start`` begins it."""
        lane = self._lanes[copy.source, copy.target]
        self._n_copies += 1
        if not copy.urgent:
            lane.queue.append(copy)
            return
        place = 0
        for waiting in lane.queue:
            if not waiting.chunk and not waiting.urgent:
                break
            place += 1
        lane.queue.insert(place, copy)

    def hurry(self, copy: Copy) -> None:
        """Moves a copy that waits to where ``put`` would put it if it were urgent."""
        if not copy.urgent:
            copy.urgent = True
            if not copy.chunk:
                self._take_out(copy)
                self.put(copy)

    def cancel(self, copy: Copy) -> None:
        """The copy ends unheard: at once if it is not under way."""
        copy.dead = True
        if not copy.chunk:
            self._take_out(copy)

    def _take_out(self, copy: Copy) -> None:
        self._lanes[copy.source, copy.target].queue.remove(copy)
        self._n_copies -= 1

    def start(self, now: float) -> None:
        """Begins what can begin. Callers MUST call it after tiers or queues changed, at the clock ``now``."""
        if self._n_copies == len(self._busy):
            return
        changed = False
        for lane in self._all:
            if lane.busy or not lane.queue:
                continue
            copy = lane.queue[0]
            nbytes = int(min(copy.left, self._chunk))
            if not self._receiver.admits(copy, nbytes):
                continue
            if not changed:
                self._progress(now)
                changed = True
            lane.latency_left = 0.0 if copy.has_begun else float(lane.link.latency_ns)
            lane.bytes_left = float(nbytes)
            lane.busy = True
            copy.chunk = nbytes
            if not copy.has_begun:
                copy.began = now
            self._busy.append(lane)
        if changed:
            self._share()

    def advance(self, now: float) -> None:
        """Brings the clock to ``now``, which is not past ``next_end``; chunks that end have arrived."""
        self._progress(now)
        ended = [
            lane for lane in self._busy if lane.latency_left <= _SOON_NS and lane.bytes_left <= lane.rate * _SOON_NS
        ]
        told: list[tuple[Copy, int]] = []
        for lane in ended:
            copy = lane.queue[0]
            nbytes, copy.chunk = copy.chunk, 0
            copy.left -= nbytes
            lane.moved += nbytes
            lane.busy = False
            self._busy.remove(lane)
            if not copy.left or copy.dead:
                lane.queue.popleft()
                self._n_copies -= 1
                if self.finished is not None:
                    self.finished(lane.link.name, copy, now)
            told.append((copy, nbytes))
        self._share()
        for copy, nbytes in told:
            self._receiver.arrived(copy, nbytes)
        self.start(now)

    def _progress(self, now: float) -> None:
        passed, self._since = now - self._since, now
        if passed <= 0:
            return
        for lane in self._busy:
            if lane.latency_left > _SOON_NS:
                lane.latency_left = max(lane.latency_left - passed, 0.0)
            else:
                lane.bytes_left -= passed * lane.rate

    def _share(self) -> None:
        """New rates, and when the first of the busy links changes under them."""
        self._set_rates()
        self.next_end, slows = inf, 0.0
        for lane in self._busy:
            slows += lane.link.slows_compute
            if lane.latency_left > _SOON_NS:
                self.next_end = min(self.next_end, self._since + lane.latency_left)
            elif lane.rate > 0:
                self.next_end = min(self.next_end, self._since + max(lane.bytes_left, 0.0) / lane.rate)
        self.slowdown = 1.0 + slows

    def _set_rates(self) -> None:
        flowing: list[list[_Lane]] = [[] for _ in self._limits]
        for lane in self._busy:
            lane.rate = lane.speed
            if lane.group is not None and lane.latency_left <= _SOON_NS:
                flowing[lane.group].append(lane)
        for group, lanes in enumerate(flowing):
            limit, wanted = self._limits[group], 0.0
            for lane in lanes:  # sum() would round otherwise, from Python 3.12 on
                wanted += lane.speed
            if wanted <= limit:
                continue
            if not self._in_order[group]:
                for lane in lanes:
                    lane.rate *= limit / wanted
                continue
            for lane in (lane for lane in self._all if lane in lanes):
                lane.rate = min(lane.speed, limit)
                limit -= lane.rate
