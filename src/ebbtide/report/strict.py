"""Reads plain JSON values into frozen dataclasses and refuses what it does not know.

A field's declared type is its check: int, float, str, bool, a StrEnum, ``X | None``, ``tuple[X, ...]`` or another
dataclass. A missing field, an extra one and a value of another type are each a ReportError that names the place.
"""

from dataclasses import fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ebbtide.errors import ReportError

_Record = TypeVar("_Record")


def read_record(record_type: type[_Record], value: object, place: str) -> _Record:
    """``value`` as a ``record_type``; ``place`` is where it stands, for the error."""
    if not isinstance(value, dict):
        raise ReportError(f"{place} must be an object, not {type(value).__name__}")
    types = get_type_hints(record_type)
    known = {field.name for field in fields(record_type)}  # type: ignore[arg-type]
    if missing := known - value.keys():
        raise ReportError(f"{place} lacks {', '.join(sorted(missing))}")
    if unknown := value.keys() - known:
        raise ReportError(f"{place} has fields this version does not know: {', '.join(sorted(unknown))}")
    try:
        return record_type(**{name: _read(types[name], value[name], f"{place}.{name}") for name in known})
    except ValueError as error:
        raise error if isinstance(error, ReportError) else ReportError(f"{place}: {error}") from error


def _read(expected: Any, value: Any, place: str) -> object:
    if isinstance(expected, UnionType):
        choices = [choice for choice in get_args(expected) if choice is not NoneType]
        return None if value is None else _read(choices[0], value, place)
    if get_origin(expected) is tuple:
        if not isinstance(value, list):
            raise ReportError(f"{place} must be a list")
        return tuple(_read(get_args(expected)[0], item, f"{place}[{index}]") for index, item in enumerate(value))
    if is_dataclass(expected):
        return read_record(expected, value, place)  # type: ignore[arg-type]
    if issubclass(expected, StrEnum):
        if value not in list(expected):
            raise ReportError(f"{place} must be one of {', '.join(expected)}, not {value!r}")
        return expected(value)
    accepted = (int, float) if expected is float else (expected,)
    if type(value) not in accepted:
        raise ReportError(f"{place} must be a {expected.__name__}, not {value!r}")
    return float(value) if expected is float else value
