"""A probe's findings as plain data. Each figure is the median of its samples, with their quartiles beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import quantiles

from ebbtide.units import MIB

CHUNK_BYTES = 4 * MIB
"""The bytes that the runtime moves in one call: ``kChunk`` in ``native/core/moves.cpp``."""


class Direction(StrEnum):
    """The way that bytes move: OUT writes to the spill file, BACK reads from it, BOTH does both."""

    OUT = "out"
    BACK = "back"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Figure:
    """A median of samples and the quartiles around it: about half of the samples lie in [low, high]."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(samples: Sequence[float]) -> "Figure":
        """Summarise samples. Raises ValueError when there are none."""
        if not samples:
            raise ValueError("a figure needs a sample")
        if len(samples) == 1:
            return Figure(samples[0], samples[0], samples[0])
        low, median, high = quantiles(samples, n=4, method="inclusive")
        return Figure(median, low, high)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The extra time that two kernels take while a link is busy, as a share of their time alone: 0.06 is 6 %.

    ``matmul`` is bound by arithmetic, ``copying`` by memory. A sample may be negative, which is noise.
    """

    matmul: Figure
    copying: Figure

    @property
    def typical(self) -> float:
        """One number for a step that does half of each. An apparent gain is noise and counts as nothing."""
        return (max(self.matmul.median, 0.0) + max(self.copying.median, 0.0)) / 2


@dataclass(frozen=True, slots=True)
class Findings:
    """One probe of one spill directory, or of several that share the bytes. Speeds in bytes/s, latencies in ns.

    ``moves`` is the speed of the runtime's own copies; BOTH counts both directions' bytes. ``first_write`` is the speed
    of writing reserved space for the first time. Every other figure is for space written before.
    """

    machine: str  # the machine in words
    directory: str  # the directory in words
    notes: tuple[str, ...]  # warnings for the reader
    disturbed: bool  # other programs kept the CPUs busy, so the figures are likely too low
    took_s: float
    file_bytes: int
    memory_capacity_bytes: int
    file_capacity_bytes: int
    io_threads: int  # the runtime has as many
    memory_threads: int
    memory: Figure
    first_write: Figure
    moves: dict[Direction, Figure]
    latency_ns: dict[Direction, Figure]
    slowdown: dict[Direction, Slowdown]
