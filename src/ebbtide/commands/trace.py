"""``ebbtide trace``: what one step of a training script does with memory."""

import sys
from dataclasses import replace
from pathlib import Path

import click

from ebbtide.commands.program import ProgramCommand


@click.command(cls=ProgramCommand, options_metavar="[OPTIONS]")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    required=True,
    help="The trace. Of several steps, step.trace becomes step-2.trace, step-3.trace, ...",
)
@click.option(
    "--step",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="The first step to record, counted from 0. A step ends where an optimizer's step ends.",
)
@click.option("--steps", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many steps to record.")
@click.option("--keep-running", is_flag=True, help="Let the script run to its end; else it is ended once recorded.")
@click.argument("program", metavar="(SCRIPT | -m MODULE) [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def trace(output: Path, step: int, steps: int, keep_running: bool, program: tuple[str, ...]) -> None:
    """Record what one step of a training script does with memory.

    The script runs as it would under python; nothing moves and nothing is bounded. The trace holds every storage of
    the step, however small, and every operator with its time, module, phase, FLOPs and bytes.
    """
    from ebbtide.launch import find_program, trace_program
    from ebbtide.session import Session
    from ebbtide.settings import Settings

    settings = replace(
        Settings.from_environment(),
        fast=None,
        arena_bytes=None,
        disable=False,
        save_trace=str(output),
        trace_step=step,
        trace_steps=steps,
    )
    sys.exit(trace_program(find_program(program), Session(settings=settings), not keep_running))
