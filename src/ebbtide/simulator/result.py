"""What a simulation says of one steady step."""

from dataclasses import dataclass, field

from ebbtide.ir.base import Ints, Origin
from ebbtide.ir.timeline import Level, Span, SpanKind, Timeline
from ebbtide.ir.trace import Trace


@dataclass(frozen=True, slots=True)
class Use:
    """Of a tier in the step: room taken (mean over time, and peak), and bytes that operations read and wrote there."""

    mean_bytes: int
    peak_bytes: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """``start_ns[t]`` is when compute reached tick t (its stall begins there), from the step's beginning; the last of
    its T + 1 values is the step's time. ``stall_ns[t]`` is how long tick t then waited, summed by cause in ``stalls``.

    ``moved_bytes`` are those of each link that finished a copy in the step. ``rescues`` counts what no command asked
    for: demand fetches (``demand_fetches``, of ``demand_bytes``), and evictions for lack of room. ``spans`` and
    ``levels`` are empty unless asked for.

    ``n_uses`` counts accesses of pieces that were there before their tick, and ``hits`` those that could be used at
    once when compute reached it: their quotient is 10Cache's hit rate. ``slower_ns`` is what slower operands in place
    cost. ``tiers`` is by name.
    """

    start_ns: Ints
    stall_ns: Ints
    stalls: dict[SpanKind, int]
    moved_bytes: dict[str, int]
    rescues: int
    spans: tuple[Span, ...] = ()
    levels: tuple[Level, ...] = ()
    tiers: dict[str, Use] = field(default_factory=dict)
    n_uses: int = 0
    hits: int = 0
    demand_fetches: int = 0
    demand_bytes: int = 0
    slower_ns: int = 0

    @property
    def step_ns(self) -> int:
        return int(self.start_ns[-1])

    @property
    def exposed_ns(self) -> int:
        """Time in which compute waited for copies or for room."""
        return sum(self.stalls.values())

    @property
    def hit_rate(self) -> float:
        return self.hits / self.n_uses if self.n_uses else 1.0

    def timeline(self, policy: str) -> Timeline:
        """For reports; the simulation must have been asked for it."""
        return Timeline(policy, Origin.SIMULATED, self.step_ns, self.spans, self.levels)


def does_not_fit(trace: Trace, tick: int) -> str:
    """What the engine says when it cannot go on."""
    return f"{trace.operation(tick)} does not fit the budget with what cannot leave"
