"""What a command that takes long is at, on a terminal: a line on standard error that goes when the work is done."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def working(parts: int) -> Iterator[Callable[[str], None]]:
    """Yields a function to call as each of so many ``parts`` begins, with what it is. Shows nothing where standard
    error is no terminal. Nothing else may be printed meanwhile."""
    if not sys.stderr.isatty():  # the library that draws takes as long to load as many a plan to make
        yield lambda what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    # Standard output stays what it is: rich would send it to the terminal, too, where it is a file.
    alone = Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not console.is_terminal,
    )
    with alone as shown:
        task = shown.add_task("", total=parts)
        begun = 0

        def begin(what: str) -> None:
            nonlocal begun
            shown.update(task, description=what, completed=begun, refresh=True)
            begun += 1

        yield begin
