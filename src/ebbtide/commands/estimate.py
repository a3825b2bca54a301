"""``ebbtide estimate``: what training a script would need, without training."""

import sys
from pathlib import Path

import click

from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import Number, json_option, machine_option
from ebbtide.commands.program import ProgramCommand, program_argument, refuse_misplaced_options, tell_misplaced_options


@click.command(
    cls=ProgramCommand,
    options_metavar="[OPTIONS]",
    epilog=examples("ebbtide estimate train.py --epochs 3", "ebbtide estimate --json -m package.train"),
)
@machine_option(
    "A machine, whose FLOPs and bytes a second give the times. Default: this computer, and each operator is called."
)
@click.option("--device", metavar="NAME", help="Budgets for an accelerator's memory, on --machine, such as h100.")
@click.option(
    "--seconds",
    type=Number(0.1, 3600),
    default=20.0,
    show_default=True,
    help="Call operators for at most about so long. Those that take most of the step come first.",
)
@click.option(
    "--within",
    metavar="P%",
    default="10%",
    show_default=True,
    help="Propose the smallest budget whose steps take at most so much longer; on a device, the fastest that fits.",
)
@json_option
@program_argument
def estimate(
    machine: Path | None, device: str | None, seconds: float, within: str, as_json: bool, program: tuple[str, ...]
) -> None:
    """Estimate what training a script needs and takes, without training.

    Shows where the process and its tensors peak, and how long a step takes on this computer. For smaller budgets it
    shows the step's time, what is written to the disk, and for how long a common SSD bears that. The last line is a
    command to copy.

    The script runs on fake tensors until its second step has ended. Whatever else it does until then, it does: it reads
    its data, and writes its files. Only torch.save() does nothing.
    """
    from ebbtide.commands.interrupts import ended_by_sigterm
    from ebbtide.commands.tables import show_fitting
    from ebbtide.commands.trial_json import print_json
    from ebbtide.commands.working import working
    from ebbtide.estimate.command import PARTS, estimate_script
    from ebbtide.estimate.text import COLUMNS, LEAST_WANTED_FIRST, ON_DEVICE, ending, heading, lines, to_figures
    from ebbtide.machines import find_machine
    from ebbtide.pipeline.reading import this_machine
    from ebbtide.session.launch import require_script
    from ebbtide.settings import Settings
    from ebbtide.terminal import folded_for_terminal
    from ebbtide.units import parse_percentage

    refuse_misplaced_options(program, ("--machine", "--json"))
    device = device or Settings.from_environment().device
    if device is not None and machine is None:
        raise click.UsageError(
            f"a step's times on {device} are not known: name its --machine, such as h100; `ebbtide machines` lists them"
        )
    try:
        small_cost = 1 + parse_percentage(within)
    except ValueError as error:
        raise click.UsageError(f"--within {within} is not a percentage, such as 25%.") from error
    tell_misplaced_options(program)
    require_script(program)
    on = this_machine(computes=True) if machine is None else find_machine(machine)
    with ended_by_sigterm(), working(PARTS) as begin:
        found = estimate_script(program, on, seconds if machine is None else None, begin, small_cost, device)
    if as_json:
        print_json(to_figures(found, program))
        return
    columns = COLUMNS if device is None else ON_DEVICE
    show_fitting(folded_for_terminal(heading(found), sys.stdout) + "\n", columns, LEAST_WANTED_FIRST, lines(found))
    click.echo(ending(found, program))
