"""What a simulation says of one steady step."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ebbtide.errors import SettingError
from ebbtide.ir.base import LARGEST, Ints, Origin
from ebbtide.ir.machine import Machine
from ebbtide.ir.timeline import Level, Span, SpanKind, Timeline
from ebbtide.ir.trace import Trace

STALLS = (SpanKind.STALL_ROOM, SpanKind.STALL_LATE, SpanKind.STALL_DEMAND)
"""The causes, in the order of ``Figures``."""


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
    """What an engine says when it cannot go on."""
    return f"{trace.operation(tick)} does not fit the budget with what cannot leave"


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """What an engine notes of a step, before anything is rounded: times are ns. By tick, by cause (``STALLS``), by
    link, by tier; ``area`` is of the room taken, in byte ns. The first of ``reads`` and of ``writes`` is of all tiers
    together.
    """

    starts: Sequence[float] | npt.NDArray[np.float64]
    stalls: Sequence[float] | npt.NDArray[np.float64]
    by_cause: Sequence[float]
    moved_bytes: Sequence[int]
    rescues: int
    area: Sequence[float]
    peak: Sequence[int]
    reads: Sequence[int]
    writes: Sequence[int]
    n_uses: int
    hits: int
    demand_fetches: int
    demand_bytes: int
    slower_ns: float

    def outcome(self, machine: Machine, spans: tuple[Span, ...] = (), levels: tuple[Level, ...] = ()) -> Outcome:
        """Raises SettingError for a machine on which the step takes longer than can be counted."""
        if not sum((self.starts[-1], *self.by_cause, self.slower_ns)) <= LARGEST:  # nan is not either
            raise SettingError("on this machine the step takes more than 2**62 ns: a figure of it cannot be right")
        step_ns = max(float(self.starts[-1]), 1e-9)
        reads, writes = list(self.reads), list(self.writes)
        reads[0] -= sum(reads[1:])
        writes[0] -= sum(writes[1:])
        return Outcome(
            np.rint(self.starts).astype(np.int64),
            np.rint(self.stalls).astype(np.int64),
            {kind: round(spent) for kind, spent in zip(STALLS, self.by_cause, strict=True)},
            {link.name: nbytes for link, nbytes in zip(machine.links, self.moved_bytes, strict=True) if nbytes},
            self.rescues,
            spans,
            levels,
            {
                tier.name: Use(round(self.area[rank] / step_ns), self.peak[rank], reads[rank], writes[rank])
                for rank, tier in enumerate(machine.tiers)
            },
            self.n_uses,
            self.hits,
            self.demand_fetches,
            self.demand_bytes,
            round(self.slower_ns),
        )
