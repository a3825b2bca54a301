"""``ebbtide trace``: records one step of a training script."""

import sys
from dataclasses import replace
from pathlib import Path

import click

from ebbtide.commands.completion import machines
from ebbtide.commands.examples import examples
from ebbtide.commands.program import (
    ProgramCommand,
    names_module,
    program_argument,
    refuse_misplaced_options,
    tell_misplaced_options,
    warn_in_one_line,
)
from ebbtide.host.own_thread import import_numpy


@click.command(
    cls=ProgramCommand,
    options_metavar="[OPTIONS]",
    epilog=examples("ebbtide trace train.py", "ebbtide trace --lines -o step.trace train.py --epochs 1"),
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The trace. Default: train.trace, here, for train.py. Several steps become train-3.trace, train-4.trace, ...",
)
@click.option(
    "--step",
    type=click.IntRange(1),
    help="The first step to record, counted from 1. Default: 3, or 2 with --fake. A step ends when every "
    "optimizer in use has stepped.",
)
@click.option("--steps", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many steps to record.")
@click.option("--keep-running", is_flag=True, help="Let the script run to its end. Default: end it once recorded.")
@click.option(
    "--fake", is_flag=True, help="Compute nothing and hold nothing: tensors have only shapes, and times are modelled."
)
@click.option(
    "--device", metavar="NAME", help="Record an accelerator's storages and times (cuda, cuda:1, auto), not the CPU's."
)
@click.option(
    "--lines",
    is_flag=True,
    default=None,
    help="Note the script's line that made each storage (file, line, function). Recording takes longer.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show nothing. The exit status is 1 if nothing was recorded.")
@click.option(
    "--machine",
    metavar="NAME|FILE",
    shell_complete=machines,
    help="With --fake: the machine whose FLOPs and bytes a second give the times. Default: this computer, measured "
    "for some seconds once a week.",
)
@program_argument
def trace(
    output: Path | None,
    step: int | None,
    steps: int,
    keep_running: bool,
    fake: bool,
    device: str | None,
    lines: bool | None,
    quiet: bool,
    machine: str | None,
    program: tuple[str, ...],
) -> None:
    """Record what one step of a training script does with memory.

    The script runs as under python; nothing moves and nothing is bounded. The trace holds every storage of the step,
    however small. It holds every operator with its time, module, phase, FLOPs and bytes.

    With --fake, even a model that fits no memory can be recorded. Numbers that the script reads out of tensors are 1,
    and torch.save() does nothing.
    """
    import_numpy()
    from ebbtide.session.launch import find_program, record_program
    from ebbtide.session.leaving import command_before
    from ebbtide.session.recorder import Recorder
    from ebbtide.settings import Settings

    if machine is not None and not fake:
        raise click.UsageError("--machine goes with --fake: without it, times are measured here")
    refuse_misplaced_options(program, ("-o", "--fake", "--lines", "--keep-running"))
    if not quiet:
        tell_misplaced_options(program)
    warn_in_one_line()
    settings = replace(Settings.from_environment(), disable=False, machine=machine)
    if output is None:
        output = named_for(program)
        if output.exists() and not quiet:
            click.echo(f"ebbtide: {output} is there already and will be replaced; -o names another file", err=True)
    recorder = Recorder(output, first=step, count=steps, fake=fake, lines=lines, device=device, settings=settings)
    command = command_before(program)
    sys.exit(record_program(find_program(program), recorder, not keep_running, quiet, command=command))


def named_for(program: tuple[str, ...]) -> Path:
    """Return ``train.trace`` for ``train.py`` and for ``-m package.train``."""
    script = program[0] if not names_module(program[0]) else (program[0][2:] or "".join(program[1:2])).split(".")[-1]
    return Path(f"{Path(script).stem or 'step'}.trace")
