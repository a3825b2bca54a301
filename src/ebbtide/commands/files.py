"""Files that commands read, and what goes wrong with them, said once."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ebbtide.analysis.swapping import Route, assumed_route, route_of
from ebbtide.analysis.texts import printable
from ebbtide.commands import inputs
from ebbtide.errors import FileFormatError, SettingError
from ebbtide.ir.base import Origin
from ebbtide.ir.files import load
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan
from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Trace
from ebbtide.machines import find_machine
from ebbtide.units import parse_size

_MOST = 2.0**60
"""More bytes at once, or more ns, than anything has. Below it, no sum of the analysis leaves 64 bits."""


def read_trace(path: Path) -> tuple[Trace, Machine | None]:
    """A trace, or one in the format tiertrace/1 with its machine. Raises FileFormatError, or SettingError: no file."""
    try:
        trace, machine = inputs.read_trace(path)
    except OSError as error:
        raise SettingError(f"the trace {path} cannot be read: {error.strerror or error}") from error
    generations = np.array(
        [-(-(row.death - row.birth) // len(trace.ticks)) for row in trace.storages], dtype=np.float64
    )
    nbytes = np.array([row.nbytes for row in trace.storages], dtype=np.float64)
    if float(generations @ nbytes) > _MOST or float(generations.max(initial=1.0)) * max(trace.step_ns, 1) > _MOST:
        raise FileFormatError(f"{path}: its storages hold more bytes, or live for longer, than can be added up")
    return _printable(trace), machine


def _printable(trace: Trace) -> Trace:
    """With names that can be shown; nearly always the same trace."""
    names = [trace.name, *(row.module for row in trace.storages)]
    names += [name for tick in trace.ticks for name in (tick.operator, tick.module)]
    if all(map(str.isprintable, set(names))):
        return trace
    return replace(
        trace,
        name=printable(trace.name),
        ticks=tuple(
            replace(row, operator=printable(row.operator), module=printable(row.module)) for row in trace.ticks
        ),
        storages=tuple(replace(row, module=printable(row.module)) for row in trace.storages),
    )


def read_plan(path: Path, trace: Trace) -> Plan:
    """Raises SettingError unless it is a plan for the trace."""
    try:
        plan = load(path, Plan)
    except OSError as error:
        raise SettingError(f"the plan {path} cannot be read: {error.strerror or error}") from error
    if plan.signature != trace.signature():
        raise SettingError(f"the plan {path} was made for another step: it and the trace must be of the same run")
    return plan


def read_timeline(path: Path) -> Timeline:
    """Raises SettingError if there is no such file."""
    try:
        return load(path, Timeline)
    except OSError as error:
        raise SettingError(f"the timeline {path} cannot be read: {error.strerror or error}") from error


def way_of(
    machine: Path | None, bandwidth: str | None, tier: str | None, own: Machine | None
) -> tuple[Route | None, str, Origin]:
    """The way to a slow tier, what it is of, and how its figures were obtained: from a machine file, from given
    bandwidths, or from the machine that came with the trace. Raises SettingError."""
    if bandwidth is not None:
        if machine is not None or tier is not None:
            raise SettingError("give a machine (and its tier) or a bandwidth, not both")
        return assumed_route(*_bandwidths(bandwidth)), f"a link of {bandwidth} a second", Origin.ASSUMED
    chosen = find_machine(machine) if machine is not None else own
    if chosen is None:
        if tier is not None:
            raise SettingError("--tier names a tier of a machine: give one with --machine FILE")
        return None, "", Origin.ASSUMED
    route = route_of(chosen, tier)
    if route is None:
        wanted = "a slow tier" if tier is None else f"a slow tier {tier!r:.80}"
        names = ", ".join(row.name for row in chosen.tiers)
        raise SettingError(f"{chosen.name} has no {wanted.removeprefix('a ')} with links both ways; its tiers: {names}")
    return route, f"{chosen.name}, tier {route.tier}", chosen.origin


def _bandwidths(text: str) -> list[int]:
    try:
        found = [parse_size(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingError(f"--bandwidth: {error}") from error
    if len(found) > 2 or not all(found):
        raise SettingError(f"--bandwidth takes one size a second, or one out and one back, above 0; not {text!r:.80}")
    return found
