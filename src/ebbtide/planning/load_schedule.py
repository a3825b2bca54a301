"""A plan as native code takes it: columns with the commands of its schedule on the arena's storages. Imports no torch.

The arena moves whole storages. What it writes to a slower tier leaves at once where no use comes before the drop, and
what it keeps on one without bounds costs nothing, so such drops do nothing there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import arena_pages, occupancy
from ebbtide.ir.plan import Plan
from ebbtide.ir.schedule import Begin, Command, Verb, lower
from ebbtide.ir.trace import Trace


@dataclass(frozen=True)
class ScheduleColumns:
    """What ``_torch.load_schedule`` takes: each column by its name there. It refuses columns that make no schedule."""

    tick_ns: Ints  # beginnings of the ticks, and the end of the last
    headroom: Ints  # by tick, the bytes that the plan leaves free
    nbytes: Ints  # by storage
    serial: Ints  # by storage: of a live allocation that has its part; 0: none
    birth: Ints  # by storage: tick; -1: it is not allocated in the step
    begins: Ints  # by storage: rank of the fastest tier that has it at its birth, or at tick 0
    allocations: Ints  # storages in the order of their births
    use_storage: Ints  # uses lie in the order of their storages
    use_tick: Ints  # and within one storage in the order of their ticks
    command_tick: Ints  # commands lie in the order of their ticks
    command_verb: Ints  # place in ir.schedule.Verb
    command_storage: Ints
    command_source: Ints  # rank of a tier
    command_target: Ints


def schedule_columns(
    plan: Plan, trace: Trace, machine: Machine, serials: Sequence[int] | Ints, budget_bytes: int
) -> ScheduleColumns:
    """``serials`` says which live storage has which part (0: none);
    the room that is left is that of ``budget_bytes``, whatever the plan was made for."""
    schedule = lower(plan, trace, machine)
    rows = command_rows(schedule.commands, machine)
    uses = _uses(trace)
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    taken = occupancy(trace, plan.stays, [machine.tiers[0].name], arena_pages)[machine.tiers[0].name]
    columns: dict[str, npt.ArrayLike] = {
        "tick_ns": trace.start_ns(np.arange(len(trace.ticks) + 1)),
        "headroom": np.maximum(min(plan.budget_bytes, budget_bytes) - taken, 0),
        "nbytes": trace.storages.nbytes,
        "serial": serials,
        "birth": np.where(trace.storages.allocation >= 0, trace.storages.birth, -1),
        "begins": _begins(schedule.begins, len(trace.storages), machine),
        "allocations": trace.allocations(),
        "use_storage": uses[:, 0],
        "use_tick": uses[:, 1],
        "command_tick": table[:, 0],
        "command_verb": table[:, 1],
        "command_storage": table[:, 2],
        "command_source": table[:, 3],
        "command_target": table[:, 4],
    }
    return ScheduleColumns(**{name: np.array(values, dtype=np.int64) for name, values in columns.items()})


def _begins(begins: Sequence[Begin], n_storages: int, machine: Machine) -> list[int]:
    """By storage: the fastest tier that has it."""
    ranks = [0] * n_storages
    for begin in sorted(begins, key=lambda begin: -machine.rank(begin.tier)):
        ranks[begin.storage] = machine.rank(begin.tier)
    return ranks


def _uses(trace: Trace) -> Ints:
    """(storage, tick) of every access, by storage, then tick; scratch is used as long as it lives."""
    accesses = np.stack([trace.accesses.storage, trace.accesses.tick], axis=1)
    number = np.flatnonzero(trace.storages.scratch)
    birth, death = trace.storages.birth[number], trace.storages.death[number]
    ends = np.cumsum(death - birth)
    tick = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - death, death - birth)
    rows = np.concatenate([accesses, np.stack([np.repeat(number, death - birth), tick], axis=1)])
    return np.unique(rows, axis=0)


def command_rows(commands: Sequence[Command], machine: Machine) -> list[tuple[int, int, int, int, int]]:
    """(tick, verb, storage, source, target), in their order; tiers by rank. A drop's target is the first tier."""
    rank = {tier.name: place for place, tier in enumerate(machine.tiers)}
    verb = {verb: place for place, verb in enumerate(Verb)}
    fast = machine.tiers[0].name
    return [(row.at.tick, verb[row.verb], row.storage, rank[row.source], rank[row.target or fast]) for row in commands]
