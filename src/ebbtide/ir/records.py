"""Reads plain values (of JSON or TOML) into frozen dataclasses and refuses what it does not know.

A field's declared type is its check: int, str, bool, float, a StrEnum, ``X | None``, ``tuple[X, ...]`` or another
dataclass. It raises FileFormatError, which names the place, for a missing field without a default, an unknown field
or a value of another type.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ebbtide.errors import FileFormatError

Record = TypeVar("Record")


@contextmanager
def refusing_damage(what: str) -> Iterator[None]:
    """Turn whatever the block raises for a file's bytes into FileFormatError. No library lists all that it raises."""
    try:
        yield
    except FileFormatError:
        raise
    except Exception as error:
        raise FileFormatError(f"{what}: {str(error) or type(error).__name__}") from error


def printable(text: str, besides: str = "") -> str:
    """Replace characters that would steer a terminal; anybody may have chosen the names in a file."""
    return "".join(mark if mark.isprintable() or mark in besides else "\N{REPLACEMENT CHARACTER}" for mark in text)


def check_reals(record: object, names: str) -> None:
    """Raise ValueError unless each named field (spaces between) is a finite number of at least 0, or None."""
    for name in names.split():
        value = getattr(record, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number of at least 0, not {value}")


def read_record(record_type: type[Record], value: object, place: str) -> Record:
    """Convert ``value`` to a ``record_type``. Errors name ``place``."""
    if not isinstance(value, dict):
        raise FileFormatError(f"{place} must be a table of fields, not {type(value).__name__}")
    types = get_type_hints(record_type)
    known = {field.name: field for field in fields(record_type) if field.init}  # type: ignore[arg-type]
    needed = {name for name, field in known.items() if field.default is MISSING}
    if missing := needed - value.keys():
        raise FileFormatError(f"{place} lacks {', '.join(sorted(missing))}")
    if unknown := value.keys() - known.keys():
        raise FileFormatError(f"{place} has fields this version does not know: {', '.join(map(repr, unknown))}")
    read = {name: read_value(types[name], value[name], f"{place}.{name}") for name in value}
    try:
        return record_type(**read)
    except ValueError as error:
        raise FileFormatError(f"{place}: {error}") from error


def read_value(expected: Any, value: Any, place: str) -> Any:
    """Convert ``value`` to the declared type ``expected``."""
    if isinstance(expected, UnionType):
        choices = [choice for choice in get_args(expected) if choice is not NoneType]
        return None if value is None else read_value(choices[0], value, place)
    if get_origin(expected) is tuple:
        if not isinstance(value, list):
            raise FileFormatError(f"{place} must be a list")
        return tuple(read_value(get_args(expected)[0], item, f"{place}[{at}]") for at, item in enumerate(value))
    if is_dataclass(expected):
        return read_record(expected, value, place)  # type: ignore[arg-type]
    if issubclass(expected, StrEnum):
        if type(value) is not str or value not in list(expected):
            raise FileFormatError(f"{place} must be one of {', '.join(expected)}, not {value!r:.80}")
        return expected(value)
    accepted = (int, float) if expected is float else (expected,)
    if type(value) not in accepted:
        raise FileFormatError(f"{place} must be a {expected.__name__}, not {value!r:.80}")
    if expected is float and abs(value) > 1e300:
        raise FileFormatError(f"{place} is out of range")
    return expected(value)
