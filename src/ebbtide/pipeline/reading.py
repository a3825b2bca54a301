"""Reads files and says in one place what is wrong with them. Finds a step's machine."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ebbtide.errors import OTHER_STORAGES, FileFormatError, SettingError
from ebbtide.ir.files import kind_of, load
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.records import printable
from ebbtide.ir.run_report import FORMAT, RunReport
from ebbtide.ir.tiertrace import load_tiertrace
from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Trace
from ebbtide.machines import find_machine
from ebbtide.settings import ProgressMode, Settings
from ebbtide.simulator import recost
from ebbtide.terminal import tell
from ebbtide.units import MIB

AnyPath: TypeAlias = "str | os.PathLike[str]"

_MOST = 2.0**60
"""More bytes at once, or more ns, than anything has. No sum of the analysis below it leaves 64 bits."""


def read_trace(path: Path) -> tuple[Trace, Machine | None]:
    """Read a step, and the machine if the file has one. Raises FileFormatError, or SettingError for a missing file."""
    try:
        kind = kind_of(path)
        with path.open("rb") as file:
            begin = file.read(64)
        if kind is not None:
            return _printable(_countable(load(path, Trace), path)), None
        if begin.lstrip().startswith(b"{") and f'"{FORMAT}"'.encode() not in begin:
            trace, machine = load_tiertrace(path)
            return _printable(_countable(trace, path)), machine
    except OSError as error:
        raise SettingError(f"the trace {path} cannot be read: {error.strerror or error}") from error
    if f'"{FORMAT}"'.encode() in begin:
        raise FileFormatError(
            f"{path} is the report of a run, not a trace: `ebbtide report {path}` prints it, and `ebbtide run "
            "--save-trace` writes the step that the run recorded"
        )
    raise FileFormatError(
        f"{path} is not a trace: neither one that `ebbtide run --save-trace` wrote nor a JSON file of tiertrace/1"
    )


def _countable(trace: Trace, path: Path) -> Trace:
    rows = trace.storages
    generations = np.ceil((rows.death - rows.birth) / len(trace.ticks))
    nbytes = rows.nbytes + 2.0 * MIB  # pages may add this
    if float(generations @ nbytes) > _MOST or float(generations.max(initial=1.0)) * max(trace.step_ns, 1) > _MOST:
        raise FileFormatError(f"{path}: its storages hold more bytes, or live for longer, than can be added up")
    return trace


def _printable(trace: Trace) -> Trace:
    """Make names printable. It nearly always returns the same trace."""
    ticks, storages = trace.ticks, trace.storages
    columns = (ticks.operator, ticks.module, storages.module, storages.line)
    if all(map(str.isprintable, {trace.name, *(name for column in columns for name in column.tolist())})):
        return trace
    operators, tick_modules, modules, lines = (
        np.array([printable(name) for name in column.tolist()], dtype=object) for column in columns
    )
    return replace(
        trace,
        name=printable(trace.name),
        ticks=replace(ticks, operator=operators, module=tick_modules),
        storages=replace(storages, module=modules, line=lines),
    )


def read(path: Path) -> Trace | Plan | Timeline | Machine | RunReport:
    """Read what the file claims to hold. Raises FileFormatError, or SettingError if the file cannot be read."""
    try:
        kind = kind_of(path)
        if kind is Plan:
            return load(path, Plan)
        if kind is Timeline:
            return load(path, Timeline)
        if kind is None and path.suffix == ".toml":
            return find_machine(path)
        with path.open("rb") as file:
            is_report = f'"{FORMAT}"'.encode() in file.read(64)
        return RunReport.from_json(path.read_text()) if is_report else read_trace(path)[0]
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def step_on(
    trace: "Trace | AnyPath",
    machine: "Machine | AnyPath | None",
    change: Callable[[Machine], Machine] = lambda machine: machine,
) -> tuple[Trace, Machine]:
    """Return the step with its times on a machine, and the machine. It is the named one, the trace's own, or this
    computer, after ``change``. Raises SettingError for a device's step that comes without a machine."""
    step, its_machine = (trace, None) if isinstance(trace, Trace) else read_trace(Path(trace))
    if machine is not None:
        its_machine = machine if isinstance(machine, Machine) else find_machine(os.fspath(machine))
    elif its_machine is None and step.device is not None:
        raise SettingError(unlike_this_computer(step.device))
    on = change(its_machine or this_machine())
    return recost(step, on), on


def unlike_this_computer(device: str) -> str:
    return (
        f"the step was recorded on {device}, from which nothing moves to this computer's disk: name a machine with "
        f"--machine, such as h200, or one that `ebbtide probe --device {device} -o gpu.toml` measured"
    )


def this_machine(computes: bool = False) -> Machine:
    """Return this computer, as for ``ebbtide run``: a setting names it, or a probe measured it within the last week.
    Else it is probed now, which is said on standard error. ``computes``: also how fast it computes. Raises
    SpillError."""
    from ebbtide.host.spill import choose_spill_directories
    from ebbtide.probe.quick import probe_quick

    settings = Settings.from_environment()
    if settings.machine is not None:
        return find_machine(settings.machine)

    def say(text: str) -> None:
        if settings.progress is not ProgressMode.OFF:
            tell(f"ebbtide: {text}")

    return probe_quick(choose_spill_directories(settings.spill), settings.io_threads, say=say, computes=computes)


def read_plan(path: Path, trace: Trace) -> Plan:
    """Read a plan. Raises SettingError unless it is one for the trace."""
    plan = load(path, Plan)
    if plan.signature != trace.signature():
        raise SettingError(f"the plan {path} is not for the trace: {OTHER_STORAGES}")
    if not all(_is_of(stay, trace) for stay in plan.stays):
        raise SettingError(f"the plan {path} places storages or times that the trace does not have")
    return plan


def _is_of(stay: Stay, trace: Trace) -> bool:
    if stay.storage >= len(trace.storages):
        return False
    rows, number = trace.storages, stay.storage
    # A persistent storage's stay may run into the next step.
    end = 2 * len(trace.ticks) if rows.persistent[number] else rows.death[number]
    return bool(rows.birth[number] <= stay.start and stay.stop <= end)
