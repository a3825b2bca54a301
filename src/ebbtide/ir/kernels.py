"""Kernels: a machine's measured times of single operations, by the tiers in which their operands lie.

After AutoTM (Hildebrand et al., ASPLOS 2020), section on profiling. Each unique operation (operator, shapes and types
of its operands) runs with every operand in either of two memories. ``probe`` measures kernels, and
``simulator.measured_in_place`` finds them for the ticks of a trace.

An operand is known by its access and by the bytes of its storage. Two operands may be alike in both. Then a storage
is the first free one, in the order of the call and of the storages. Left out: offsets of views.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from ebbtide.ir.base import LARGEST, Origin
from ebbtide.ir.trace import Trace

MOST_FREE = 6
"""Up to this many operands that may be placed, all placements are measured, as in AutoTM. Beyond it, each one alone."""

_MOST_OPERANDS = 62  # a placement is an integer, with a bit for each operand


@dataclass(frozen=True)
class Kernel:
    """One unique operation. Each operand lies in the machine's first tier, or in place in ``tier``.

    ``operator`` and ``arguments`` are those of a tick. Operand i is a storage of ``operand_bytes[i]``, with the access
    ``operand_access[i]`` (Access). Results come last. ``slow[j]`` is a placement: bit i is set where operand i lies in
    ``tier``. ``times_ns[j]`` is the operation's time there, the median of several runs. Single runs lay up to
    ``spread_ns[j]`` from it. The first placement is 0. Operands in no placement could not be placed.

    MEASURED has all 2**n placements of the n operands that could be placed. MODELLED has each of these operands alone,
    and their costs add up.
    """

    operator: str
    arguments: str
    tier: str
    origin: Origin
    operand_bytes: tuple[int, ...]
    operand_access: tuple[int, ...]
    slow: tuple[int, ...]
    times_ns: tuple[int, ...]
    spread_ns: tuple[int, ...]

    def __post_init__(self) -> None:
        n = len(self.operand_bytes)
        if not 1 <= n <= _MOST_OPERANDS or len(self.operand_access) != n:
            raise ValueError(f"{self.operator!r:.80} must have 1 to {_MOST_OPERANDS} operands, each with an access")
        _check(self.operand_bytes, "operand_bytes", 1, LARGEST)
        _check(self.operand_access, "operand_access", 1, 3)
        _check(self.slow, "slow", 0, 2**n - 1)
        _check(self.times_ns, "times_ns", 0, LARGEST)
        _check(self.spread_ns, "spread_ns", 0, LARGEST)
        if not len(self.slow) == len(self.times_ns) == len(self.spread_ns):
            raise ValueError("the columns slow, times_ns and spread_ns of a kernel differ in length")
        if len(set(self.slow)) != len(self.slow) or self.slow[:1] != (0,):
            raise ValueError("the placements of a kernel differ, and the first has nothing slow: 0")
        if self.origin is Origin.MEASURED:
            if len(self.slow) != 2 ** len(self.free) or len(self.free) > MOST_FREE:
                raise ValueError(f"a measured kernel has all placements of at most {MOST_FREE} operands")
        elif self.origin is not Origin.MODELLED or any(place.bit_count() != 1 for place in self.slow[1:]):
            raise ValueError("a kernel is measured, or modelled from placements of one operand each")

    @cached_property
    def free(self) -> tuple[int, ...]:
        """The operands that can be placed."""
        union = 0
        for place in self.slow:
            union |= place
        return tuple(at for at in range(len(self.operand_bytes)) if union >> at & 1)

    @cached_property
    def extra_by_placement(self) -> dict[int, int]:
        """The extra time of each placement, in ns, over the one with nothing slow."""
        return {place: max(time - self.times_ns[0], 0) for place, time in zip(self.slow, self.times_ns, strict=True)}

    def extra_ns(self, shares: dict[int, float]) -> float:
        """Return the extra time of the operation with these shares of its operands in ``tier``.

        It is linear in each operand's share between the measured placements.
        """
        if self.origin is Origin.MODELLED:
            return sum(min(share, 1.0) * self.extra_by_placement[1 << at] for at, share in shares.items())
        whole = sum(1 << at for at, share in shares.items() if share >= 1)
        parts = [(1 << at, share) for at, share in shares.items() if 0 < share < 1]
        weights = {whole: 1.0}
        for bit, share in parts:
            weights = {
                place | here: weight * part
                for place, weight in weights.items()
                for here, part in ((bit, share), (0, 1 - share))
            }
        return sum(weight * self.extra_by_placement[place] for place, weight in weights.items())


def _check(values: Sequence[int], name: str, low: int, high: int) -> None:
    if not all(low <= value <= high for value in values):
        raise ValueError(f"{name} of a kernel must lie in [{low}, {high}]")


def whole_operators(trace: Trace) -> list[range]:
    """Return the ticks of each outermost operator, including the operators that run in it."""
    firsts = sorted({0, *np.flatnonzero(trace.ticks.depth == 0).tolist()})
    return [range(first, last) for first, last in pairwise([*firsts, len(trace.ticks)])]
