"""The file format of traces, plans and timelines: NumPy's ``.npz``, by ``docs/format.md``. Machines are TOML.

A file has a header, JSON as an array of bytes, and an array for each column of the tables. The columns are those of the
dataclasses, so what is stored is defined once. The reader refuses every file that it does not know in full. It does so
before it allocates what the file claims to hold.
"""

import io
import json
import re
import zipfile
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, TypeAlias, TypeVar, get_args, get_origin

import numpy as np
import numpy.typing as npt

from ebbtide.errors import FileFormatError, SettingError
from ebbtide.ir.base import Ints
from ebbtide.ir.plan import Plan
from ebbtide.ir.records import read_value, refusing_damage
from ebbtide.ir.run_report import FORMAT as RUN_REPORT
from ebbtide.ir.table import Table, columns_of, kinds_of, rows_of
from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Trace
from ebbtide.units import GIB, MIB
from ebbtide.whole_file import is_special, write_whole

VERSION = 13
MOST_ROWS = MIB
_NAMES: dict[type[Trace] | type[Plan] | type[Timeline], str] = {Trace: "trace", Plan: "plan", Timeline: "timeline"}
_HEADER = "header"
_FIELDS = ["format", "version", "kind", "fields", "strings"]
_FORMAT = "ebbtide"
_MOST_FILE_BYTES = GIB
_MOST_HEADER_BYTES = 64 * MIB
_MOST_ACCESSES = 16 * MIB
_ARRAY_START = re.compile(
    rb"\x93NUMPY\x01\x00\{'descr': '(..\d)', 'fortran_order': False, 'shape': \((\d{1,9}),\), \} *\n", re.DOTALL
)
"""How NumPy begins an array of one dimension. Its own reader takes this for Python's code, which may be anything."""
_ARRAY_LENGTH_AT, _MOST_ARRAY_START_BYTES = 8, 256

_Stored = TypeVar("_Stored", Trace, Plan, Timeline)
_Columns: TypeAlias = dict[str, Any]  # a field's name and its declared type


def save(value: Trace | Plan | Timeline, path: Path) -> None:
    """Write the file whole or not at all."""
    write_whole(path, encode(value))


def load(path: Path, kind: type[_Stored]) -> _Stored:
    """Raise FileFormatError unless it is a whole file of this kind and version, and SettingError if it cannot be
    read."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_FILE_BYTES + 1)
        return decode(data, kind)
    except OSError as error:
        raise SettingError(f"the {_NAMES[kind]} {path} cannot be read: {error.strerror or error}") from error
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {_with_hint(str(error), kind, data)}") from error


def _with_hint(error: str, kind: type[_Stored], data: bytes) -> str:
    """Say of a file of another kind how to get one of this kind."""
    writes = f"`ebbtide run --save-{_NAMES[kind]}` writes one"
    if f'"{RUN_REPORT}"'.encode() in data[:64]:
        return f"this is the report of a run, not a {_NAMES[kind]}: {writes}"
    return f"{error}: {writes}" if error.endswith(f"not a {_NAMES[kind]}") else error


def kind_of(path: Path) -> type[Trace] | type[Plan] | type[Timeline] | None:
    """Return the kind that a file claims; None if Ebbtide did not write it. Raises FileFormatError or OSError."""
    if is_special(path):  # it is read again
        raise FileFormatError(f"{path} is a pipe or a device: write it to a file first")
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            return None
        try:
            with refusing_damage("the file is damaged"), zipfile.ZipFile(file) as archive:
                if f"{_HEADER}.npy" not in archive.namelist():
                    return None
                header = _header(archive)
        except FileFormatError as error:
            raise FileFormatError(f"{path}: {error}") from error
    return {name: kind for kind, name in _NAMES.items()}.get(header["kind"])


def encode(value: Trace | Plan | Timeline) -> bytes:
    scalars, tables = _schema(type(value))
    strings: dict[str, int] = {}
    arrays = {
        f"{table}.{name}": _numbered(column, strings)
        for table in tables
        for name, column in _columns(kinds_of(type(value))[table], getattr(value, table)).items()
    }
    header = {
        "format": _FORMAT,
        "version": VERSION,
        "kind": _NAMES[type(value)],
        "fields": {name: getattr(value, name) for name in scalars},
        "strings": list(strings),
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **{_HEADER: np.frombuffer(text, np.uint8)}, **arrays)
    return file.getvalue()


def decode(data: bytes, kind: type[_Stored]) -> _Stored:
    """The opposite of ``encode``; raises FileFormatError for all other bytes."""
    if len(data) > _MOST_FILE_BYTES:
        raise FileFormatError("the file is too large")
    if not data:
        raise FileFormatError("the file is empty")
    with refusing_damage("not a whole file that Ebbtide wrote"), zipfile.ZipFile(io.BytesIO(data)) as archive:
        return _read(archive, kind)


def _read(archive: zipfile.ZipFile, kind: type[_Stored]) -> _Stored:
    header = _header(archive)
    if header["kind"] != _NAMES[kind]:
        raise FileFormatError(f"this holds a {header['kind']!r:.40}, not a {_NAMES[kind]}")
    scalars, tables = _schema(kind)
    if not isinstance(header["fields"], dict) or header["fields"].keys() != scalars.keys():
        raise FileFormatError("the header does not have the fields of this version")
    expected: list[str] = [f"{table}.{name}.npy" for table, columns in tables.items() for name in columns]
    if sorted(archive.namelist()) != sorted([f"{_HEADER}.npy", *expected]):
        raise FileFormatError("the file does not have the columns of this version")
    strings = read_value(tuple[str, ...], header["strings"], "strings")
    values = {name: read_value(scalars[name], header["fields"][name], name) for name in scalars}
    types = kinds_of(kind)
    for table, columns in tables.items():
        most = _MOST_ACCESSES if table == "accesses" else MOST_ROWS
        found = {name: _array(archive, f"{table}.{name}", np.dtype("<i8"), most) for name in columns}
        values[table] = _table(types[table], found, strings, table)
    return kind(**values)


def _header(archive: zipfile.ZipFile) -> dict[str, Any]:
    text = _array(archive, _HEADER, np.dtype("u1"), _MOST_HEADER_BYTES).tobytes()
    with refusing_damage("the header is damaged"):
        header = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise FileFormatError("not a file that Ebbtide wrote")
    if header.get("version") != VERSION:
        found = f"{header.get('version')!r:.40}"
        raise FileFormatError(f"it is of version {found}, and this Ebbtide reads version {VERSION}: write it again")
    if list(header) != _FIELDS or type(header["kind"]) is not str:
        raise FileFormatError("the header does not have the fields of this version")
    return header


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _array(archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], most: int) -> npt.NDArray[Any]:
    """Read one array of at most so many elements, once what the file claims of it makes sense."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # what others unpack to has no bound
        raise FileFormatError(f"{name} is packed by a method that this version does not read")
    if entry.file_size > most * dtype.itemsize + _MOST_ARRAY_START_BYTES:
        raise FileFormatError(f"{name} claims {entry.file_size} bytes, and at most {most} elements are read")
    with archive.open(entry) as file:
        start, length = file.read(_ARRAY_LENGTH_AT), int.from_bytes(file.read(2), "little")
        claims, content = _ARRAY_START.fullmatch(start + file.read(length)), file.read()
    if claims is None or claims[1].decode() != dtype.str or int(claims[2]) * dtype.itemsize != len(content):
        raise FileFormatError(f"{name} does not have the elements of this version")
    return np.frombuffer(content, dtype)


