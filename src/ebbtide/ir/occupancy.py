"""The one accountant: it turns stays into bytes on each tier at each tick. Nobody else adds up bytes.

A tick counts everything that has space at any moment of it, so a level is an upper bound within the tick. A copy in
flight counts on both of its tiers, since a stay takes space from its start. Left out: memory that an allocator holds
beyond pages (fragmentation, a pool). The runtime measures that.

Worked example. A step has T = 4 ticks and two stays on dram: a parameter of 100 bytes during [0, 4), and a gradient
of 30 bytes. The gradient is born at tick 2 and freed in tick 1 of the next step. So its stay is [2, 6), where ticks 4
and 5 are 0 and 1 of the next step. The level at ticks 0 .. 3 is 100+30, 100+30, 100+30, 100+30: in steady state there
is always a gradient. Were it freed in tick 0 of the next step, [2, 5), the level would be 130, 100, 130, 130. With
pages of 64 bytes the parameter takes 128 and the gradient 64.
"""

import functools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from ebbtide.ir.base import LARGEST, Ints
from ebbtide.ir.of_trace import once_for_a_trace
from ebbtide.ir.plan import Stay
from ebbtide.ir.trace import Trace
from ebbtide.units import KIB, MIB, round_up

_HUGE_PAGE_BYTES = 2 * MIB
_SMALL_PAGE_BYTES = 4 * KIB

PageSize: TypeAlias = Callable[[int], int]
"""A function from a storage's bytes to the size of the pages under it, in bytes."""


def exact(_nbytes: int) -> int:
    """Count bytes as they are."""
    return 1


@functools.cache
def pages_of(page_bytes: int) -> PageSize:
    """Put every storage on pages of one size."""
    return lambda _nbytes: page_bytes


def arena_pages(nbytes: int) -> int:
    """Return the arena's page size: huge pages where they waste at most an eighth of n, else small ones. From 4 MiB on
    they may waste a third. It is ``shape_of`` in ``native/core/types.hpp``. 5 MiB: three huge pages waste a fifth.
    2.5 MiB: 4 KiB pages."""
    share = 8 if nbytes < 2 * _HUGE_PAGE_BYTES else 3
    return _HUGE_PAGE_BYTES if -nbytes % _HUGE_PAGE_BYTES <= nbytes // share else _SMALL_PAGE_BYTES


def levels(start: Ints, stop: Ints, nbytes: Ints, n_ticks: int) -> Ints:
    """THE sum: the bytes at each of ``n_ticks`` ticks of a cycle. Each interval [start, stop) holds its ``nbytes``.

    An interval longer than the cycle counts once each time that it comes round. Raises ValueError past 2**62 bytes.
    """
    rounds, rest = np.divmod(stop - start, n_ticks)
    if float(np.dot(nbytes.astype(np.float64), rounds + 1.0)) > LARGEST:
        raise ValueError("the bytes to add up do not fit 62 bits")
    change = np.zeros(2 * n_ticks + 1, dtype=np.int64)
    first = start % n_ticks
    np.add.at(change, first, nbytes)
    np.add.at(change, first + rest, -nbytes)
    unrolled = np.cumsum(change[:-1])
    total: Ints = unrolled[:n_ticks] + unrolled[n_ticks:] + np.dot(nbytes, rounds)
    return total


def occupancy(
    trace: Trace,
    stays: Iterable[Stay],
    tiers: Sequence[str],
    page_bytes: PageSize = exact,
    packing: Container[str] = (),
) -> dict[str, Ints]:
    """Return the bytes at each tick of a step, for each of ``tiers``. Stays on other tiers are not counted. On the
    ``packing`` tiers a storage counts with its packed bytes."""
    paged = paged_sizes(trace, page_bytes)
    packed = packed_sizes(trace)
    packed = np.where(packed >= 0, packed, paged)
    rows: dict[str, list[tuple[int, int, int]]] = {tier: [] for tier in tiers}
    for stay in stays:
        if stay.tier in rows:
            rows[stay.tier].append((stay.storage, stay.start, stay.stop))
    held = {}
    for tier, here in rows.items():
        storage, start, stop = np.array(here, dtype=np.int64).reshape(-1, 3).T
        held[tier] = levels(start, stop, (packed if tier in packing else paged)[storage], len(trace.ticks))
    return held


@once_for_a_trace
def live_bytes(trace: Trace, page_bytes: PageSize = exact) -> Ints:
    """Return the bytes of all storages alive at each tick, wherever they lie."""
    rows = trace.storages
    return levels(rows.birth, rows.death, paged_sizes(trace, page_bytes), len(trace.ticks))


@once_for_a_trace
def needed_bytes(trace: Trace, page_bytes: PageSize = exact) -> Ints:
    """Return the bytes that each tick's operation needs at once: operands, storages that are born, and scratch.

    Let operations use the fastest tier alone. Then the peak is the smallest budget that any plan can keep, and its
    tick is the operation that needs it.
    """
    rows, size = trace.accesses, paged_sizes(trace, page_bytes)
    birth, death = trace.storages.birth, trace.storages.death
    persistent, scratch = trace.storages.persistent, trace.storages.scratch
    born = np.flatnonzero(~scratch & ~persistent)
    used = ~scratch[rows.storage] & (persistent[rows.storage] | (rows.tick != birth[rows.storage]))
    storage, tick = np.concatenate((born, rows.storage[used])), np.concatenate((birth[born], rows.tick[used]))
    number = np.concatenate((np.flatnonzero(scratch), storage))
    start = np.concatenate((birth[scratch], tick))
    stop = np.concatenate((death[scratch], tick + 1))
    return levels(start, stop, size[number], len(trace.ticks))


@once_for_a_trace
def paged_sizes(trace: Trace, page_bytes: PageSize = exact) -> Ints:
    """Return the bytes of the pages under each storage; 0 if it lies in another's memory."""
    sizes, which = np.unique(trace.storages.nbytes, return_inverse=True)
    paged = np.array([round_up(nbytes, page_bytes(nbytes)) for nbytes in sizes.tolist()], dtype=np.int64)
    return np.where(trace.storages.room_of == -1, paged[which], 0)


def packed_sizes(trace: Trace) -> Ints:
    """Return what each storage takes on a tier that packs. -1: it may not lie there, since it does not shrink or
    nobody looked."""
    return np.where(trace.storages.scratch, -1, trace.storages.packed_bytes)


def peak(level: Ints) -> int:
    """Return the most bytes at one tick."""
    return int(level.max())
