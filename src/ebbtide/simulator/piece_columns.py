"""A step's pieces as the native engine has them: columns, where ``pieces`` has lists. What those are, it says there."""

import numpy as np

from ebbtide._planning import Pieces as NativePieces
from ebbtide.ir.base import Ints
from ebbtide.ir.occupancy import PageSize, packed_sizes, paged_sizes
from ebbtide.ir.of_trace import lives, once_for_a_trace, scratch_of, sizes
from ebbtide.ir.trace import Access, Trace
from ebbtide.simulator.pieces import NOT_AT_ALL, next_uses, operand_bytes

_BOTH = int(Access.READ | Access.WRITE)


@once_for_a_trace
def whole_columns(trace: Trace, page_bytes: PageSize) -> NativePieces:
    """Those of ``whole_pieces``."""
    rows, n_ticks, count = trace.accesses, len(trace.ticks), len(trace.storages)
    birth, death, persistent = lives(trace)
    scratch = scratch_of(trace)
    brief = scratch & (death - birth == 1)
    together = np.full(n_ticks, -1, dtype=np.int64)  # by tick, the first storage of all that is brief then
    together[birth[brief][::-1]] = np.flatnonzero(brief)[::-1]
    first = np.where(brief, together[np.where(brief, birth, 0)], np.arange(count))
    own = first == np.arange(count)  # has a piece
    piece = (np.cumsum(own) - 1)[first]
    numbers = np.flatnonzero(own)
    packed = packed_sizes(trace)
    first_use = np.full(count, NOT_AT_ALL, dtype=np.int64)
    first_use[rows.storage[::-1]] = rows.tick[::-1]
    young = (rows.tick < birth[rows.storage] + n_ticks) & ~scratch[rows.storage]
    spans = np.flatnonzero(scratch & own)
    lengths = death[spans] - birth[spans]
    ends = np.cumsum(lengths)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    storage = np.concatenate((rows.storage[young], np.repeat(spans, lengths)))
    tick = np.concatenate((rows.tick[young], np.repeat(birth[spans], lengths) + within)) % n_ticks
    mode = np.concatenate((rows.mode[young], np.full(len(within), _BOTH)))
    until = np.concatenate((next_uses(trace)[young], np.ones(len(within), dtype=np.int64)))
    came = persistent[storage] | (tick != birth[storage])
    born = numbers[~persistent[numbers]]
    reads, writes = operand_bytes(trace)
    return NativePieces(
        nbytes=_sums(piece, sizes(trace), len(numbers)),
        paged_bytes=_sums(piece, paged_sizes(trace, page_bytes), len(numbers)),
        packed_bytes=packed[numbers],
        first_use=first_use[numbers],
        moves=~scratch[numbers],
        persistent=persistent[numbers],
        scratch=scratch[numbers],
        birth=birth[numbers],
        generations=np.where(persistent[numbers], 0, death[numbers] // n_ticks),
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
    """Of the values of each place; whole numbers, which ``bincount`` does not keep."""
    found: Ints = np.zeros(count, dtype=np.int64)
    np.add.at(found, places, values)
    return found
