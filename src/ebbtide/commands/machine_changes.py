"""Carries out ``--set KEY=VALUE``, which changes figures of a machine one by one.

A key is the name of a tier, a link or a group, with one of its figures: ``gpu.capacity_bytes``,
``host_to_gpu.latency_ns``, ``gpu_in.bytes_per_s``. It can also be ``compute.overlap`` or ``cost.years``. Every number
in ``ir.machine`` can be set.
"""

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from math import isfinite
from types import NoneType
from typing import Any, get_args, get_type_hints

from ebbtide.errors import SettingError, did_you_mean
from ebbtide.ir.machine import Compute, Cost, Link, LinkGroup, Machine, Tier
from ebbtide.units import SIZES_ACCEPTED, parse_size

UNLIMITED = "unlimited"
"""The value that removes a bound."""

_TABLES = ("tiers", "links", "groups", "compute", "cost")


def with_links(machine: Machine, factor: float) -> Machine:
    """Make all links and groups so many times as fast, beside operations, too."""

    def times(rate: int) -> int:
        return max(round(rate * factor), 1)

    def faster(link: Link) -> Link:
        beside = link.beside_bytes_per_s
        link = replace(link, bytes_per_s=times(link.bytes_per_s))
        return link if beside is None else replace(link, beside_bytes_per_s=times(beside))

    groups = tuple(replace(row, bytes_per_s=times(row.bytes_per_s)) for row in machine.groups)
    return replace(machine, links=tuple(map(faster, machine.links)), groups=groups)


def apply_changes(machine: Machine, changes: Sequence[str]) -> Machine:
    """Return the machine with every ``KEY=VALUE`` carried out in order. Raises SettingError."""
    for change in changes:
        key, equals, text = change.partition("=")
        places = _places(machine)
        if not equals or key.strip() not in places:
            raise SettingError(f"--set {change}: {_wrong(key.strip(), places)}")
        table, at, name = places[key.strip()]
        records = list(_records(machine, table))
        try:
            value = _read(text.strip(), get_type_hints(type(records[at]))[name])
            records[at] = replace(records[at], **{name: value})
            is_one = not isinstance(getattr(machine, table), tuple)
            with_it: dict[str, Any] = {table: records[0] if is_one else tuple(records)}
            machine = replace(machine, **with_it)
        except (ValueError, OverflowError) as error:
            raise SettingError(f"--set {change}: {error}") from error
    return machine


def _places(machine: Machine) -> dict[str, tuple[str, int, str]]:
    """Return every key, with the table, row and field that it names."""
    return {
        f"{_name(record)}.{field.name}": (table, at, field.name)
        for table in _TABLES
        for at, record in enumerate(_records(machine, table))
        for field in fields(record)
        if _number_type(get_type_hints(type(record))[field.name]) is not None
    }


def _wrong(key: str, places: Collection[str]) -> str:
    """Say which keys would be right in place of ``key``: figures of the record that it names, or names of records."""
    if key in places:
        return "write KEY=VALUE"
    near = did_you_mean(key, places)
    name, _, figure = key.rpartition(".")
    names = list(dict.fromkeys(place.rpartition(".")[0] for place in places))
    if name in names:
        has = [place.removeprefix(name) for place in places if place.rpartition(".")[0] == name]
        return f"{name} has no .{figure}{near}, but {', '.join(has)}"
    return f"KEY is a figure of {', '.join(names)}{near or f', such as {next(iter(places))}'}"


def _records(machine: Machine, table: str) -> tuple[Any, ...]:
    """Return a table's records. ``compute`` and ``cost`` are tables with one record."""
    found = getattr(machine, table)
    return found if isinstance(found, tuple) else (found,)


def _name(record: Tier | Link | LinkGroup | Compute | Cost) -> str:
    if isinstance(record, Compute | Cost):
        return type(record).__name__.lower()
    return f"{record.source}_to_{record.target}" if isinstance(record, Link) else record.name


def _number_type(declared: Any) -> type | None:
    """Return int or float for a field of that type, also if it may be None; None for any other field."""
    choices = [choice for choice in (get_args(declared) or (declared,)) if choice is not NoneType]
    return choices[0] if choices in ([int], [float]) else None


def _read(text: str, declared: Any) -> int | float | None:
    """Parse a number as people write it: 8e9, 32GiB, 0.06."""
    if text == UNLIMITED and NoneType in get_args(declared):
        return None
    if _number_type(declared) is float:
        if isfinite(number := float(text)):
            return number
        raise ValueError(f"{text!r} is not a finite number")
    try:
        return parse_size(text)
    except ValueError:
        pass
    try:
        return round(float(text))
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a number; accepted: {SIZES_ACCEPTED}, or one such as 8e9") from None
