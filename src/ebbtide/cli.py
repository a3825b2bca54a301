"""The ``ebbtide`` command. What needs torch is imported when it is needed, so that the rest starts at once."""

import sys
import warnings
from dataclasses import replace
from pathlib import Path

import click

from ebbtide import __version__
from ebbtide.errors import EbbtideError, EbbtideWarning


class RunCommand(click.Command):
    """Our options end where the script or ``-m`` begins: what follows belongs to the script, untouched."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [parameter for parameter in self.params if isinstance(parameter, click.Option)]
        valued = {name for option in options if not option.is_flag for name in option.opts}
        index = 0
        while index < len(args) and args[index].startswith("-") and not _names_module(args[index]):
            if args[index] == "--":
                return super().parse_args(ctx, args)
            index += 2 if args[index] in valued else 1
        return super().parse_args(ctx, [*args[:index], "--", *args[index:]])


def _names_module(argument: str) -> bool:
    return argument.startswith("-m")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ebbtide", message="%(prog)s %(version)s")
def cli() -> None:
    """Trains PyTorch networks in far less fast memory than they need, with the same bits."""


@cli.command(cls=RunCommand, options_metavar="[OPTIONS]")
@click.option(
    "--fast", metavar="SIZE|P%", help="Bound the process (8GiB), or the tensors to a share of their peak (25%)."
)
@click.option("--spill", metavar="DIR", help="Where tensors go when they leave memory: a directory on a local disk.")
@click.option("--policy", metavar="NAME", help="What decides which tensor moves when: ebbtide (default), demand, ...")
@click.option("--plan", metavar="FILE", help="Follow this plan in place of making one.")
@click.option("--machine", metavar="FILE", help="Plan for this machine (`ebbtide probe` writes one).")
@click.option("--save-trace", metavar="FILE", help="Write the recorded step.")
@click.option("--save-plan", metavar="FILE", help="Write its plan.")
@click.option("--report", metavar="FILE", help="Write the run's figures as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress and no summary.")
@click.argument("program", metavar="(SCRIPT | -m MODULE) [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    fast: str | None,
    spill: str | None,
    policy: str | None,
    plan: str | None,
    machine: str | None,
    save_trace: str | None,
    save_plan: str | None,
    report: str | None,
    quiet: bool,
    program: tuple[str, ...],
) -> None:
    """Run a training script within a budget.

    The script runs as it would under python, with all that follows its name as its arguments. Every option has an
    EBBTIDE_... variable too; EBBTIDE_DISABLE=1 runs the script alone. The exit status is the script's own, or 3 when
    the budget cannot work or was exceeded.
    """
    from ebbtide.launch import find_program, run_program
    from ebbtide.session import Session
    from ebbtide.settings import ProgressMode, Settings

    warnings.formatwarning = _format_warning
    settings = Settings.from_environment()
    settings = replace(
        settings,
        plan=plan or settings.plan,
        machine=machine or settings.machine,
        save_trace=save_trace or settings.save_trace,
        save_plan=save_plan or settings.save_plan,
    )
    session = Session(fast, spill, report, ProgressMode.OFF if quiet else None, policy, settings)
    sys.exit(run_program(find_program(program), session, quiet))


@cli.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def report(file: Path) -> None:
    """Show a report that `ebbtide run --report FILE` wrote."""
    from ebbtide.report.run_report import RunReport
    from ebbtide.report.summary import render_summary

    click.echo(render_summary(RunReport.from_json(file.read_text())))


@cli.command()
@click.option("--spill", metavar="DIR", help="The directory to measure, as for `ebbtide run`.")
@click.option(
    "--seconds", type=click.FloatRange(1, 3600), default=12.0, show_default=True, help="About how long to measure."
)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write the machine as TOML, for planners."
)
def probe(spill: str | None, seconds: float, output: Path | None) -> None:
    """Measure this machine: memory, the spill directory, and what moving costs the operations beside it.

    Shows each figure's median and quartiles. Up to 1 GiB is written to an unnamed file, which leaves nothing behind.
    """
    from ebbtide.probe.command import probe_and_write

    probe_and_write(spill, seconds, output, click.echo)


def main() -> None:
    try:
        cli(prog_name="ebbtide")
    except EbbtideError as error:
        click.echo(f"ebbtide: error: {error}", err=True)
        sys.exit(error.exit_code)


_format_other = warnings.formatwarning


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Ours as one line; the script's own warnings as they were."""
    if category is EbbtideWarning:
        return f"ebbtide: warning: {message}\n"
    return _format_other(message, category, filename, lineno, line)
