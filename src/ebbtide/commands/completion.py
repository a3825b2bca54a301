"""Completes names as you type. What is slow to import is imported only then.

A shell completes files itself. Names that follow such an item are offered too, and files where none of them fits.
"""

from collections.abc import Collection

import click
from click.shell_completion import CompletionItem


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a file, as for a script and its arguments."""
    return [CompletionItem(incomplete, type="file")]


def directories(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a directory."""
    return [CompletionItem(incomplete, type="dir")]


def policies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a planner or an online policy; of a list with commas, the last one."""
    from ebbtide.pipeline.trials import policies

    before, comma, last = incomplete.rpartition(",")
    return _items([before + comma + name for name in policies() if name.startswith(last)], incomplete)


def orders(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an order of updates."""
    from ebbtide.settings import UpdateOrder

    return _items([str(order) for order in UpdateOrder], incomplete)


def machine_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a documented machine."""
    from ebbtide.machines import names

    return _items(names(), incomplete)


def machines(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a documented machine, or a file."""
    return [*files(context, parameter, incomplete), *machine_names(context, parameter, incomplete)]


def _items(names: Collection[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
