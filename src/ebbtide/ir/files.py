"""The file format of traces, plans and timelines: ``docs/format.md`` has its table. Machines are TOML (``machine``).

A prefix (magic, version, length of the header, checksum), a header in JSON, and columns compressed by zlib. The
columns are those of the dataclasses, so that there is one definition of what is stored. The reader refuses every
file that it does not know in full, before it makes room for what the file claims to hold.
"""

import json
import struct
import zlib
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from ebbtide.errors import FileFormatError
from ebbtide.ir.base import Ints
from ebbtide.ir.plan import Plan
from ebbtide.ir.records import read_value
from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Accesses, Trace
from ebbtide.units import GIB, MIB
from ebbtide.whole_file import write_whole

MAGIC = b"ebbtide\n"
VERSION = 7

_PREFIX = struct.Struct("<8sIII")  # magic, version, bytes of the header, CRC-32 of all but magic and itself
_NAMES: dict[type[Trace] | type[Plan] | type[Timeline], str] = {Trace: "trace", Plan: "plan", Timeline: "timeline"}
_MOST_FILE_BYTES = GIB
_MOST_HEADER_BYTES = 64 * MIB
MOST_ROWS = MIB  # of records, each of which becomes an object
_MOST_ACCESSES = 16 * MIB

_Stored = TypeVar("_Stored", Trace, Plan, Timeline)
_Columns: TypeAlias = dict[str, Any]  # a field's name and its declared type


def save(value: Trace | Plan | Timeline, path: Path) -> None:
    """Writes the file whole or not at all."""
    write_whole(path, encode(value))


def load(path: Path, kind: type[_Stored]) -> _Stored:
    """Raises FileFormatError for anything but a whole file of this kind and version; OSError if it cannot be read."""
    with path.open("rb") as file:
        data = file.read(_MOST_FILE_BYTES + 1)
    try:
        return decode(data, kind)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error


def kind_of(path: Path) -> type[Trace] | type[Plan] | type[Timeline] | None:
    """What a file says that it holds; None if Ebbtide's magic is not there. Raises FileFormatError, or OSError."""
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
        table: [_column(getattr(value, table), name, strings) for name in names] for table, names in tables.items()
    }
    header = {
        "kind": _NAMES[type(value)],
        "fields": {name: getattr(value, name) for name in scalars},
        "tables": {
            table: {"rows": len(getattr(value, table)), "columns": list(names)} for table, names in tables.items()
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
    types = get_type_hints(kind)
    try:
        for table, names in tables.items():
            values[table] = _records(types[table], names, found[table], strings, table)
        return kind(**values)
    except (ValueError, OverflowError) as error:
        raise FileFormatError(str(error)) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _checksum(version: int, n_header: int, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(struct.pack("<II", version, n_header)))


def _header_and_body(data: bytes) -> tuple[bytes, bytes]:
    """Those of a file whose prefix and checksum are right."""
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
    """The scalars of a stored type, and the columns of its tables, from its dataclasses' declarations."""
    scalars, tables = {}, {}
    for name, declared in _declared(kind).items():
        origin: object = get_origin(declared)
        if origin is tuple:
            tables[name] = _declared(get_args(declared)[0])
        elif declared is Accesses:
            tables[name] = _declared(Accesses)
        else:
            scalars[name] = declared
    return scalars, tables


def _declared(record: type) -> _Columns:
    types = get_type_hints(record)
    return {field.name: types[field.name] for field in fields(record) if field.init}


def _column(table: Any, name: str, strings: dict[str, int]) -> Ints:
    """One column of a table: a string is its number in ``strings``, None is -1."""
    if isinstance(table, Accesses):
        return getattr(table, name)  # type: ignore[no-any-return]
    values = [getattr(row, name) for row in table]
    return np.array(
        [
            strings.setdefault(value, len(strings)) if isinstance(value, str) else -1 if value is None else value
            for value in values
        ],
        dtype=np.int64,
    )


def _rows(declared: object, tables: dict[str, _Columns]) -> dict[str, int]:
    """How many rows each table claims to have, within bounds."""
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


def _records(declared: Any, names: _Columns, columns: list[Ints], strings: tuple[str, ...], table: str) -> object:
    if declared is Accesses:
        return Accesses(*columns)
    readable = [
        _values(expected, column, strings, f"{table}.{name}")
        for (name, expected), column in zip(names.items(), columns, strict=True)
    ]
    record = get_args(declared)[0]
    return tuple(record(*row) for row in zip(*readable, strict=True))


def _values(expected: Any, column: Ints, strings: tuple[str, ...], place: str) -> list[Any]:
    """A column's values as the declared type; the opposite of ``_column``."""
    numbers: list[int] = column.tolist()
    if isinstance(expected, UnionType):
        return [None if number == -1 else number for number in numbers]
    if expected is int:
        return numbers
    choices: tuple[Any, ...] = (False, True) if expected is bool else strings
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(choices):
        raise FileFormatError(f"{place} has a value that does not exist")
    if issubclass(expected, StrEnum):
        known = {text: read_value(expected, text, place) for text in {choices[number] for number in numbers}}
        return [known[choices[number]] for number in numbers]
    return [choices[number] for number in numbers]
