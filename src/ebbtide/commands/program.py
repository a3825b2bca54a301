"""What the commands share that run a training script: their command line, and how they warn."""

import warnings

import click

from ebbtide.errors import EbbtideWarning


class ProgramCommand(click.Command):
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


def warn_in_one_line() -> None:
    """Ours as one line from now on; the script's own warnings as they were."""
    other = warnings.formatwarning

    def one_line(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return (
            f"ebbtide: warning: {message}\n"
            if category is EbbtideWarning
            else other(message, category, filename, lineno, line)
        )

    warnings.formatwarning = one_line
