"""A step in the engine's form: columns by piece, and by tick.

A *piece* is here a storage, or all scratch that lives in one tick alone: it comes, stays and goes together. A fused
optimizer may make thousands of them.
"""

import numpy as np

from ebbtide._planning import Pieces as NativePieces
from ebbtide.ir.base import Ints
from ebbtide.ir.occupancy import PageSize, levels, packed_sizes, paged_sizes
from ebbtide.ir.of_trace import once_for_a_trace
from ebbtide.ir.trace import Access, Trace

_BOTH = int(Access.READ | Access.WRITE)

_NEVER = 2
"""The number of steps until the next use, for a storage that is not used again in its life."""

_NOT_AT_ALL = 2**62
"""The tick of the first use, for a storage that is never used."""


@once_for_a_trace
def step_columns(trace: Trace, page_bytes: PageSize) -> NativePieces:
    """Make the columns. Scratch is read and written in each tick of its life, whatever its accesses say. Uses of
    elders ([Note: elders] in ``planners.search.idle_table``) are left out."""
    rows, n_ticks, count = trace.accesses, len(trace.ticks), len(trace.storages)
    birth, death = trace.storages.birth, trace.storages.death
    persistent, scratch = trace.storages.persistent, trace.storages.scratch
    brief = scratch & (death - birth == 1)
    together = np.full(n_ticks, -1, dtype=np.int64)  # by tick, the first storage of the brief ones
    together[birth[brief][::-1]] = np.flatnonzero(brief)[::-1]
    first = np.where(brief, together[np.where(brief, birth, 0)], np.arange(count))
    own = first == np.arange(count)  # has a piece
    piece = (np.cumsum(own) - 1)[first]
    numbers = np.flatnonzero(own)
    packed = packed_sizes(trace)
    first_use = np.full(count, _NOT_AT_ALL, dtype=np.int64)
    first_use[rows.storage[::-1]] = rows.tick[::-1]
    young = (rows.tick < birth[rows.storage] + n_ticks) & ~scratch[rows.storage]
    spans = np.flatnonzero(scratch & own)
    lengths = death[spans] - birth[spans]
    ends = np.cumsum(lengths)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    storage = np.concatenate((rows.storage[young], np.repeat(spans, lengths)))
    tick = np.concatenate((rows.tick[young], np.repeat(birth[spans], lengths) + within)) % n_ticks
    mode = np.concatenate((rows.mode[young], np.full(len(within), _BOTH)))
    until = np.concatenate((_next_uses(trace)[young], np.ones(len(within), dtype=np.int64)))
    came = persistent[storage] | (tick != birth[storage])
    born = numbers[~persistent[numbers]]
    reads, writes = operand_bytes(trace)
    return NativePieces(
        nbytes=_sums(piece, trace.storages.nbytes, len(numbers)),
        paged_bytes=_sums(piece, paged_sizes(trace, page_bytes), len(numbers)),
        packed_bytes=packed[numbers],
        first_use=first_use[numbers],
        moves=~scratch[numbers],
        persistent=persistent[numbers],
        scratch=scratch[numbers],
        birth=birth[numbers],
        generations=np.where(persistent[numbers], 0, death[numbers] // n_ticks),
        storage=numbers,
        of=piece.astype(np.uint32),
        uses=(tick, piece[storage], mode, until),
        births=(birth[born], piece[born]),
        deaths=(death[born] % n_ticks, piece[born]),
        n_used=np.bincount(tick[came], minlength=n_ticks),
        reads=reads,
        writes=writes,
        times=trace.ticks.time_ns.astype(np.float64),
    )


def _sums(places: Ints, values: Ints, count: int) -> Ints:
    """Add up the values of each place as whole numbers, which ``bincount`` does not keep."""
    found: Ints = np.zeros(count, dtype=np.int64)
    np.add.at(found, places, values)
    return found


def _next_uses(trace: Trace) -> Ints:
    """Count for each access the ticks until its storage's next one. If the storage dies first, it is more than there
    are."""
    n_ticks, rows = len(trace.ticks), trace.accesses
    if not len(rows):
        return rows.tick
    same = rows.storage[1:] == rows.storage[:-1]
    gap = np.full(len(rows), _NEVER * n_ticks, dtype=np.int64)
    gap[:-1][same] = np.diff(rows.tick)[same]
    begins = np.flatnonzero(np.append(True, ~same))
    ends = np.append(begins[1:], len(rows)) - 1
    persistent = trace.storages.persistent[rows.storage[ends]]
    around = rows.tick[begins] + n_ticks - rows.tick[ends]
    gap[ends[persistent]] = around[persistent]
    return gap


@once_for_a_trace
def operand_bytes(trace: Trace) -> tuple[list[int], list[int]]:
    """Return the bytes of the storages that each tick's operation reads and writes, each storage whole."""
    n_ticks, rows = len(trace.ticks), trace.accesses
    nbytes, scratch = trace.storages.nbytes, trace.storages.scratch
    birth, death = trace.storages.birth, trace.storages.death
    found = []
    for mode in (Access.READ, Access.WRITE):
        here = ((rows.mode & mode) > 0) & ~scratch[rows.storage]
        start = np.concatenate((rows.tick[here], birth[scratch]))
        stop = np.concatenate((rows.tick[here] + 1, death[scratch]))
        size = np.concatenate((nbytes[rows.storage[here]], nbytes[scratch]))
        found.append(levels(start, stop, size, n_ticks).tolist())
    return found[0], found[1]
