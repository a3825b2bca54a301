"""``ebbtide estimate``: what training a script would need, without training."""

import sys
from pathlib import Path

import click

from ebbtide.commands.completion import machines
from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import json_option
from ebbtide.commands.program import ProgramCommand, program_argument, refuse_misplaced_options, tell_misplaced_options


@click.command(
    cls=ProgramCommand,
    options_metavar="[OPTIONS]",
    epilog=examples("ebbtide estimate train.py --epochs 3", "ebbtide estimate --json -m package.train"),
)
@click.option(
    "--machine",
    metavar="NAME|FILE",
    shell_complete=machines,
    type=click.Path(path_type=Path),
    help="A machine, whose FLOPs and bytes a second give the times. Default: this computer, and each operator is "
    "called.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=20.0,
    show_default=True,
    help="Call operators for at most about so long. Those that take most of the step come first.",
)
@click.option(
    "--within",
    metavar="P%",
    default="10%",
    show_default=True,
    help="Propose the smallest budget whose steps take at most so much longer.",
)
@json_option
@program_argument
def estimate(machine: Path | None, seconds: float, within: str, as_json: bool, program: tuple[str, ...]) -> None:
    """Estimate what training a script needs and takes, without training.

    Shows where the process and its tensors peak, and how long a step takes on this computer. For smaller budgets it
    shows the step's time, what is written to the disk, and for how long a common SSD bears that. The last line is a
    command to copy.

    The script runs on fake tensors until its second step has ended. Whatever else it does until then, it does: it reads
    its data, and writes its files.
    """
    from ebbtide.commands.tables import show_fitting
    from ebbtide.commands.trial_json import print_json
    from ebbtide.commands.working import working
    from ebbtide.estimate.command import PARTS, estimate_script
    from ebbtide.estimate.text import COLUMNS, LEAST_WANTED_FIRST, ending, heading, lines, to_figures
    from ebbtide.machines import find_machine
    from ebbtide.pipeline.reading import this_machine
    from ebbtide.report.summary import folded_for_terminal
    from ebbtide.units import parse_fraction

    refuse_misplaced_options(program, ("--machine", "--json"))
    try:
        small_cost = 1 + parse_fraction(within)
    except ValueError as error:
        raise click.UsageError(f"--within {within} is not a percentage, such as 25%.") from error
    tell_misplaced_options(program)
    on = this_machine(computes=True) if machine is None else find_machine(machine)
    with working(PARTS) as begin:
        found = estimate_script(program, on, seconds if machine is None else None, begin, small_cost)
    if as_json:
        print_json(to_figures(found, program))
        return
    show_fitting(folded_for_terminal(heading(found), sys.stdout) + "\n", COLUMNS, LEAST_WANTED_FIRST, lines(found))
    click.echo(ending(found, program))
