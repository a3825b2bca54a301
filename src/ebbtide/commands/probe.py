"""``ebbtide probe``: this machine as a file."""

import sys
from pathlib import Path

import click

from ebbtide.commands.completion import directories
from ebbtide.commands.examples import examples
from ebbtide.commands.program import joined_tiers


@click.command(epilog=examples("ebbtide probe -o machine.toml", "ebbtide probe --tier numa:1:32GiB -o machine.toml"))
@click.option(
    "--spill",
    metavar="DIR",
    shell_complete=directories,
    multiple=True,
    help="A directory to measure, as for `ebbtide run`.",
)
@click.option(
    *("--tier", "tiers"),
    metavar="KIND:SIZE",
    multiple=True,
    callback=joined_tiers,
    help="A tier to measure, as for `ebbtide run`.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=12.0,
    show_default=True,
    help="About so many seconds of measuring, besides making the files.",
)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write the machine as TOML, for planners."
)
@click.option(
    "--kernels",
    metavar="TRACE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also call the operators of this step again, with operands in memory and in a file.",
)
@click.option(
    "--kernel-seconds",
    type=click.FloatRange(1, 7 * 24 * 3600),
    default=60.0,
    show_default=True,
    help="About so many seconds of calling them. Those that take most of the step come first.",
)
def probe(
    spill: tuple[str, ...],
    tiers: str | None,
    seconds: float,
    output: Path | None,
    kernels: Path | None,
    kernel_seconds: float,
) -> None:
    """Measure this machine, for plans and simulations.

    Measures how fast memory and the spill directory are, and how much moving slows the operations beside it. Shows each
    figure's median and quartiles. Up to 1 GiB is written to unnamed files, which leave nothing behind.

    With --kernels, the step's operators are measured with their operands in memory and in a file. The machine that is
    written then has these times, and lets operations use the file in place, as a mapping. It is for `plan`, `simulate`,
    `compare` and `sweep`; `run` always moves an operation's storages into memory.
    """
    from ebbtide.commands.working import working
    from ebbtide.probe.command import probe_and_write
    from ebbtide.report.summary import folded_for_terminal, terminal_columns

    def show(text: str) -> None:
        click.echo(folded_for_terminal(text, sys.stdout))

    columns = terminal_columns(sys.stdout)
    probe_and_write(spill, seconds, output, show, kernels, kernel_seconds, tiers, working, columns)
