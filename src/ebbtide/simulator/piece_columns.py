"""A step's pieces as the native engine has them: columns, where ``pieces`` has lists. What those are, it says there."""

import numpy as np

from ebbtide._planning import Pieces as NativePieces
from ebbtide.ir.base import Ints
from ebbtide.ir.occupancy import PageSize, packed_sizes, paged_sizes
from ebbtide.ir.of_trace import lives, once_for_a_trace, scratch_of, sizes
from ebbtide.ir.trace import Access, Trace
from ebbtide.simulator.pieces import NOT_AT_ALL, Pieces, next_uses, operand_bytes

_BOTH = int(Access.READ | Access.WRITE)


@once_for_a_trace
def whole_columns(trace: Trace, page_bytes: PageSize) -> tuple[NativePieces, Ints]:
    """Those of ``whole_pieces``, and the piece of each storage; scratch may be one piece with other scratch."""
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
    made = NativePieces(
        nbytes=_sums(piece, sizes(trace), len(numbers)),
        paged_bytes=_sums(piece, paged_sizes(trace, page_bytes), len(numbers)),
        packed_bytes=packed[numbers],
        first_use=first_use[numbers],
        moves=~scratch[numbers],
        persistent=persistent[numbers],
        scratch=scratch[numbers],
        birth=birth[numbers],
        generations=np.where(persistent[numbers], 0, death[numbers] // n_ticks),
        uses=(tick, piece[storage], mode, until),
        births=(birth[born], piece[born]),
        deaths=(death[born] % n_ticks, piece[born]),
        n_used=np.bincount(tick[came], minlength=n_ticks),
        reads=reads,
        writes=writes,
        times=trace.ticks.time_ns.astype(np.float64),
    )
    return made, piece


def _sums(places: Ints, values: Ints, count: int) -> Ints:
    """Of the values of each place; whole numbers, which ``bincount`` does not keep."""
    found: Ints = np.zeros(count, dtype=np.int64)
    np.add.at(found, places, values)
    return found


def native_pieces(pieces: Pieces, trace: Trace) -> NativePieces:
    """The same of pieces that somebody has."""
    rows = [trace.storages[number] for number in pieces.storage]
    n_ticks = len(trace.ticks)
    uses = np.array([(tick, *use) for tick, here in enumerate(pieces.uses) for use in here], dtype=np.int64)
    at, piece, mode, until = uses.reshape(-1, 4).T
    return NativePieces(
        nbytes=pieces.nbytes,
        paged_bytes=pieces.paged_bytes,
        packed_bytes=[-1 if packed is None else packed for packed in pieces.packed_bytes],
        first_use=pieces.first_use,
        moves=pieces.moves,
        persistent=[row.persistent for row in rows],
        scratch=[row.scratch for row in rows],
        birth=[row.birth for row in rows],
        generations=[0 if row.persistent else row.death // n_ticks for row in rows],
        uses=(at, piece, mode, until),
        births=_flat(pieces.births),
        deaths=_flat(pieces.deaths),
        n_used=pieces.n_used,
        reads=pieces.reads,
        writes=pieces.writes,
        times=[float(tick.time_ns) for tick in trace.ticks],
    )


def _flat(ticks: list[list[int]]) -> tuple[Ints, Ints]:
    rows = np.array([(tick, piece) for tick, here in enumerate(ticks) for piece in here], dtype=np.int64)
    return rows.reshape(-1, 2)[:, 0], rows.reshape(-1, 2)[:, 1]
