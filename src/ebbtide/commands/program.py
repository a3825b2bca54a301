"""The shape of a command line that ends in a training script and its own arguments."""

import click


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
