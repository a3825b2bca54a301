"""What may leave the fast tier, and when: the decisions of a planner.

In an *idle interval* a storage is used at tick ``after``, next at ``until``, and may be away in the
ticks between. It costs a fetch, and a write if the storage was written since it was last in the slow tier. All
intervals between two writes share one write, so they form a *group*: the first that is chosen pays for it.

On an exclusive machine nothing stays behind in the slow tier, so every interval is a group of its own and writes.

The birth of a storage counts as a write, since a plan never throws contents away. After its last access a storage may
leave for good and needs no fetch. Ticks go on past the step's end, [Note: ticks]. Scratch has no intervals: it stays.

[Note: elders]
What lives for longer than a step (``out = model(x)`` keeps the last step's until the next one is there) is an *elder*
from the birth of its successor on: a command that names the storage means the successor from then on, so an elder
neither leaves nor returns. An interval therefore returns before that, or not at all; one that does not return goes on
to the death. Left out: intervals that are longer than a step, of elders that live longer than they were in use.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebbtide.ir.base import Ints
from ebbtide.ir.occupancy import PageSize, paged_bytes
from ebbtide.ir.of_trace import once_for_a_trace
from ebbtide.ir.trace import Access, Storage, Trace
from ebbtide.planners.base import PAGES

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class IdleTable:
    """Columns, by storage, then tick. ``paged_bytes``: ``nbytes`` in pages. ``returns``: whether a fetch follows.

    ``written`` and ``dirty`` have a row for each group: the tick of its write, and whether there is one, so that the
    contents are nowhere but in the fast tier.
    """

    storage: Ints
    after: Ints
    until: Ints
    returns: Flags
    nbytes: Ints
    paged_bytes: Ints
    group: Ints
    written: Ints
    dirty: Flags

    def __len__(self) -> int:
        return len(self.storage)

    def payers(self, chosen: Ints) -> Flags:
        """Which of the ``chosen`` (row numbers, sorted) write: the first of each dirty group."""
        group = self.group[chosen]
        return np.asarray(np.diff(group, prepend=-1) != 0) & self.dirty[group]


@once_for_a_trace
def idle_table(trace: Trace, exclusive: bool = False, page_bytes: PageSize = PAGES) -> IdleTable:
    """All of a step's idle intervals that hold at least one tick."""
    rows: list[tuple[int, int, int, bool, int]] = []
    dirty: list[bool] = []
    write_tick: list[int] = []
    for number in range(len(trace.storages)):
        groups: dict[int | None, int] = {}
        for after, until, returns, written in _idle(trace, number):
            written = after if exclusive else written
            if written not in groups:
                groups[written] = len(dirty)
                dirty.append(written is not None)
                write_tick.append(written or 0)
            rows.append((number, after, until, returns, groups[written]))
    storage, after_, until_, returns_, group = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    nbytes = np.array([row.nbytes for row in trace.storages], dtype=np.int64)
    paged = np.array([paged_bytes(trace, at, 0, int(n), page_bytes) for at, n in enumerate(nbytes)], dtype=np.int64)
    return IdleTable(
        storage,
        after_,
        until_,
        returns_.astype(bool),
        nbytes[storage],
        paged[storage],
        group,
        np.array(write_tick, dtype=np.int64),
        np.array(dirty, dtype=bool),
    )


def _idle(trace: Trace, number: int) -> Iterator[tuple[int, int, bool, int | None]]:
    """(after, until, returns, tick of the last write or None) of a storage, in an order in which groups hold
    together: from one write to the next, so that of a persistent storage starts after its last write."""
    storage, n_ticks = trace.storages[number], len(trace.ticks)
    if storage.scratch:
        return
    rows = trace.accesses.of(number)
    uses = trace.accesses.tick[rows].tolist()
    writes = [bool(mode & Access.WRITE) for mode in trace.accesses.mode[rows].tolist()]
    if storage.persistent:
        if not uses:
            return
        first = max((at for at, is_write in enumerate(writes) if is_write), default=0)
        uses = [*uses[first:], *(tick + n_ticks for tick in uses[: first + 1])]
        writes = [*writes[first:], *writes[: first + 1]]
    elif not uses or uses[0] != storage.birth:
        uses, writes = [storage.birth, *uses], [True, *writes]
    else:
        writes[0] = True
    written: int | None = None
    for at, (after, until) in enumerate(zip(uses, [*uses[1:], storage.death], strict=True)):
        written = after if writes[at] else written
        returns = at + 1 < len(uses)
        if storage.persistent and not returns:
            return
        if not storage.persistent and not _before_successor(storage, n_ticks, after, until, returns):
            continue
        if until > after + 1:
            yield after, until, returns, written


def _before_successor(storage: Storage, n_ticks: int, after: int, until: int, returns: bool) -> bool:
    """Whether all that is to be commanded comes before the storage is an elder ([Note: elders])."""
    born = storage.birth + n_ticks
    return after < born and (until <= born if returns else until <= after + 1 + n_ticks)
