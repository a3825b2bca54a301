"""Tables: columns of one length that never change. A row can be had as a small record, for people.

A step has 20,000 storages. Code that computes with them wants all their births, not one storage after another. So a
trace holds columns. ``table[5]`` makes a record of row 5, for messages, pages and tests.

Left out: units, and rules that tie columns together. A table's own ``_check`` has those.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Generic, Self, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from ebbtide.ir.base import Flags, Ints, Names, frozen_ints

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True, eq=False)
class Table(Generic[_Row]):
    """Base of the tables. A subclass is a frozen dataclass with one column for each field of the record ``ROW``.

    A column has its field's name, and the field's type says what it holds: ``int`` from 0 on (Ints), ``int | None``
    (Ints, -1 for None), ``bool`` (Flags), ``str`` or a StrEnum (Names). Raises ValueError for columns that differ in
    length or hold anything else.
    """

    ROW: ClassVar[type]

    def __post_init__(self) -> None:
        for name, kind in kinds_of(self.ROW).items():
            object.__setattr__(self, name, column_of(kind, getattr(self, name), name))
        if len({len(getattr(self, name)) for name in kinds_of(self.ROW)}) > 1:
            raise ValueError(f"the columns of the {type(self).__name__.lower()} differ in length")
        self._check()

    def _check(self) -> None:
        """Raise ValueError unless the rules between columns hold."""

    @classmethod
    def from_rows(cls, rows: Iterable[_Row]) -> Self:
        """Make the table from records."""
        return cls(**columns_of(cls.ROW, list(rows)))

    def __len__(self) -> int:
        column: Ints = getattr(self, next(iter(kinds_of(self.ROW))))
        return len(column)

    def __getitem__(self, row: int) -> _Row:
        cells = [getattr(self, name).item(row) for name in kinds_of(self.ROW)]
        for at in _may_lack(self.ROW):
            cells[at] = None if cells[at] == -1 else cells[at]
        record: _Row = self.ROW(*cells)
        return record

    def __iter__(self) -> Iterator[_Row]:
        return iter(rows_of(self.ROW, {name: getattr(self, name) for name in kinds_of(self.ROW)}))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in kinds_of(self.ROW))

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: Ints | Flags | slice) -> Self:
        """Return a table of some of the rows."""
        return type(self)(**{name: getattr(self, name)[rows] for name in kinds_of(self.ROW)})


def kinds_of(record: Any) -> dict[str, Any]:
    """Return the fields of a record and their declared types."""
    return _kinds_of(record)


@cache
def _kinds_of(record: Any) -> dict[str, Any]:
    types = get_type_hints(record)
    return {field.name: types[field.name] for field in fields(record) if field.init}


def columns_of(record: type, rows: list[Any]) -> dict[str, npt.NDArray[Any]]:
    """Turn records into columns. Raises ValueError for a value that its column cannot hold."""
    return {
        name: column_of(kind, [-1 if (value := getattr(row, name)) is None else value for row in rows], name)
        for name, kind in kinds_of(record).items()
    }


def rows_of(record: type[_Row], columns: dict[str, npt.NDArray[Any]]) -> list[_Row]:
    """Turn columns into records; the opposite of ``columns_of``."""
    cells = [
        [None if value == -1 else value for value in columns[name].tolist()]
        if isinstance(kind, UnionType)
        else columns[name].tolist()
        for name, kind in kinds_of(record).items()
    ]
    return [record(*row) for row in zip(*cells, strict=True)]


def column_of(kind: Any, values: npt.ArrayLike, name: str) -> Ints | Flags | Names:
    """Make a read-only column from values of a declared type."""
    if isinstance(kind, UnionType) or kind is int:
        return frozen_ints(values, name, low=-1 if isinstance(kind, UnionType) else 0)
    column = np.array(values, dtype=object)
    if column.ndim != 1 or not set(map(type, column.tolist())) <= {kind}:
        raise ValueError(f"{name} must be one row of {kind.__name__}")
    column = column.astype(bool) if kind is bool else column
    column.flags.writeable = False
    return column


@cache
def _may_lack(record: Any) -> tuple[int, ...]:
    """Find the places of the fields that may be None."""
    return tuple(at for at, kind in enumerate(kinds_of(record).values()) if isinstance(kind, UnionType))
