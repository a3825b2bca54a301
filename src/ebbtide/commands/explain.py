"""``ebbtide explain``: why a storage is where it is, in words."""

import click


@click.command()
def explain() -> None:
    """x"""
