"""What a simulation says of one steady step."""

from dataclasses import dataclass

from ebbtide.ir.base import Ints, Origin
from ebbtide.ir.timeline import Level, Span, SpanKind, Timeline


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """``start_ns[t]`` is when compute reached tick t (its stall begins there), from the step's beginning; the last of
    its T + 1 values is the step's time. ``stall_ns[t]`` is how long tick t then waited, summed by cause in ``stalls``.

    ``moved_bytes`` are those of each link that finished a copy in the step. ``rescues`` counts what no command asked
    for: demand fetches, and evictions by the safety net. ``spans`` and ``levels`` are empty unless asked for.
    """

    start_ns: Ints
    stall_ns: Ints
    stalls: dict[SpanKind, int]
    moved_bytes: dict[str, int]
    rescues: int
    spans: tuple[Span, ...] = ()
    levels: tuple[Level, ...] = ()

    @property
    def step_ns(self) -> int:
        return int(self.start_ns[-1])

    def timeline(self, policy: str) -> Timeline:
        """For reports; the simulation must have been asked for it."""
        return Timeline(policy, Origin.SIMULATED, self.step_ns, self.spans, self.levels)
