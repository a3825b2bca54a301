"""``ebbtide machines``: the documented machines that come along."""

import click

from ebbtide.commands.examples import examples


@click.command(epilog=examples("ebbtide machines", "ebbtide machines h200 > mine.toml"))
@click.argument("name", required=False)
def machines(name: str | None) -> None:
    """List the documented machines, or show one with its sources.

    A machine's NAME can be given wherever a command takes --machine; a changed copy of what this prints is a FILE.
    """
    from ebbtide.machines import find_machine, names, text_of

    if name is not None:
        click.echo(text_of(name), nl=False)
        return
    for known in names():
        click.echo(f"{known:<12} {find_machine(known).name}")
