"""Stays as columns, for code that handles thousands of them many times. ``plan`` says what a stay is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.ir.base import Flags, Ints
from ebbtide.ir.plan import Stay


@dataclass(frozen=True, slots=True, eq=False)
class StayColumns:
    """Columns of stays. ``tier`` is a tier number. The stays of one storage follow each other."""

    storage: Ints
    tier: Ints
    start: Ints
    valid_from: Ints
    stop: Ints

    def __len__(self) -> int:
        return len(self.storage)

    def __add__(self, other: "StayColumns") -> "StayColumns":
        pairs = zip(self.columns, other.columns, strict=True)
        return StayColumns(*(np.concatenate(pair) for pair in pairs))

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        return self.storage, self.tier, self.start, self.valid_from, self.stop

    def of(self, rows: Ints | Flags) -> "StayColumns":
        return StayColumns(*(column[rows] for column in self.columns))

    def without(self, storages: Ints) -> "StayColumns":
        """Leave out the stays of some storages."""
        return self.of(~np.isin(self.storage, storages))

    def stays(self, tiers: Sequence[str]) -> list[Stay]:
        """Return them one by one. ``tiers`` are the machine's names by tier number."""
        rows = zip(*(column.tolist() for column in self.columns), strict=True)
        return [Stay(number, tiers[tier], *times) for number, tier, *times in rows]


def columns_of(stays: Sequence[Stay], tiers: Sequence[str]) -> StayColumns:
    """Make columns of stays, sorted by storage."""
    rank = {tier: at for at, tier in enumerate(tiers)}
    rows = [(stay.storage, rank[stay.tier], stay.start, stay.valid_from, stay.stop) for stay in stays]
    rows.sort(key=lambda row: row[0])
    return StayColumns(*np.array(rows, dtype=np.int64).reshape(-1, 5).T)
