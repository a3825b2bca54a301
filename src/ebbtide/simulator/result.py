"""The result of a simulation: one steady step, or the mean of several under a policy."""

from dataclasses import dataclass, field

from ebbtide.ir.base import Ints, Origin
from ebbtide.ir.timeline import COMPUTE_LANE, Level, Span, SpanKind, Timeline
from ebbtide.ir.trace import Trace


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a tier in a step: space taken (mean over time, and peak), and bytes read and written there."""

    mean_bytes: int
    peak_bytes: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One simulated step. ``start_ns[t]`` is when compute reached tick t, counted from the step's beginning; its stall
    begins there. The last of the T + 1 values is the step's time. Tick t then waited ``stall_ns[t]``, and ``stalls``
    sums this by cause.

    ``moved_bytes`` are those of each link that finished a copy in the step. ``rescues`` counts moves that no command
    asked for: demand fetches (``demand_fetches``, of ``demand_bytes``), and evictions for lack of room. ``spans`` and
    ``levels`` are empty unless asked for.

    ``n_uses`` counts accesses of pieces that were there before their tick. ``hits`` counts those that could be used at
    once when compute reached it. Their quotient is 10Cache's hit rate. ``slower_ns`` is the cost of slower operands in
    place. ``tiers`` is by name.
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
        """The time in which compute waited for copies or for room."""
        return sum(self.stalls.values())

    @property
    def hit_rate(self) -> float:
        return self.hits / self.n_uses if self.n_uses else 1.0

    def timeline(self, policy: str) -> Timeline:
        """Make a timeline of the last step for reports. The simulation must have been asked for it."""
        end_ns = max((span.stop_ns for span in self.spans if span.lane == COMPUTE_LANE), default=0)
        return Timeline(policy, Origin.SIMULATED, end_ns, self.spans, self.levels)


def does_not_fit(trace: Trace, tick: int) -> str:
    """Say why the engine cannot go on."""
    return f"{trace.operation(tick)} does not fit the budget with what cannot leave"
