"""The ``ebbtide`` command. What needs torch is imported when it is needed, so that the rest starts at once."""

import sys

import click

from ebbtide import __version__
from ebbtide.commands.analyze import analyze
from ebbtide.commands.compare import compare
from ebbtide.commands.doctor import doctor
from ebbtide.commands.explain import explain
from ebbtide.commands.import_snapshot import import_snapshot
from ebbtide.commands.machines import machines
from ebbtide.commands.plan import plan
from ebbtide.commands.probe import probe
from ebbtide.commands.report import report
from ebbtide.commands.run import run
from ebbtide.commands.simulate import simulate
from ebbtide.commands.sweep import sweep
from ebbtide.commands.trace import trace
from ebbtide.commands.verify import verify
from ebbtide.errors import EbbtideError
from ebbtide.units import name_options_as_the_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ebbtide", message="%(prog)s %(version)s")
def cli() -> None:
    """Trains PyTorch networks in far less fast memory than they need, with the same bits."""


for command in (
    run,
    verify,
    doctor,
    probe,
    machines,
    trace,
    import_snapshot,
    analyze,
    explain,
    report,
    plan,
    simulate,
    compare,
    sweep,
):
    cli.add_command(command)


def main() -> None:
    name_options_as_the_command()
    try:
        cli(prog_name="ebbtide")
    except EbbtideError as error:
        click.echo(f"ebbtide: error: {error}", err=True)
        sys.exit(error.exit_code)
