"""Links as fluids: each carries one copy at a time, in order, and those of a group share its bandwidth.

A copy takes its link's latency, in which it uses no bandwidth, and then n bytes at the link's rate. While the links
of a group that carry bytes could together move more than the group allows, all of them slow down in proportion.
Time is a float of ns. Left out: bandwidth by block size, and seeks between the copies of one link.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from ebbtide.ir.machine import Link, Machine

_SOON_NS, _FEW_BYTES = 1e-3, 0.5
"""What rounding may leave of a copy that has ended."""


@dataclass(slots=True, eq=False)
class Copy:
    """A storage's bytes on their way over a link; ``done`` is called when they have arrived."""

    storage: int
    nbytes: int
    done: Callable[["Copy"], None]
    began: float = 0.0


class _Lane:
    """A link, its queue and the copy under way: first ``latency_left`` ns, then ``bytes_left``."""

    __slots__ = ("bytes_left", "copy", "group", "latency_left", "link", "moved", "queue", "rate", "speed")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.speed = link.bytes_per_s / 1e9  # bytes per ns, alone
        self.group: int | None = None
        self.queue: deque[Copy] = deque()
        self.copy: Copy | None = None
        self.latency_left = 0.0
        self.bytes_left = 0.0
        self.rate = 0.0
        self.moved = 0


class Links:
    """All links of a machine and their clock. ``next_end`` is when the next of them changes by itself."""

    def __init__(self, machine: Machine) -> None:
        groups = {group.name: place for place, group in enumerate(machine.groups)}
        self._limits = [group.bytes_per_s / 1e9 for group in machine.groups]
        self._lanes = {(link.source, link.target): _Lane(link) for link in machine.links}
        for lane in self._lanes.values():
            lane.group = None if lane.link.shares is None else groups[lane.link.shares]
        self._busy: list[_Lane] = []
        self._since = 0.0
        self.next_end = inf
        self.slowdown = 1.0
        """By what factor operations take longer now."""
        self.finished: Callable[[str, Copy, float], None] | None = None
        """Told of each copy that ends: the link's name, the copy, when."""

    @property
    def idle(self) -> bool:
        return not self._busy

    def between(self, source: str, target: str) -> bool:
        return (source, target) in self._lanes

    def moved_bytes(self) -> dict[str, int]:
        """So far, by the link's name; links that moved nothing are left out."""
        return {lane.link.name: lane.moved for lane in self._lanes.values() if lane.moved}

    def put(self, source: str, target: str, copy: Copy, now: float) -> None:
        """Queues a copy; the clock MUST have been brought to ``now``."""
        lane = self._lanes[source, target]
        lane.queue.append(copy)
        if lane.copy is None:
            self._progress(now)
            self._begin(lane, now)
            self._share()

    def advance(self, now: float) -> None:
        """Brings the clock to ``now``, which is not past ``next_end``; copies that end are done."""
        self._progress(now)
        ended: list[_Lane] = []
        for lane in self._busy:
            if lane.latency_left <= _SOON_NS and lane.bytes_left <= _FEW_BYTES:
                ended.append(lane)
        arrived: list[Copy] = []
        for lane in ended:
            copy = lane.copy
            assert copy is not None
            lane.moved += copy.nbytes
            if self.finished is not None:
                self.finished(lane.link.name, copy, now)
            self._busy.remove(lane)
            lane.copy = None
            arrived.append(copy)
            if lane.queue:
                self._begin(lane, now)
        self._share()
        for copy in arrived:
            copy.done(copy)

    def _begin(self, lane: _Lane, now: float) -> None:
        copy = lane.queue.popleft()
        copy.began = now
        lane.copy, lane.latency_left, lane.bytes_left = copy, float(lane.link.latency_ns), float(copy.nbytes)
        self._busy.append(lane)

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
        wanted = [0.0] * len(self._limits)
        for lane in self._busy:
            if lane.group is not None and lane.latency_left <= _SOON_NS:
                wanted[lane.group] += lane.speed
        self.next_end, slows = inf, 0.0
        for lane in self._busy:
            slows += lane.link.slows_compute
            if lane.latency_left > _SOON_NS:
                left = lane.latency_left
            else:
                lane.rate = lane.speed
                if lane.group is not None and wanted[lane.group] > self._limits[lane.group]:
                    lane.rate *= self._limits[lane.group] / wanted[lane.group]
                left = max(lane.bytes_left, 0.0) / lane.rate
            self.next_end = min(self.next_end, self._since + left)
        self.slowdown = 1.0 + slows
