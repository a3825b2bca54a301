"""Schedule: the commands that carry out a plan. Steps repeat.

``native/simulate/lowering.cpp`` makes them from a plan's stays, and says how. They stay columns from there to the arena
and the simulator. Left out: times. A command is issued when its tick comes, and the copy is valid when it is done.
"""

from dataclasses import dataclass, fields

import numpy as np

from ebbtide.ir.base import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Commands in the order in which they are carried out, and where storages begin. Tiers are tier numbers.

    ``native/core/command.hpp`` says what the columns of a command mean. ``verb`` is an ``ir.native.Verb``. The last two
    columns have every storage that does not begin on the first tier alone, with all tiers on which it is then valid.
    """

    tick: Ints
    verb: Ints
    storage: Ints
    source: Ints
    target: Ints
    then: Ints  # 1: an eviction from the first tier, and the block leaves once it is written
    earliest: Ints
    due: Ints
    begin_storage: Ints
    begin_tier: Ints

    def __len__(self) -> int:
        return len(self.tick)


def no_commands() -> Schedule:
    """Return the schedule that an online policy follows."""
    return Schedule(*[np.zeros(0, dtype=np.int64)] * len(fields(Schedule)))
