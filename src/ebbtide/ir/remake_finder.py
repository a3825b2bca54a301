"""Finds the remakes of a step (``remakes``): of each storage and idle time, the operators to run and what they need."""

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ebbtide.ir.base import Flags, Ints
from ebbtide.ir.trace import Access, Storages, Trace
from ebbtide.units import KIB, MIB

_READ, _WRITE = int(Access.READ), int(Access.WRITE)
_LEAST_PIECE = 2 * MIB
_COPIED_BYTES = 4 * KIB
"""Operands smaller than this are copied into a recipe where they do not last: no arena manages them."""
_MOST_CALLS = 16
"""So many operators a remake has at most, as in ``native/torch/recipes.cpp``."""

_Range = tuple[int, int]
"""The ticks of an operator and of all that runs in it: from the first up to the second."""


@dataclass(slots=True)
class _Need:
    """What a remake needs: ``calls`` are its operators, as often as they run."""

    calls: list[_Range]
    inputs: dict[int, None]
    ingredients: dict[int, None]
    scratch_bytes: int = 0


_Row = tuple[tuple[int, int, int, int, int, int], tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


class Finder:
    """Goes through the storages of a trace. What is in pieces is known by the number of the first.

    ``made_before``, ``read`` and ``writes`` are asked again and again, since remakes share their inputs.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, rows = trace, trace.storages
        self.first = _first_pieces(rows).tolist()
        self.pieces: dict[int, list[int]] = defaultdict(list)
        for number, first in enumerate(self.first):
            self.pieces[first].append(number)
        n_ticks = len(trace.ticks)
        self.repeats = trace.ticks.repeats.tolist()
        self.birth, self.death, self.maker = rows.birth.tolist(), rows.death.tolist(), rows.maker.tolist()
        self.nbytes = np.where(rows.room_of == -1, rows.nbytes, 0).tolist()
        self.persistent, self.scratch = rows.persistent.tolist(), rows.scratch.tolist()
        self.stops = _stops(trace)
        made = _made_by_what_repeats(trace)
        self.made = made.tolist()
        self.made_before, self.read, self.writes = cache(self._made_before), cache(self._read), cache(self._writes_to)
        self.may = np.unique(_first_pieces(rows)[made & ~_any_piece(rows, ~_ever_idle(trace))]).tolist()
        self.born: list[list[int]] = [[] for _ in range(n_ticks)]
        for number in np.flatnonzero(~rows.persistent).tolist():
            self.born[self.birth[number]].append(number)
        self.uses: list[list[tuple[int, int, bool]]] = [[] for _ in range(n_ticks)]  # storage, mode, of an old step
        self.of: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by storage, ticks and modes of its uses
        columns = (trace.accesses.storage, trace.accesses.tick, trace.accesses.mode)
        for storage, tick, mode in zip(*(column.tolist() for column in columns), strict=True):
            self.uses[tick % n_ticks].append((storage, mode, tick >= n_ticks))
            self.of[storage].append((tick, mode))

    def all(self) -> Iterable[_Row]:
        starts = self.trace.start_ns(np.arange(len(self.trace.ticks) + 1)).tolist()
        for first in self.may:
            pieces = self.pieces[first]
            for gone, until, calls in self._gaps(first):
                if (need := self._need(first, calls, until)) is None:
                    continue
                time_ns = sum(starts[stop] - starts[start] for start, stop in need.calls)
                for at, number in enumerate(pieces):
                    share_ns = time_ns * (at + 1) // len(pieces) - time_ns * at // len(pieces)
                    others = tuple(other for other in pieces if other != number)
                    row = (number, gone, until, self.maker[first], share_ns, need.scratch_bytes)
                    yield row, (tuple(need.inputs), tuple(need.ingredients), others)

    def _gaps(self, first: int) -> Iterable[tuple[int, int, list[_Range]]]:
        """Return the idle times of a storage, each with the operators that made its contents by then."""
        last = self.birth[first]
        for tick, modes, calls in self._contents(first):
            gone = max(last + 1, calls[-1][1])
            if gone < tick and len(modes) == len(self.pieces[first]):
                yield gone, tick, calls
            last = tick

    def _made_before(self, first: int, tick: int) -> list[_Range] | None:
        """Return the operators that made the contents that a storage has at a tick. None: some do not repeat."""
        calls = next((calls for at, _, calls in self._contents(first) if at >= tick), None)
        return calls if calls is not None and calls[-1][1] <= tick else None

    def _contents(self, first: int) -> Iterable[tuple[int, list[int], list[_Range]]]:
        """Return the uses of a storage as in ``_uses_of`` and one after them, each with the operators that made the
        contents by then. A use that does not repeat is the last."""
        maker = self.maker[first]
        calls = [(maker, self.stops[maker])]
        for tick, modes in self._uses_of(first):
            yield tick, modes, calls
            if _writes(modes) and tick >= calls[-1][1]:
                if not self._goes_on(tick, modes):
                    return
                calls = [*calls, (tick, self.stops[tick])]
        yield sys.maxsize, [], calls

    def _goes_on(self, tick: int, modes: list[int]) -> bool:
        # What only writes may leave out a part.
        return self.repeats[tick] and all(mode & _READ for mode in modes if mode & _WRITE)

    def _uses_of(self, first: int) -> list[tuple[int, list[int]]]:
        """Return the ticks that use a storage, and the modes of the pieces that they use."""
        pieces = self.pieces[first]
        if len(pieces) == 1:
            return [(tick, [mode]) for tick, mode in self.of[first]]
        found: dict[int, list[int]] = defaultdict(list)
        for number in pieces:
            for tick, mode in self.of[number]:
                found[tick].append(mode)
        return sorted(found.items())

    def _need(self, first: int, calls: list[_Range], until: int) -> _Need | None:
        """Return what these operators need to make the storage at a tick. None if it cannot be had."""
        need = _Need([], {}, {})
        found = self._add(need, first, calls, until)
        return None if found is None or len(need.calls) > _MOST_CALLS else need

    def _add(self, need: _Need, first: int, calls: list[_Range], until: int, above: int = 0) -> int | None:
        """Add what operators need. Return the scratch that lies there at most while they run, or None.

        So many operators ``above`` wait for these.
        """
        most = 0
        for at, (start, stop) in enumerate(calls):
            waiting = above + len(calls) - at
            beside = 0  # ingredients of this operator, which lie there until it has ended
            for storage, (pieces, is_old) in self.read(first, start, stop).items():
                if not is_old and self._lasts(storage, pieces, start, until):
                    need.inputs |= pieces
                    continue
                made = self.made_before(storage, start) if self.made[storage] else None
                if made is None and self.trace.storages.nbytes[self.pieces[storage]].sum() < _COPIED_BYTES:
                    continue
                if made is None or len(need.calls) + len(made) + waiting > _MOST_CALLS:
                    return None
                inner = self._add(need, storage, made, until, waiting)
                if inner is None:
                    return None
                need.ingredients |= dict.fromkeys(self.pieces[storage])
                nbytes = sum(self.nbytes[piece] for piece in self.pieces[storage])
                most = max(most, beside + nbytes + inner)
                beside += nbytes
            need.calls.append((start, stop))
            most = max(most, beside + self._scratch(first, start, stop))
        need.scratch_bytes = most
        return most

    def _read(self, made: int, start: int, stop: int) -> dict[int, tuple[dict[int, None], bool]]:
        """Return what an operator reads beside the storage ``made`` that it makes: the pieces, and if an old step made
        some."""
        uses = [use for tick in range(start, stop) for use in self.uses[tick]]
        written = {storage for storage, mode, _ in uses if mode & _WRITE}
        found = dict[int, tuple[dict[int, None], bool]]()
        for storage, mode, is_old in uses:
            inside = not self.persistent[storage] and not is_old and start <= self.birth[storage] < stop
            if mode & _READ and storage not in written and not inside:
                pieces, any_is_old = found.get(self.first[storage], ({}, False))
                found[self.first[storage]] = (pieces | {storage: None}, any_is_old or is_old)
        if made in found and not found[made][1]:
            del found[made]
        return found

    def _lasts(self, first: int, pieces: Iterable[int], since: int, until: int) -> bool:
        """Say whether contents of these pieces that are there at ``since`` are there at ``until``."""
        if any(self.scratch[one] or (not self.persistent[one] and self.death[one] <= until) for one in pieces):
            return False
        written = self.writes(first)
        at = bisect_left(written, since)
        return at == len(written) or written[at] > until

    def _writes_to(self, first: int) -> list[int]:
        """Return the ticks that write to a storage. A write to any piece has what reads the others made before it."""
        return sorted(tick for piece in self.pieces[first] for tick, mode in self.of[piece] if mode & _WRITE)

    def _scratch(self, made: int, start: int, stop: int) -> int:
        """Return the most bytes of others that the operator gave birth to and that were there at once."""
        others = [other for tick in range(start, stop) for other in self.born[tick] if self.first[other] != made]
        levels: Iterable[int] = (
            sum(self.nbytes[other] for other in others if self.birth[other] <= tick < self.death[other])
            for tick in range(start, stop)
        )
        return max(levels)


def _writes(modes: Iterable[int]) -> bool:
    return any(mode & _WRITE for mode in modes)


def _first_pieces(rows: Storages) -> Ints:
    """Return for each storage the first piece of what it is a piece of: itself if it is none."""
    return np.where(rows.piece_of == -1, np.arange(len(rows)), rows.piece_of)


def _made_by_what_repeats(trace: Trace) -> Flags:
    """Say of each storage whether it is the one large result of an operator that repeats, or a piece of it."""
    rows, first = trace.storages, _first_pieces(trace.storages)
    in_place = np.array([name.endswith("_") for name in trace.ticks.operator.tolist()], dtype=bool)
    made = ~rows.scratch & (rows.maker >= 0) & (rows.death <= len(trace.ticks))
    # An operator in place makes no storage: it is the first to use pieces of what was allocated before it.
    made &= (trace.ticks.repeats & ~in_place)[rows.maker]
    large = ~rows.scratch & (rows.maker >= 0) & (rows.nbytes >= _LEAST_PIECE)
    makers = np.unique(np.stack((rows.maker[large], first[large])), axis=1)[0]
    made &= np.bincount(makers, minlength=len(trace.ticks))[rows.maker] <= 1
    return made & ~_any_piece(rows, ~made | (rows.birth != rows.birth[first]))


def _any_piece(rows: Storages, those: Flags) -> Flags:
    """Say of each storage whether it is one of ``those``, or of a piece whether any of its storage's pieces is."""
    first = _first_pieces(rows)
    found: Flags = np.bincount(first[those], minlength=len(rows)) > 0
    return found[first]


def _ever_idle(trace: Trace) -> Flags:
    """Say of each storage whether a tick lies between two of its uses."""
    rows = trace.accesses
    before = np.append(0, rows.tick[:-1])[: len(rows)]
    first = np.diff(rows.storage, prepend=-1) != 0
    before[first] = trace.storages.birth[rows.storage[first]]
    found = np.zeros(len(trace.storages), dtype=bool)
    found[rows.storage[rows.tick > before + 1]] = True
    return found


def _stops(trace: Trace) -> list[int]:
    """Return for each tick the first one after its operator and all that runs in it."""
    depth = trace.ticks.depth.tolist()
    stops, still = [len(depth)] * len(depth), list[int]()
    for tick, level in enumerate(depth):
        while still and depth[still[-1]] >= level:
            stops[still.pop()] = tick
        still.append(tick)
    return stops
