"""What a command that takes long is at, on a terminal: a line on standard error that goes when the work is done."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Work:
    """Called as each part begins, with what it is. Nothing else may be printed meanwhile than what it ``say``s."""

    def __init__(self, shown: "Progress | None" = None, task: "TaskID | None" = None) -> None:
        """``task`` is the line of ``shown``; None: there is no terminal."""
        self._shown = shown
        self._task = task
        self._begun = 0

    def __call__(self, what: str) -> None:
        if self._shown is not None and self._task is not None:
            self._shown.update(self._task, description=what, completed=self._begun, refresh=True)
        self._begun += 1

    def say(self, text: str) -> None:
        """A line that stays, on standard error."""
        if self._shown is None:
            print(text, file=sys.stderr)
        else:
            self._shown.console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def working(parts: int) -> Iterator[Work]:
    """For work of so many parts. Only what is said is shown where standard error is no terminal."""
    if not sys.stderr.isatty():  # the library that draws takes as long to load as many a plan to make
        yield Work()
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
        refresh_per_second=2,  # the clock shows seconds, and a probe that is shown measures meanwhile
        disable=not console.is_terminal,
    )
    with alone as shown:
        yield Work(shown, shown.add_task("", total=parts))
