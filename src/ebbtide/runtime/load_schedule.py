"""A plan as native code takes it: columns with the commands of its schedule on the arena's storages. Imports no torch.

The arena moves whole storages, and what is written leaves at once; so a copy out and the drop that follows it are one
command unless an access lies between them. Only moves between the first tier and the others count here: the arena has
one slow tier.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebbtide.ir import native
from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import arena_pages, occupancy
from ebbtide.ir.plan import Plan
from ebbtide.ir.schedule import Command, Verb, lower
from ebbtide.ir.trace import Trace


@dataclass(frozen=True)
class ScheduleColumns:
    """What ``_torch.load_schedule`` takes: each column by its name there. It refuses columns that make no schedule."""

    tick_ns: Ints  # beginnings of the ticks, and the end of the last
    headroom: Ints  # by tick, the bytes that the plan leaves free
    nbytes: Ints  # by storage
    serial: Ints  # by storage: of a live allocation that has its part; 0: none
    birth: Ints  # by storage: tick; -1: it is not allocated in the step
    allocations: Ints  # storages in the order of their births
    use_storage: Ints  # uses lie in the order of their storages
    use_tick: Ints  # and within one storage in the order of their ticks
    command_tick: Ints  # commands lie in the order of their ticks
    command_verb: Ints  # native.Verb
    command_storage: Ints
    command_earliest: Ints  # a late fetch may move to this tick, through ticks with headroom for it


def schedule_columns(
    plan: Plan, trace: Trace, machine: Machine, serials: Sequence[int] | Ints, budget_bytes: int
) -> ScheduleColumns:
    """``serials`` says which live storage has which part (0: none);
    the room that is left is that of ``budget_bytes``, whatever the plan was made for."""
    rows = native_commands(lower(plan, trace, machine).commands, trace, machine.tiers[0].name)
    clock = {number for number, storage in enumerate(trace.storages) if storage.allocation is not None}
    uses = _uses(trace)
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    taken = occupancy(trace, plan.stays, [machine.tiers[0].name], arena_pages)[machine.tiers[0].name]
    columns: dict[str, npt.ArrayLike] = {
        "tick_ns": trace.start_ns(np.arange(len(trace.ticks) + 1)),
        "headroom": np.maximum(min(plan.budget_bytes, budget_bytes) - taken, 0),
        "nbytes": [storage.nbytes for storage in trace.storages],
        "serial": serials,
        "birth": [storage.birth if number in clock else -1 for number, storage in enumerate(trace.storages)],
        "allocations": trace.allocations(),
        "use_storage": uses[:, 0],
        "use_tick": uses[:, 1],
        "command_tick": table[:, 0],
        "command_verb": table[:, 1],
        "command_storage": table[:, 2],
        "command_earliest": table[:, 3],
    }
    return ScheduleColumns(**{name: np.array(values, dtype=np.int64) for name, values in columns.items()})


def _uses(trace: Trace) -> Ints:
    """(storage, tick) of every access, by storage, then tick; scratch is used as long as it lives."""
    accesses = np.stack([trace.accesses.storage, trace.accesses.tick], axis=1)
    scratch = [
        (number, tick)
        for number, storage in enumerate(trace.storages)
        if storage.scratch
        for tick in range(storage.birth, storage.death)
    ]
    rows = np.concatenate([accesses, np.array(scratch, dtype=np.int64).reshape(-1, 2)])
    return np.unique(rows, axis=0)


def native_commands(commands: Sequence[Command], trace: Trace, fast: str) -> list[tuple[int, int, int, int]]:
    """(tick, verb, storage, earliest tick) by tick, then as given. A fetch may not start before its storage left."""
    order = {id(command): place for place, command in enumerate(commands)}
    by_storage: dict[int, list[Command]] = defaultdict(list)
    for command in commands:
        by_storage[command.storage].append(command)
    rows: list[tuple[int, tuple[int, int, int, int]]] = []
    for storage, own in by_storage.items():
        ticks = trace.accesses.tick[trace.accesses.of(storage)] % len(trace.ticks)
        drops = [row.at.tick for row in own if row.verb is Verb.DROP and row.source == fast]
        for row in own:
            at = row.at.tick
            if row.verb is Verb.FETCH and row.target == fast:
                before = [tick for tick in (*drops, *(ticks + 1).tolist()) if tick <= at]
                rows.append((order[id(row)], (at, native.Verb.FETCH, storage, max(before, default=0))))
            elif row.verb is Verb.EVICT and row.source == fast:
                verb = native.Verb.EVICT if _leaves_at_once(at, drops, ticks) else native.Verb.WRITE_BACK
                rows.append((order[id(row)], (at, verb, storage, 0)))
            elif row.verb is Verb.DROP and row.source == fast:
                rows.append((order[id(row)], (at, native.Verb.EVICT, storage, 0)))
    return [row for _, row in sorted(rows)]  # commands come in the order of their clocks


def _leaves_at_once(tick: int, drops: list[int], accesses: Ints) -> bool:
    """Whether the next drop comes before the next access, in a step that repeats."""
    until_drop = min(((drop - tick) for drop in drops if drop >= tick), default=None)
    if until_drop is None:
        return False
    return not np.any((accesses >= tick) & (accesses < tick + until_drop))
