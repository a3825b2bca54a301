"""The file format of traces, plans and timelines: ``docs/format.md`` has its table. Machines are TOML (``machine``).

A file has a prefix (magic, version, length of the header, checksum), a header in JSON, and columns compressed by zlib.
The columns are those of the dataclasses, so what is stored is defined once. The reader refuses every file that it does
not know in full. It does so before it allocates what the file claims to hold.
"""

import json
import struct
import zlib
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, TypeAlias, TypeVar, get_args, get_origin

import numpy as np
import numpy.typing as npt

from ebbtide.errors import FileFormatError
from ebbtide.ir.base import Ints
from ebbtide.ir.plan import Plan
from ebbtide.ir.records import read_value
from ebbtide.ir.table import Table, columns_of, kinds_of, rows_of
from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Trace
from ebbtide.units import GIB, MIB
from ebbtide.whole_file import write_whole

MAGIC = b"ebbtide\n"
VERSION = 7

_PREFIX = struct.Struct("<8sIII")  # magic, version, bytes of the header, CRC-32 of all but the magic and the CRC itself
_NAMES: dict[type[Trace] | type[Plan] | type[Timeline], str] = {Trace: "trace", Plan: "plan", Timeline: "timeline"}
_MOST_FILE_BYTES = GIB
_MOST_HEADER_BYTES = 64 * MIB
MOST_ROWS = MIB
_MOST_ACCESSES = 16 * MIB

_Stored = TypeVar("_Stored", Trace, Plan, Timeline)
_Columns: TypeAlias = dict[str, Any]  # a field's name and its declared type


def save(value: Trace | Plan | Timeline, path: Path) -> None:
    """Write the file whole or not at all."""
    write_whole(path, encode(value))


def load(path: Path, kind: type[_Stored]) -> _Stored:
    """Raise FileFormatError unless it is a whole file of this kind and version, and OSError if it cannot be read."""
    with path.open("rb") as file:
        data = file.read(_MOST_FILE_BYTES + 1)
    try:
        return decode(data, kind)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error


def kind_of(path: Path) -> type[Trace] | type[Plan] | type[Timeline] | None:
    """Return the kind that a file claims; None without Ebbtide's magic. Raises FileFormatError or OSError."""
    with path.open("rb") as file:
        prefix = file.read(_PREFIX.size)
        if not prefix.startswith(MAGIC) or len(prefix) < _PREFIX.size:
            return None
        text = file.read(min(_PREFIX.unpack(prefix)[2], _MOST_HEADER_BYTES))
    try:
        return {name: kind for kind, name in _NAMES.items()}[json.loads(text)["kind"]]
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise FileFormatError(f"{path}: the header is damaged: {error}") from error


def encode(value: Trace | Plan | Timeline) -> bytes:
    scalars, tables = _schema(type(value))
    strings: dict[str, int] = {}
    columns = {
        table: [_numbered(column, strings) for column in _columns(getattr(value, table)).values()]
        for table in tables
    }
    header = {
        "kind": _NAMES[type(value)],
        "fields": {name: getattr(value, name) for name in scalars},
        "tables": {
            table: {"rows": len(getattr(value, table)), "columns": list(names)}
            for table, names in tables.items()
        },
        "strings": list(strings),
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    differences = [np.diff(column, prepend=0) for table in columns.values() for column in table]
    rest = text + zlib.compress(b"".join(column.astype("<i8").tobytes() for column in differences))
    return _PREFIX.pack(MAGIC, VERSION, len(text), _checksum(VERSION, len(text), rest)) + rest


def decode(data: bytes, kind: type[_Stored]) -> _Stored:
    """The opposite of ``encode``; raises FileFormatError for all other bytes."""
    text, body = _header_and_body(data)
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"the header is damaged: {error}") from error
    scalars, tables = _schema(kind)
    if not isinstance(header, dict) or header.keys() != {"kind", "fields", "tables", "strings"}:
        raise FileFormatError("the header does not have the fields of this version")
    if header["kind"] != _NAMES[kind]:
        raise FileFormatError(f"this holds a {header['kind']!r:.40}, not a {_NAMES[kind]}")
    strings = read_value(tuple[str, ...], header["strings"], "strings")
    found = _read_columns(_rows(header["tables"], tables), tables, body)
    if not isinstance(header["fields"], dict) or header["fields"].keys() != scalars.keys():
        raise FileFormatError("the header does not have the fields of this version")
    values = {name: read_value(scalars[name], header["fields"][name], name) for name in scalars}
    types = kinds_of(kind)
    try:
        for table, names in tables.items():
            values[table] = _table(types[table], names, found[table], strings, table)
        return kind(**values)
    except (ValueError, OverflowError) as error:
        raise FileFormatError(str(error)) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _checksum(version: int, n_header: int, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(struct.pack("<II", version, n_header)))