def _schema(kind: type) -> tuple[_Columns, dict[str, _Columns]]:
    """Read a stored type's scalars, and the columns of its tables, from the declarations of its dataclasses."""
    scalars, tables = {}, {}
    for name, declared in kinds_of(kind).items():
        if (record := _record_of(declared)) is None:
            scalars[name] = declared
        else:
            tables[name] = kinds_of(record)
    return scalars, tables


def _record_of(declared: Any) -> type | None:
    """The record of a table's rows; None for a scalar. A table is a ``Table``, or a tuple of records."""
    if get_origin(declared) is tuple:
        record: type = get_args(declared)[0]
        return record
    return declared.ROW if isinstance(declared, type) and issubclass(declared, Table) else None


def _columns(declared: Any, table: Any) -> dict[str, npt.NDArray[Any]]:
    record = _record_of(declared)
    assert record is not None
    if isinstance(table, Table):
        return {name: getattr(table, name) for name in kinds_of(record)}
    return columns_of(record, list(table))


def _numbered(column: npt.NDArray[Any], strings: dict[str, int]) -> Ints:
    """Convert a column to its stored form, in which a string is its number in ``strings``."""
    if column.dtype != object:
        return column.astype("<i8")
    return np.array([strings.setdefault(value, len(strings)) for value in column.tolist()], dtype="<i8")


def _table(declared: Any, stored: dict[str, Ints], strings: tuple[str, ...], place: str) -> object:
    """The opposite of ``_columns``, for columns as they are stored."""
    record = _record_of(declared)
    assert record is not None
    if len({len(column) for column in stored.values()}) > 1:
        raise FileFormatError(f"the columns of {place} differ in length")
    kinds = kinds_of(record)
    found = {name: _values(kinds[name], column, strings, f"{place}.{name}") for name, column in stored.items()}
    return tuple(rows_of(record, found)) if get_origin(declared) is tuple else declared(**found)


def _values(kind: Any, column: Ints, strings: tuple[str, ...], place: str) -> npt.NDArray[Any]:
    """Convert a stored column to its declared type; the opposite of ``_numbered``."""
    if kind is int or isinstance(kind, UnionType):
        return column
    choices = np.array((False, True) if kind is bool else strings, dtype=bool if kind is bool else object)
    if len(column) and not 0 <= int(column.min()) <= int(column.max()) < len(choices):
        raise FileFormatError(f"{place} has a value that does not exist")
    if issubclass(kind, StrEnum):
        for number in np.unique(column).tolist():
            choices[number] = read_value(kind, strings[number], place)
    return choices[column]
