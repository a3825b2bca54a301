"""``ebbtide machines``: the documented machines that come with Ebbtide."""

import click

from ebbtide.commands.completion import machine_names
from ebbtide.commands.examples import examples


@click.command(epilog=examples("ebbtide machines", "ebbtide machines h200 > mine.toml"))
@click.argument("name", required=False, shell_complete=machine_names)
def machines(name: str | None) -> None:
    """List the documented machines, or show one with its sources.

    A command that takes --machine accepts the NAME of any of these machines. It also accepts a FILE, such as a changed
    copy of what this command prints.
    """
    from ebbtide.machines import find_machine, names, text_of

    if name is not None:
        click.echo(text_of(name), nl=False)
        return
    for known in names():
        click.echo(f"{known:<12} {find_machine(known).name}")
