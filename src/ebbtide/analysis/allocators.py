"""What simple allocators would need for a step's allocations and frees, against the peak of live bytes.

*First fit* and *best fit* cut blocks from one stretch of addresses, merge what is freed with free neighbours and never
give back; what they need is the highest address they reach. *Size classes* round each size up to one of four for every
doubling (as jemalloc does) and keep what a class once had for that class. Sizes are rounded to 64 bytes, as PyTorch
aligns on CPUs. Within a tick everything that died is freed before anything is born.

Steps repeat until one of them needs no more than the one before. Persistent storages are placed first, and so are the
generations of a storage that are there throughout because it lives for longer than a step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from ebbtide.analysis.columns import columns_of
from ebbtide.ir.base import Ints
from ebbtide.ir.occupancy import levels, live_bytes
from ebbtide.ir.trace import Trace

ALIGNMENT = 64
_CLASSES_PER_DOUBLING_LOG2 = 2
_MOST_STEPS = 6

_Choice: TypeAlias = Callable[[Ints, int], int]
"""(sizes of the holes, bytes) -> the hole to use, -1 for none."""


class AllocatorKind(StrEnum):
    FIRST_FIT = "first_fit"
    BEST_FIT = "best_fit"
    SIZE_CLASSES = "size_classes"


@dataclass(frozen=True, slots=True)
class AllocatorNeed:
    """``heap_bytes`` is what the allocator needs for a step whose peak of live bytes is ``peak_bytes``."""

    kind: AllocatorKind
    heap_bytes: int
    peak_bytes: int

    @property
    def overhead(self) -> float:
        """0.1: it needs 10 % more than is ever alive."""
        return self.heap_bytes / self.peak_bytes - 1 if self.peak_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Reuse:
    """A step allocates ``allocations`` blocks of ``allocated_bytes`` in sum, on top of ``persistent_bytes``.

    ``turnover`` is how often a step allocates each byte of room that is not persistent.
    """

    allocations: int
    allocated_bytes: int
    persistent_bytes: int
    turnover: float
    needs: tuple[AllocatorNeed, ...]


def reuse_of(trace: Trace) -> Reuse:
    rows = columns_of(trace)
    persistent = int(rows.nbytes[rows.persistent].sum())
    allocated = int(rows.nbytes[~rows.persistent].sum())
    peak = int(live_bytes(trace).max())
    heaps = {
        AllocatorKind.FIRST_FIT: _contiguous(trace, _first_fit),
        AllocatorKind.BEST_FIT: _contiguous(trace, _best_fit),
        AllocatorKind.SIZE_CLASSES: _size_classes(trace),
    }
    return Reuse(
        int((~rows.persistent).sum()),
        allocated,
        persistent,
        allocated / (peak - persistent) if peak > persistent else 0.0,
        tuple(AllocatorNeed(kind, heap, peak) for kind, heap in heaps.items()),
    )


def _size_classes(trace: Trace) -> int:
    rows = columns_of(trace)
    rounded = np.array([size_class(nbytes) for nbytes in rows.nbytes.tolist()], dtype=np.int64)
    total = 0
    for size in np.unique(rounded).tolist():
        chosen = np.flatnonzero((rounded == size) & (rows.room > 0))
        total += int(levels(rows.birth[chosen], rows.death[chosen], rounded[chosen], len(trace.ticks)).max())
    return total


def size_class(nbytes: int) -> int:
    """The least class that holds ``nbytes``: 64, 128, ..., 256, 320, 384, 448, 512, 640, ..."""
    step = max(ALIGNMENT, 1 << max((nbytes - 1).bit_length() - 1 - _CLASSES_PER_DOUBLING_LOG2, 0))
    return -(-nbytes // step) * step


def _first_fit(sizes: Ints, nbytes: int) -> int:
    fits = sizes >= nbytes
    place = int(fits.argmax()) if len(fits) else 0
    return place if len(fits) and fits[place] else -1


def _best_fit(sizes: Ints, nbytes: int) -> int:
    """The smallest hole that is large enough, the lowest of equals."""
    fits = np.flatnonzero(sizes >= nbytes)
    return int(fits[sizes[fits].argmin()]) if len(fits) else -1


def _contiguous(trace: Trace, choose: _Choice) -> int:
    heap, n_ticks = _Heap(choose), len(trace.ticks)
    sizes = [-(-row.nbytes // ALIGNMENT) * ALIGNMENT for row in trace.storages]
    for row, nbytes in zip(trace.storages, sizes, strict=True):
        heap.fill(nbytes * (1 if row.persistent else (row.death - row.birth) // n_ticks))
    events, before = _events(trace), -1
    for step in range(_MOST_STEPS):
        for number, is_birth, generation in events:
            if is_birth:
                heap.allocate((number, step), sizes[number])
            elif step >= generation:
                heap.free((number, step - generation))
        if step and heap.top == before:
            break
        before = heap.top
    return heap.top


def _events(trace: Trace) -> list[tuple[int, bool, int]]:
    """(storage, is a birth, how many steps ago it was born) of one step, in order; lives are less than a step long."""
    n_ticks = len(trace.ticks)
    events = []
    for number, row in enumerate(trace.storages):
        life = (row.death - row.birth) % n_ticks
        if life and not row.persistent and row.room_of is None:
            place = (row.allocation is None, row.allocation or 0, number)
            events.append((row.birth, True, place, 0))
            events.append(((row.birth + life) % n_ticks, False, place, (row.birth + life) // n_ticks))
    return [(place[-1], is_birth, generation) for _, is_birth, place, generation in sorted(events)]


class _Heap:
    """Holes below ``top``, sorted by address; no two of them touch, and none touches ``top``."""

    def __init__(self, choose: _Choice) -> None:
        self.top = 0
        self._choose = choose
        self._blocks: dict[tuple[int, int], tuple[int, int]] = {}
        self._starts = np.zeros(64, dtype=np.int64)
        self._sizes = np.zeros(64, dtype=np.int64)
        self._count = 0
        self._end = 0  # of what is in use, where the hole that touches ``top`` begins

    def fill(self, nbytes: int) -> None:
        """Places what stays for good; before anything else."""
        self._end += nbytes
        self.top = self._end

    def allocate(self, key: tuple[int, int], nbytes: int) -> None:
        place = self._choose(self._sizes[: self._count], nbytes)
        if place < 0:
            address, self._end = self._end, self._end + nbytes
            self.top = max(self.top, self._end)
        else:
            address = int(self._starts[place])
            self._starts[place] += nbytes
            self._sizes[place] -= nbytes
            if not self._sizes[place]:
                self._remove(place)
        self._blocks[key] = (address, nbytes)

    def free(self, key: tuple[int, int]) -> None:
        start, nbytes = self._blocks.pop(key)
        place = int(np.searchsorted(self._starts[: self._count], start))
        if place and int(self._starts[place - 1] + self._sizes[place - 1]) == start:
            place -= 1
            start, nbytes = int(self._starts[place]), int(self._sizes[place]) + nbytes
            self._remove(place)
        if place < self._count and int(self._starts[place]) == start + nbytes:
            nbytes += int(self._sizes[place])
            self._remove(place)
        if start + nbytes == self._end:
            self._end = start
        else:
            self._insert(place, start, nbytes)

    def _insert(self, place: int, start: int, nbytes: int) -> None:
        if self._count == len(self._starts):
            self._starts = np.concatenate((self._starts, np.zeros_like(self._starts)))
            self._sizes = np.concatenate((self._sizes, np.zeros_like(self._sizes)))
        for column, value in ((self._starts, start), (self._sizes, nbytes)):
            column[place + 1 : self._count + 1] = column[place : self._count]
            column[place] = value
        self._count += 1

    def _remove(self, place: int) -> None:
        for column in (self._starts, self._sizes):
            column[place : self._count - 1] = column[place + 1 : self._count]
        self._count -= 1
