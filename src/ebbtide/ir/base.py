"""Shared by all of ``ir``: the origin of a figure, checks of single values, and integer columns."""

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Names: TypeAlias = npt.NDArray[np.object_]
"""A column of strings, or of members of a StrEnum."""

LARGEST = 2**62
"""No integer in ``ir`` exceeds this. So each fits a 64-bit column, and two can be added."""


class Origin(StrEnum):
    """The source of a figure: this hardware, the virtual clock, a data sheet or paper, or a model.

    Modelled times come from a roofline. They are of a step that nobody ran: it was recorded with fake tensors.
    """

    MEASURED = "measured"
    SIMULATED = "simulated"
    ASSUMED = "assumed"
    MODELLED = "modelled"


@cache
def _values_of(names: str) -> Callable[[object], tuple[object, ...]]:
    """Return a quick getter of named fields: tens of thousands of records are made and checked."""
    first, *others = names.split()
    return attrgetter(first, *others) if others else lambda record: (getattr(record, first),)


def check_range(record: object, names: str, low: int = 0, high: int = LARGEST) -> None:
    """Raise ValueError unless each named field (spaces between) is an int in [low, high], or None."""
    for value in _values_of(names)(record):
        if value is not None and (type(value) is not int or not low <= value <= high):
            name = next(name for name in names.split() if getattr(record, name) is value)
            raise ValueError(f"{name} must be an int in [{low}, {high}], not {value!r:.40}")


def frozen_ints(values: npt.ArrayLike, name: str, low: int = -LARGEST) -> Ints:
    """A read-only column of its own; ValueError for anything but one dimension of integers in [low, LARGEST]."""
    column = np.array(values, dtype=None if np.size(values) else np.int64)
    integers = column.ndim == 1 and column.dtype.kind in "iu"
    if not integers or (column.size and not low <= int(column.min()) <= int(column.max()) <= LARGEST):
        raise ValueError(f"{name} must be one row of integers from {low} to {LARGEST}")
    column = column.astype(np.int64)
    column.flags.writeable = False
    return column
