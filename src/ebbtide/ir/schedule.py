"""Schedule: the commands that make a plan so, for whoever carries them out. Steps repeat.

``native/simulate/lowering.cpp`` makes them of a plan's stays, and says how. They stay columns from there to the arena
and to the simulator. Left out: times. A command is issued when its tick comes; the copy is valid when it is done.
"""

from dataclasses import dataclass, fields

import numpy as np

from ebbtide.ir.base import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Commands in the order in which they are carried out, and where storages begin. Tiers are ranks.

    ``native/core/command.hpp`` says what the columns of a command mean; ``verb`` is an ``ir.native.Verb``. The last two
    columns have every storage that does not begin on the first tier alone, with all tiers that it is valid on then.
    """

    tick: Ints
    verb: Ints
    storage: Ints
    source: Ints
    target: Ints
    then: Ints  # of an eviction from the first tier: 1 where it leaves once it is written
    earliest: Ints
    due: Ints
    begin_storage: Ints
    begin_tier: Ints

    def __len__(self) -> int:
        return len(self.tick)


def no_commands() -> Schedule:
    """What an online policy follows."""
    return Schedule(*[np.zeros(0, dtype=np.int64)] * len(fields(Schedule)))
