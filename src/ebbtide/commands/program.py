"""The command line and the warnings that all commands share that run a training script."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ebbtide.commands.completion import files
from ebbtide.errors import EbbtideWarning
from ebbtide.in_front import InFrontOf
from ebbtide.settings import KNOBS
from ebbtide.terminal import folded_for_terminal, has_bars

_Command = TypeVar("_Command", bound=Callable[..., Any])

program_argument = click.argument(
    "program",
    metavar="(SCRIPT | -m MODULE) [ARGS]...",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    shell_complete=files,
)
"""The argument for the script with its own arguments, as parameter ``program``."""


def tier_option(meaning: str) -> Callable[[_Command], _Command]:
    """Return the option for slower tiers, as parameter ``tiers``."""
    return click.option(*("--tier", "tiers"), metavar="KIND:SIZE", multiple=True, callback=_joined_tiers, help=meaning)


def _joined_tiers(context: click.Context, parameter: click.Parameter, named: tuple[str, ...]) -> str | None:
    """Join the values of ``--tier`` as in EBBTIDE_TIERS. Returns None where it was not given.

    Raises SettingError.
    """
    if not named:
        return None
    KNOBS["EBBTIDE_TIERS"].read("--tier", joined := ",".join(named))
    return joined


_SEPARATED = "ebbtide.separated"
"""The key in a context's ``meta`` for ``--`` before the script. All that follows it is meant for the script."""


class ProgramCommand(click.Command):
    """A command whose options end where the script or ``-m`` begins. All that follows belongs to the script,
    untouched."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [parameter for parameter in self.params if isinstance(parameter, click.Option)]
        valued = {name for option in options if not option.is_flag for name in option.opts}
        index = 0
        while index < len(args) and args[index].startswith("-") and not names_module(args[index]):
            if args[index] == "--":
                ctx.meta[_SEPARATED] = True
                return super().parse_args(ctx, args)
            if args[index] in valued and not ctx.resilient_parsing:
                _require_value(ctx, args[index], args[index + 1 :])
            index += 2 if args[index] in valued else 1
        return super().parse_args(ctx, [*args[:index], "--", *args[index:]])


def _require_value(context: click.Context, option: str, rest: Sequence[str]) -> None:
    """Raise UsageError where nothing follows, or where another option or the script follows in place of a value."""
    if not rest:
        raise click.UsageError(f"{option} has no value, and no script or -m MODULE follows", context)
    if re.match(r"-(?![0-9.])", rest[0]) or rest[0].endswith(".py"):  # `-8GiB` is a size, and refused as one
        right = f"{context.command_path} {option} VALUE {' '.join(rest[: _words_of_name(rest)])}"
        raise click.UsageError(f"{option} has no value of its own, and would take {rest[0]} as one: {right}", context)


def names_module(argument: str) -> bool:
    return argument.startswith("-m")


def tell_misplaced_options(program: Sequence[str]) -> None:
    """Tell of the command's options that stand among the script's own arguments and were not given to the command."""
    open_options = _open_options(click.get_current_context())
    arguments = program[_words_of_name(program) :]
    if there := [argument for argument in arguments if argument.partition("=")[0] in open_options]:
        name = " ".join(program[: _words_of_name(program)])
        click.echo(
            f"ebbtide: {', '.join(there)} after {name}: passed on to it; options of ebbtide come before the program",
            err=True,
        )


def _open_options(context: click.Context) -> set[str]:
    """Return the options that the command was not given."""
    return {
        name
        for parameter in context.command.params
        if isinstance(parameter, click.Option) and parameter.name is not None
        for name in parameter.opts
        if context.get_parameter_source(parameter.name) is ParameterSource.DEFAULT
    }


def _words_of_name(program: Sequence[str]) -> int:
    return 2 if program[0] == "-m" else 1


def refuse_misplaced_options(program: Sequence[str], names: Sequence[str]) -> None:
    """Raise UsageError for one of these options among the script's arguments, if the command was not given it."""
    context = click.get_current_context()
    if context.meta.get(_SEPARATED):
        return
    open_options = _open_options(context)
    name = " ".join(program[: _words_of_name(program)])
    for argument in program[_words_of_name(program) :]:
        if argument.partition("=")[0] in open_options.intersection(names):
            raise click.UsageError(
                f"{argument} stands after {name} and so went to it. Options of ebbtide come before the program: "
                f"{context.command_path} {argument} ... {name} (If {name} has a {argument} of its own: "
                f"{context.command_path} -- {name} ...)"
            )


def warn_in_one_line() -> None:
    """Show our warnings without the line of our code from now on. The script's own warnings stay as they were."""

    def one_line(
        other: Callable[..., str], message: Warning | str, category: type[Warning], *at: Any, **line: Any
    ) -> str:
        if category is not EbbtideWarning:
            return other(message, category, *at, **line)
        own_line = "\n" if has_bars() else ""
        return own_line + folded_for_terminal(f"ebbtide: warning: {message}", hanging=len("ebbtide: ")) + "\n"

    InFrontOf.TERMINAL_WARNINGS.install(one_line)
