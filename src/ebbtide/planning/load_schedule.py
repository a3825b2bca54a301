"""A plan in the form that the arena takes: the columns of its step, and the commands of its schedule. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ebbtide.ir.base import Flags, Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import occupancy
from ebbtide.ir.plan import Plan
from ebbtide.ir.remakes import remade, remakes_of, split_plan
from ebbtide.ir.schedule import Schedule
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of
from ebbtide.simulator.lowering import lower


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleColumns:
    """The argument of ``_torch.load_schedule``, which refuses columns that make no schedule."""

    tick_ns: Ints  # beginnings of the ticks, and the end of the last
    headroom: Ints  # by tick, the bytes that the plan leaves free
    nbytes: Ints  # by storage
    serial: Ints  # by storage: the live allocation that has its part; 0: none
    birth: Ints  # by storage: tick; -1: it is not allocated in the step
    allocations: Ints  # storages in the order of their births
    use_storage: Ints  # uses lie in the order of their storages
    use_tick: Ints  # and within one storage in the order of their ticks
    maker: Ints  # by storage: the tick of the operator to remember, as it is made anew later in the step; -1: none
    ingredient: Flags  # by storage: what is made anew later is made of it, though it has gone or changed by then
    commands: Schedule


def schedule_columns(
    plan: Plan, trace: Trace, machine: Machine, serials: Sequence[int] | Ints, budget_bytes: int
) -> ScheduleColumns:
    """Make the columns. ``serials`` says which live storage has which part (0: none). ``headroom`` is what is left of
    ``budget_bytes``, even where the plan was made for more."""
    fast = machine.tiers[0].name
    split, step, _ = split_plan(plan, trace)
    taken = occupancy(step, split.stays, [fast], page_size_of(machine))[fast]
    storages = trace.storages
    remakes = remakes_of(trace).chosen(remade(plan.stays, trace))
    remembered, ingredient = np.zeros((2, len(storages)), dtype=bool)
    ingredient[list(chain.from_iterable(remakes.ingredients))] = True
    remembered[remakes.storage] = True
    use_storage, use_tick = _uses(trace).T
    return ScheduleColumns(
        tick_ns=trace.start_ns(np.arange(len(trace.ticks) + 1)),
        headroom=np.maximum(min(plan.budget_bytes, budget_bytes) - taken, 0),
        nbytes=storages.nbytes,
        serial=np.array(serials, dtype=np.int64),
        birth=np.where(storages.allocation == -1, -1, storages.birth),
        allocations=np.array(trace.allocations(), dtype=np.int64),
        use_storage=use_storage,
        use_tick=use_tick,
        maker=np.where(remembered | ingredient, storages.maker, -1),
        ingredient=ingredient,
        commands=lower(plan, trace, machine),
    )


def _uses(trace: Trace) -> Ints:
    """List (storage, tick) of every access, by storage, then tick. Scratch is used as long as it lives."""
    numbers = np.flatnonzero(trace.storages.scratch)
    birth = trace.storages.birth[numbers]
    life = trace.storages.death[numbers] - birth
    within = np.arange(life.sum()) - np.repeat(np.cumsum(life) - life, life)
    scratch = np.stack([np.repeat(numbers, life), np.repeat(birth, life) + within], axis=1)
    accesses = np.stack([trace.accesses.storage, trace.accesses.tick], axis=1)
    return np.unique(np.concatenate([accesses, scratch]), axis=0)
