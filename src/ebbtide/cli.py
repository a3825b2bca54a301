"""The ``ebbtide`` command. Torch is imported only when it is needed, so all else starts at once."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from ebbtide import __version__
from ebbtide.commands.analyze import analyze
from ebbtide.commands.compare import compare
from ebbtide.commands.doctor import doctor
from ebbtide.commands.estimate import estimate
from ebbtide.commands.examples import examples
from ebbtide.commands.explain import explain
from ebbtide.commands.machines import machines
from ebbtide.commands.plan import plan
from ebbtide.commands.probe import probe
from ebbtide.commands.report import report
from ebbtide.commands.run import run
from ebbtide.commands.simulate import simulate
from ebbtide.commands.sweep import sweep
from ebbtide.commands.top import top
from ebbtide.commands.trace import trace
from ebbtide.commands.verify import verify
from ebbtide.errors import INTERRUPTED, EbbtideError
from ebbtide.terminal import tell
from ebbtide.units import name_options_as_the_command

SECTIONS = {
    "Train": (estimate, run, top, verify, doctor, probe),
    "See what a step does with memory": (trace, analyze, explain, report),
    "Plan and simulate": (plan, simulate, compare, sweep, machines),
}
EXAMPLES = examples(
    "ebbtide run --fast 8GiB train.py --epochs 3",
    "ebbtide run --fast 25% -m package.train",
    "ebbtide verify train.py",
    "ebbtide trace -o step.trace train.py",
    "ebbtide report step.trace -o step.html",
    "ebbtide compare step.trace --fast 25%,50%",
)
GUIDE = "The guide, docs/guide.md in Ebbtide's sources, goes through the commands by task."


class _Sections(click.Group):
    """Lists commands in the order in which people meet them, not by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            having = [name for name, each in self.commands.items() if _has_option(each, error.option_name)]
            if having:
                name = error.option_name
                text = f"{name} is an option of {_listed(having)}: `ebbtide {having[0]} {name} ...`"
                raise click.UsageError(text, ctx) from error
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args[0].endswith(".py"):
                raise click.UsageError(
                    f"{args[0]} is no command: `ebbtide run {args[0]} ...` trains with it", ctx
                ) from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("ebbtide: interrupted", err=True)
            ctx.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                width = formatter.width - formatter.current_indent - longest - 2
                rows = [(each.name or "", each.get_short_help_str(width)) for each in commands]
                formatter.write_dl([(name.ljust(longest), text) for name, text in rows])


def _has_option(command: click.Command, name: str) -> bool:
    return any(name in parameter.opts for parameter in command.params)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@click.group(cls=_Sections, epilog=f"{EXAMPLES}\n\n{GUIDE}", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ebbtide", message="%(prog)s %(version)s")
def cli() -> None:
    """Train PyTorch networks in far less fast memory than they need, with the same bits."""


for commands in SECTIONS.values():
    for command in commands:
        cli.add_command(command)


def main() -> None:
    name_options_as_the_command()
    try:
        cli(prog_name="ebbtide")
    except SystemExit as ended:
        if ended.code is not INTERRUPTED:
            raise
    except EbbtideError as error:
        tell(f"ebbtide: error: {error}")
        sys.exit(error.exit_code)
    except OSError as error:  # of a command's: a program's own errors end it as in Python
        tell(f"ebbtide: error: {_in_words(error)}")
        sys.exit(1)
    sys.excepthook = lambda *_: None  # it has been told
    raise KeyboardInterrupt  # Python then ends by SIGINT, which ends a shell's loop, too


def _in_words(error: OSError) -> str:
    try:
        os.getcwd()
    except OSError:
        return "the current directory was deleted: change to another"
    return f"{error.filename or 'the output cannot be written'}: {error.strerror or error}"
