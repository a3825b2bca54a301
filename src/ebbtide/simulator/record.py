"""What a simulation notes while it runs: levels, stalls, spans, and counts of the step at hand."""

from typing import TYPE_CHECKING

from ebbtide.ir.machine import Machine
from ebbtide.ir.timeline import COMPUTE_LANE, Level, Span, SpanKind
from ebbtide.ir.trace import Trace
from ebbtide.simulator.pieces import Pieces
from ebbtide.simulator.result import STALLS, Figures, Outcome

if TYPE_CHECKING:
    from ebbtide.simulator.links import Copy, Links


class Record:
    """``used`` is the room taken on each tier, now. All else is of the step that ``begin`` began."""

    def __init__(self, trace: Trace, machine: Machine, pieces: Pieces) -> None:
        self._trace, self._machine, self._pieces = trace, machine, pieces
        self._names = [tier.name for tier in machine.tiers]
        self.used = [0] * len(machine.tiers)
        self._since = [0.0] * len(machine.tiers)
        self._area = [0.0] * len(machine.tiers)
        self._peak = [0] * len(machine.tiers)
        self._reads, self._writes = pieces.reads, pieces.writes
        self._is_kept = False
        self._began = 0.0

    def begin(self, now: float, links: "Links", is_kept: bool) -> None:
        """``is_kept`` asks for spans and levels."""
        n_tiers = len(self._machine.tiers)
        self._began, self._is_kept = now, is_kept
        self.starts = [0.0] * (len(self._trace.ticks) + 1)
        self.stalls = [0.0] * len(self._trace.ticks)
        self.by_cause = dict.fromkeys(STALLS, 0.0)
        self.rescues = self.demand_fetches = self.demand_bytes = self.n_uses = self.hits = 0
        self.slower_ns = 0.0
        self.slow_reads, self.slow_writes = [0] * n_tiers, [0] * n_tiers
        self.moved_before = links.moved_bytes()
        self.spans: list[Span] = []
        self.levels: list[Level] = []
        for rank in range(n_tiers):
            self._since[rank], self._area[rank], self._peak[rank] = now, 0.0, self.used[rank]
        if is_kept:
            links.finished = self._copied
            self.levels = [Level(name, 0, max(used, 0)) for name, used in zip(self._names, self.used, strict=True)]

    def end(self, now: float, links: "Links") -> None:
        self.starts[-1] = now - self._began
        for rank in range(len(self.used)):
            self.change(rank, 0, now)
        self.moved = {
            name: nbytes - self.moved_before.get(name, 0)
            for name, nbytes in links.moved_bytes().items()
            if nbytes > self.moved_before.get(name, 0)
        }

    def change(self, rank: int, nbytes: int, now: float) -> None:
        """The room taken on a tier."""
        used = self.used[rank]
        self._area[rank] += used * (now - self._since[rank])
        self._since[rank] = now
        self.used[rank] = used = used + nbytes
        if used > self._peak[rank]:
            self._peak[rank] = used
        if self._is_kept and nbytes:
            self.levels.append(Level(self._names[rank], round(now - self._began), max(used, 0)))

    def reach(self, tick: int, now: float) -> None:
        self.starts[tick] = now - self._began

    def uses(self, n_uses: int, n_missing: int) -> None:
        """Of what was there before its tick: how many were asked for, and how many of them could not be used yet."""
        self.n_uses += n_uses
        self.hits += n_uses - n_missing

    def rescue(self) -> None:
        self.rescues += 1

    def demand_fetch(self, nbytes: int) -> None:
        self.rescues += 1
        self.demand_fetches += 1
        self.demand_bytes += nbytes

    def operand_bytes(self, tick: int) -> tuple[int, int]:
        return self._reads[tick], self._writes[tick]

    def use_in_place(self, rank: int, reads: int, writes: int) -> None:
        self.slow_reads[rank] += reads
        self.slow_writes[rank] += writes

    def slower(self, by_ns: float) -> None:
        self.slower_ns += by_ns

    def stall(self, tick: int, cause: SpanKind, began: float, now: float) -> None:
        self.by_cause[cause] += now - began
        self.stalls[tick] += now - began
        self._span(cause, began, now, tick)

    def compute(self, tick: int, began: float, now: float) -> None:
        self._span(SpanKind.COMPUTE, began, now, tick)

    def figures(self) -> Figures:
        return Figures(
            self.starts,
            self.stalls,
            [self.by_cause[cause] for cause in STALLS],
            [self.moved.get(link.name, 0) for link in self._machine.links],
            self.rescues,
            self._area,
            self._peak,
            [sum(self._reads), *self.slow_reads[1:]],
            [sum(self._writes), *self.slow_writes[1:]],
            self.n_uses,
            self.hits,
            self.demand_fetches,
            self.demand_bytes,
            self.slower_ns,
        )

    def outcome(self) -> Outcome:
        """Raises SettingError for a machine on which the step takes longer than can be counted."""
        spans = tuple(sorted(self.spans, key=lambda span: (span.start_ns, span.stop_ns)))
        return self.figures().outcome(self._machine, spans, tuple(self.levels))

    def _span(self, kind: SpanKind, start: float, stop: float, tick: int) -> None:
        if self._is_kept:
            low, high = round(start - self._began), round(stop - self._began)
            if high > low:
                operator = self._trace.ticks[tick].operator
                self.spans.append(Span(COMPUTE_LANE, kind, low, high, tick, label=operator))

    def _copied(self, lane: str, copy: "Copy", now: float) -> None:
        kind = SpanKind.FETCH if copy.target < copy.source else SpanKind.EVICT
        low = max(round(copy.began - self._began), 0)
        nbytes = self._pieces.nbytes[copy.piece] - copy.left
        number = self._pieces.storage[copy.piece]
        self.spans.append(Span(lane, kind, low, round(now - self._began), None, number, nbytes))
