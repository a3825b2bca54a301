"""``ebbtide doctor``: examines whether this machine can train within a budget, and what would make it faster."""

import shutil
import sys

import click

from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import spill_option


@click.command(epilog=examples("ebbtide doctor", "ebbtide doctor -v --spill DIR"))
@spill_option("A directory to examine, as for `ebbtide run`.")
@click.option("--device", metavar="NAME", help="An accelerator to examine. Default: the one that PyTorch sees.")
@click.option("-v", "--verbose", is_flag=True, help="Explain every finding, also where all is well.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(spill: tuple[str, ...], device: str | None, verbose: bool, as_json: bool) -> None:
    """Find what keeps Ebbtide from running here, or makes it slow.

    Each finding is ok, a hint or a problem. Hints and problems come with their meaning and a remedy. The exit status is
    1 only if something keeps Ebbtide from running.
    """
    from ebbtide.doctor.examine import examine
    from ebbtide.doctor.text import render, runs, to_json
    from ebbtide.doctor.view import this_machine
    from ebbtide.settings import Settings

    chosen = Settings.from_environment()
    findings = examine(this_machine(), spill or chosen.spill, device or chosen.device)
    columns = shutil.get_terminal_size().columns
    click.echo(to_json(findings) if as_json else render(findings, columns, verbose))
    sys.exit(0 if runs(findings) else 1)
