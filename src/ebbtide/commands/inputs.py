"""What commands on traces read: a step, a machine and budgets. One place, so that all of them take the same options.

A trace is a file that Ebbtide wrote, or one of format ``tiertrace/1``, whose machine comes along. Without that and
without ``--machine``, the machine is this one, probed once and remembered, as for ``ebbtide run``.

    @click.command()
    @trace_argument
    @machine_options
    @fast_option
    def plan(trace: Path, machine: Path | None, changes: tuple[str, ...], fast: str | None) -> None:
        inputs = read_inputs(trace, machine, changes, fast)
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ebbtide.errors import FileFormatError, SettingError
from ebbtide.units import parse_budget

if TYPE_CHECKING:
    from ebbtide.ir.machine import Machine
    from ebbtide.ir.trace import Trace

_Command = TypeVar("_Command", bound=Callable[..., Any])
_File = click.Path(exists=True, dir_okay=False, path_type=Path)

trace_argument = click.argument("trace", type=_File)
"""The step, as parameter ``trace``."""

fast_option = click.option(
    "--fast",
    metavar="SIZE|P%",
    help="Fast memory for tensors, or a share of the step's peak. Default: what the machine's fastest tier has.",
)
"""One budget, as parameter ``fast``."""


def machine_options(command: _Command) -> _Command:
    """The machine, as parameters ``machine`` and ``changes``."""
    change = click.option(
        "--set",
        "changes",
        metavar="KEY=VALUE",
        multiple=True,
        help="Change a figure of the machine: gpu.capacity_bytes=32GiB, host_to_gpu.bytes_per_s=8e9. May be repeated.",
    )
    file = click.option(
        "--machine",
        metavar="NAME|FILE",
        type=click.Path(path_type=Path),
        help="A machine of `ebbtide machines` or a file, in place of the trace's or this computer.",
    )
    return file(change(command))


class Inputs(NamedTuple):
    """``budget_bytes`` bounds the machine's fastest tier, and is at most its capacity."""

    trace: "Trace"
    machine: "Machine"
    budget_bytes: int


def read_inputs(trace: Path, machine: Path | None, changes: Sequence[str], fast: str | None) -> Inputs:
    """What the options of this module name. Raises FileFormatError, SettingError and OSError."""
    step, its_machine = read_step(trace, machine, changes)
    return Inputs(step, its_machine, budget_of(fast, step, its_machine))


def read_step(trace: Path, machine: Path | None, changes: Sequence[str]) -> "tuple[Trace, Machine]":
    """The step, with the machine's times if it has a rule for them, and the machine it is planned for."""
    from ebbtide.commands.machine_changes import changed
    from ebbtide.machines import find_machine
    from ebbtide.simulate import recosted

    step, its_machine = read_trace(trace)
    if machine is not None:
        its_machine = find_machine(machine)
    its_machine = changed(its_machine or this_machine(), changes)
    return recosted(step, its_machine), its_machine


def read_trace(path: Path) -> "tuple[Trace, Machine | None]":
    """A step, and the machine if the file has one. Raises FileFormatError."""
    from ebbtide.ir.files import MAGIC, load
    from ebbtide.ir.tiertrace import load_tiertrace
    from ebbtide.ir.trace import Trace

    with path.open("rb") as file:
        begin = file.read(64)
    if begin.startswith(MAGIC):
        return load(path, Trace), None
    if begin.lstrip().startswith(b"{"):
        return load_tiertrace(path)
    raise FileFormatError(
        f"{path} is not a trace: neither one that `ebbtide run --save-trace` wrote nor a JSON file of tiertrace/1"
    )


def budget_of(fast: str | None, trace: "Trace", machine: "Machine") -> int:
    """Bytes of the fastest tier that ``fast`` names: a size, a share of the step's peak, or None for all there is."""
    from ebbtide.ir.occupancy import live_bytes, peak
    from ebbtide.planners.base import page_size_of

    capacity = machine.tiers[0].capacity_bytes
    most = peak(live_bytes(trace, page_size_of(machine)))
    if fast is None:
        return most if capacity is None else capacity
    try:
        asked = parse_budget(fast)
    except ValueError as error:
        raise SettingError(f"--fast: {error}") from error
    wanted = asked.nbytes if asked.nbytes is not None else round((asked.fraction or 0) * most)
    return wanted if capacity is None else min(wanted, capacity)


def budgets_of(fast: str, trace: "Trace", machine: "Machine") -> list[int]:
    """For commands that compare several: ``15%,25%,8GiB``."""
    return [budget_of(text.strip(), trace, machine) for text in fast.split(",")]


def this_machine() -> "Machine":
    """As for ``ebbtide run``: named by a setting, or probed now or within the last week. Raises SpillError."""
    from ebbtide.machines import find_machine
    from ebbtide.probe.quick import probe_quick
    from ebbtide.runtime.spill import choose_spill_directories
    from ebbtide.settings import Settings

    settings = Settings.from_environment()
    if settings.machine is not None:
        return find_machine(settings.machine)
    return probe_quick(choose_spill_directories(settings.spill), settings.io_threads)
