"""Options for the inputs of commands on traces: a step, a machine and budgets. All commands share them.

A trace is a file that Ebbtide wrote, or one of format ``tiertrace/1``, which brings its machine along. Without that
machine and without ``--machine``, the machine is this one, probed once and remembered, as for ``ebbtide run``.

    @click.command()
    @trace_argument
    @machine_options
    @fast_option
    def plan(trace: Path, machine: Path | None, changes: tuple[str, ...], fast: str | None) -> None:
        inputs = read_inputs(trace, machine, changes, fast)
"""

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ebbtide.commands.completion import directories, machines

if TYPE_CHECKING:
    from ebbtide.ir.machine import Machine
    from ebbtide.ir.trace import Trace

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A finite number within a range. nan lies in every range of click's."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


_File = click.Path(exists=True, dir_okay=False, path_type=Path)

trace_argument = click.argument("trace", type=_File)
"""The argument for the step, as parameter ``trace``."""

traces_argument = click.argument("traces", metavar="TRACE...", type=_File, nargs=-1, required=True)
"""The argument for several steps, as parameter ``traces``."""

fast_option = click.option(
    "--fast",
    metavar="SIZE|P%",
    help="Fast memory for tensors, or a share of the step's peak. Default: all of the machine's fastest tier.",
)
"""The option for one budget, as parameter ``fast``."""


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print every figure as JSON, in place of the usual output."
)
"""The option for JSON on standard output, as parameter ``as_json``."""


def machine_option(meaning: str, parameter: str = "machine", several: bool = False) -> Callable[[_Command], _Command]:
    """Return the option for a machine, or for several."""
    return click.option(
        *("--machine", parameter),
        metavar="NAME|FILE",
        multiple=several,
        shell_complete=machines,
        type=click.Path(path_type=Path),
        help=meaning,
    )


def route_options(machine: str) -> Callable[[_Command], _Command]:
    """Return the options of the route to a slow tier, as parameters ``machine``, ``slow_tier`` and ``bandwidth``."""
    bandwidth = click.option(
        "--bandwidth", metavar="SIZE[,SIZE]", help="Bytes a second out, and back, in place of a machine."
    )
    tier = click.option("--slow-tier", metavar="NAME", help="The machine's slow tier to move to. Default: the first.")
    return lambda command: machine_option(machine)(tier(bandwidth(command)))


def spill_option(meaning: str) -> Callable[[_Command], _Command]:
    """Return the option for spill directories, as parameter ``spill``."""
    return click.option("--spill", metavar="DIR", shell_complete=directories, multiple=True, help=meaning)


def machine_options(command: _Command) -> _Command:
    """Add the options of the machine, as parameters ``machine`` and ``changes``."""
    return machine_option(_CHOSEN)(_change_option(command))


def machines_options(command: _Command) -> _Command:
    """Add the same for several machines, as parameters ``machines`` and ``changes``."""
    return machine_option(f"{_CHOSEN} May be repeated.", "machines", several=True)(_change_option(command))


_CHOSEN = "A machine of `ebbtide machines` or a file, in place of the trace's or this computer."
_change_option = click.option(
    "--set",
    "changes",
    metavar="KEY=VALUE",
    multiple=True,
    help="Change a figure of the machine: gpu.capacity_bytes=32GiB, host_to_gpu.bytes_per_s=8e9. May be repeated.",
)


class Inputs(NamedTuple):
    """A command's inputs. ``budget_bytes`` bounds the machine's fastest tier, and is at most its capacity."""

    trace: "Trace"
    machine: "Machine"
    budget_bytes: int


def read_inputs(trace: Path, machine: Path | None, changes: Sequence[str], fast: str | None) -> Inputs:
    """Read the inputs that the options of this module name. Raises FileFormatError, SettingError and OSError."""
    from ebbtide.planners.base import budget_of

    step, its_machine = read_step(trace, machine, changes)
    return Inputs(step, its_machine, budget_of(fast, step, its_machine))


def read_step(trace: Path, machine: Path | None, changes: Sequence[str]) -> "tuple[Trace, Machine]":
    """Return the step, and the machine to plan for. If the machine has a rule for times, the step has its times.

    Raises FileFormatError for a trace without accesses.
    """
    from ebbtide.commands.machine_changes import apply_changes
    from ebbtide.pipeline.reading import step_on

    return step_on(trace, machine, lambda on: apply_changes(on, changes))


def budgets_of(fast: str, trace: "Trace", machine: "Machine") -> dict[str, int]:
    """Parse several budgets: ``15%,25%,8GiB``. Return the bytes of each, by its text."""
    from ebbtide.planners.base import budget_of

    return {text.strip(): budget_of(text.strip(), trace, machine) for text in fast.split(",")}
