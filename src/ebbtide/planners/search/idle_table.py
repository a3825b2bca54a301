"""The decisions of a planner: which storages may leave the fast tier, and when.

In an *idle interval*, a storage is used at tick ``after``, next at ``until``, and may be away in the ticks between. The
interval costs a fetch. It also costs a write if the storage was written since it was last in the slow tier. All
intervals between two writes share one write, so they form a *group*: the first that is chosen pays for it.

On an exclusive machine nothing stays behind in the slow tier, so every interval is a group of its own and writes.

The birth of a storage counts as a write, since a plan never throws contents away. After its last access a storage may
leave for good and needs no fetch. Ticks go on past the step's end, [Note: ticks]. Scratch has no intervals: it stays.

[Note: elders]
A storage may live for longer than a step: ``out = model(x)`` keeps the last step's output until the next one is there.
From the birth of its successor on, it is an *elder*. A command that names the storage then means the successor, so an
elder neither leaves nor returns. An interval therefore returns before that, or not at all. One that does not return
goes on to the death. Left out: intervals longer than a step, of elders that live longer than they were in use.
"""

from dataclasses import dataclass

import numpy as np

from ebbtide.ir.base import Flags, Ints
from ebbtide.ir.occupancy import PageSize, levels, paged_sizes
from ebbtide.ir.of_trace import once_for_a_trace
from ebbtide.ir.remakes import remakes_of
from ebbtide.ir.trace import Access, Trace
from ebbtide.planners.base import PAGES


@dataclass(frozen=True, slots=True, eq=False)
class IdleTable:
    """Idle intervals as columns, by storage, then tick. ``paged_bytes``: ``nbytes`` in pages. ``returns``: a fetch
    follows.

    ``written`` and ``dirty`` have a row for each group. ``written`` is the tick of its write. ``dirty`` says that there
    is one, so the contents are nowhere but in the fast tier.
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
        """Say which of the ``chosen`` (row numbers, sorted) write: the first of each dirty group."""
        group = self.group[chosen]
        return np.asarray(np.diff(group, prepend=-1) != 0) & self.dirty[group]

    def left(self, chosen: Flags | slice, live: Ints) -> Ints:
        """Return what is left of ``live`` at each tick if the chosen intervals are away for all of their time."""
        away = levels(self.after[chosen] + 1, self.until[chosen], self.paged_bytes[chosen], len(live))
        left: Ints = live - away
        return left


@once_for_a_trace
def idle_table(trace: Trace, exclusive: bool = False, page_bytes: PageSize = PAGES) -> IdleTable:
    """Return all of a step's idle intervals that hold at least one tick."""
    uses = _uses(trace)
    written = uses.tick if exclusive else uses.written
    keep = (uses.until > uses.tick + 1) & (trace.storages.persistent[uses.storage] | _before_successor(trace, uses))
    storage, after, written = uses.storage[keep], uses.tick[keep], written[keep]
    begins = (np.diff(storage, prepend=-1) != 0) | (np.diff(written, prepend=-1) != 0)  # of groups
    nbytes = trace.storages.nbytes
    paged = paged_sizes(trace, page_bytes)
    return IdleTable(
        storage,
        after,
        uses.until[keep],
        uses.returns[keep],
        nbytes[storage],
        paged[storage],
        np.cumsum(begins) - 1,
        np.maximum(written[begins], 0),
        written[begins] >= 0,
    )


@once_for_a_trace
def remake_rows(trace: Trace, exclusive: bool = False, page_bytes: PageSize = PAGES) -> Ints:
    """Return for each of the trace's ``remakes_of`` the row of its interval."""
    idle, remakes, most = idle_table(trace, exclusive, page_bytes), remakes_of(trace), 2 * len(trace.ticks) + 1
    found: Ints = np.searchsorted(idle.storage * most + idle.until, remakes.storage * most + remakes.until)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Uses:
    """Uses as columns: a storage is used at ``tick``, next at ``until``, or then dies where nothing ``returns``.

    ``written`` is the tick of its last write, or -1. The order keeps groups together, from one write to the next. So
    the rows of a persistent storage start with its last write, and go on in the next step.
    """

    storage: Ints
    tick: Ints
    until: Ints
    returns: Flags
    written: Ints


def _uses(trace: Trace) -> _Uses:
    """Return the uses of all storages but scratch. A birth is a use that writes."""
    rows, n_ticks, count = trace.accesses, len(trace.ticks), len(trace.storages)
    birth, death = trace.storages.birth, trace.storages.death
    persistent, scratch = trace.storages.persistent, trace.storages.scratch
    born = np.flatnonzero(~scratch & ~persistent)
    used = ~scratch[rows.storage]
    at_birth = used & ~persistent[rows.storage] & (rows.tick == birth[rows.storage])
    used &= ~at_birth
    storage = np.concatenate((born, rows.storage[used]))
    tick = np.concatenate((birth[born], rows.tick[used]))
    writes = np.concatenate((np.ones(len(born), dtype=bool), (rows.mode[used] & int(Access.WRITE)) > 0))
    last_write = np.zeros(count, dtype=np.int64)
    np.maximum.at(last_write, storage[writes], tick[writes])
    tick = np.where(persistent[storage] & (tick < last_write[storage]), tick + n_ticks, tick)
    order = np.lexsort((tick, storage))
    storage, tick, writes = storage[order], tick[order], writes[order]
    begins = np.diff(storage, prepend=-1) != 0
    ends = np.append(begins[1:], True)[: len(storage)]
    returns = ~ends | persistent[storage]
    until = np.append(tick[1:], 0)[: len(storage)]
    until[ends] = np.where(persistent[storage[ends]], tick[begins] + n_ticks, death[storage[ends]])
    last = np.maximum.accumulate(np.where(writes | begins, np.arange(len(storage)), 0))
    written = np.where(writes[last], tick[last], -1)
    return _Uses(storage, tick, until, returns, written)


def _before_successor(trace: Trace, uses: _Uses) -> Flags:
    """Say whether all commands come before the storage is an elder ([Note: elders])."""
    n_ticks, elder_at = len(trace.ticks), trace.storages.birth[uses.storage] + len(trace.ticks)
    back = np.where(uses.returns, uses.until <= elder_at, uses.until <= uses.tick + 1 + n_ticks)
    found: Flags = (uses.tick < elder_at) & back
    return found