def _header_and_body(data: bytes) -> tuple[bytes, bytes]:
    """Return the header and the body of a file whose prefix and checksum are right."""
    if len(data) > _MOST_FILE_BYTES:
        raise FileFormatError("the file is too large")
    if not data:
        raise FileFormatError("the file is empty")
    if not data.startswith(MAGIC):
        raise FileFormatError("not a file that Ebbtide wrote")
    if len(data) < _PREFIX.size:
        raise FileFormatError("the file is truncated")
    _, version, n_header, checksum = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise FileFormatError(
            f"the file is of version {version}, and this Ebbtide reads version {VERSION}: write it again"
        )
    rest = data[_PREFIX.size :]
    if checksum != _checksum(version, n_header, rest):
        raise FileFormatError("the file is damaged or truncated: its checksum is wrong")
    if n_header > min(len(rest), _MOST_HEADER_BYTES):
        raise FileFormatError("the header is too large")
    return rest[:n_header], rest[n_header:]


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


def _columns(table: Any) -> dict[str, npt.NDArray[Any]]:
    if isinstance(table, Table):
        return {name: getattr(table, name) for name in kinds_of(table.ROW)}
    return columns_of(type(table[0]), list(table)) if table else {}


def _numbered(column: npt.NDArray[Any], strings: dict[str, int]) -> Ints:
    """Convert a column to its stored form, in which a string is its number in ``strings``."""
    if column.dtype != object:
        return column.astype(np.int64)
    return np.array([strings.setdefault(value, len(strings)) for value in column.tolist()], dtype=np.int64)


def _rows(declared: object, tables: dict[str, _Columns]) -> dict[str, int]:
    """Return the number of rows that each table claims, once it is within bounds."""
    if not isinstance(declared, dict) or list(declared) != list(tables):
        raise FileFormatError("the header does not have the tables of this version")
    rows = {}
    for table, names in tables.items():
        claim = declared[table]
        if not isinstance(claim, dict) or claim.keys() != {"rows", "columns"} or claim["columns"] != list(names):
            raise FileFormatError(f"table {table} does not have the columns of this version")
        rows[table] = read_value(int, claim["rows"], f"{table}.rows")
        most = _MOST_ACCESSES if table == "accesses" else MOST_ROWS
        if not 0 <= rows[table] <= most:
            raise FileFormatError(f"table {table} claims {rows[table]} rows, and at most {most} are read")
    return rows


def _read_columns(rows: dict[str, int], tables: dict[str, _Columns], body: bytes) -> dict[str, list[Ints]]:
    nbytes = 8 * sum(rows[table] * len(names) for table, names in tables.items())
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(body, nbytes + 1)
    except zlib.error as error:
        raise FileFormatError(f"the columns are damaged: {error}") from error
    if len(raw) != nbytes or not inflate.eof or inflate.unused_data:
        raise FileFormatError("the columns are not as long as the header says")
    columns, start = {}, 0
    for table, names in tables.items():
        block = np.frombuffer(raw, dtype="<i8", count=rows[table] * len(names), offset=start)
        columns[table] = list(np.cumsum(block.reshape(len(names), rows[table]), axis=1, dtype=np.int64))
        start += block.nbytes
    return columns


def _table(declared: Any, names: _Columns, columns: list[Ints], strings: tuple[str, ...], place: str) -> object:
    """The opposite of ``_columns``, for columns as they are stored."""
    record = _record_of(declared)
    assert record is not None
    stored = zip(names.items(), columns, strict=True)
    found = {name: _values(kind, column, strings, f"{place}.{name}") for (name, kind), column in stored}
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
