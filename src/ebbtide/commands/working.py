"""Shows on standard error what a long command is doing.

On a terminal, this is a line that goes when the work is done. Otherwise it is a line every ten seconds, for logs.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

import click

from ebbtide.commands.interrupts import ended_by_interrupt

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_EVERY_S = 10.0


class Work:
    """Call it with each part's name as the part begins. Meanwhile, print only through ``say`` and within ``aside``."""

    def __init__(self, parts: int, shown: "Progress | None" = None, task: "TaskID | None" = None) -> None:
        """Show progress in the line ``task`` of ``shown``. None means that there is no terminal."""
        self._parts = parts
        self._shown = shown
        self._task = task
        self._begun = 0
        self._what = ""

    def __call__(self, what: str) -> None:
        if self._shown is not None and self._task is not None:
            self._shown.update(self._task, description=what, completed=self._begun, refresh=True)
        self._begun += 1
        self._parts = max(self._parts, self._begun)  # some need one more than most
        self._what = what

    def say(self, text: str) -> None:
        """Write a line that stays to standard error."""
        if self._shown is None:
            print(text, file=sys.stderr)
        else:
            self._shown.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Open a block in which a part's results may be printed."""
        if self._shown is not None:
            self._shown.stop()
        yield
        if self._shown is not None:
            self._shown.start()

    @contextmanager
    def leaving_nothing(self) -> Iterator[None]:
        """Open a block that Ctrl-C ends within a second, whatever it is doing. No ``finally`` is reached then."""
        with ended_by_interrupt(self._leave):
            yield

    def _leave(self) -> None:
        if self._shown is not None:
            self._shown.stop()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        click.echo("ebbtide: interrupted", err=True)

    def told(self) -> str:
        return f"{self._begun} of {self._parts}, {self._what}" if self._begun else f"0 of {self._parts}"


@contextmanager
def working(parts: int) -> Iterator[Work]:
    """Show the progress of work in so many parts."""
    if not sys.stderr.isatty():  # loading the library that draws takes as long as making many a plan
        work = Work(parts)
        with _told_of(work):
            yield work
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    # Standard output stays what it is. If it is a file, rich would send it to the terminal, too.
    alone = Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        refresh_per_second=2,  # the clock shows seconds, and a probe may be measuring meanwhile
        disable=not console.is_terminal,
    )
    with alone as shown:
        yield Work(parts, shown, shown.add_task("", total=parts))


@contextmanager
def _told_of(work: Work) -> Iterator[None]:
    context = click.get_current_context(silent=True)
    name = "ebbtide" if context is None else context.command_path
    began, ended = monotonic(), Event()

    def tell() -> None:
        with suppress(OSError, ValueError):  # nobody reads it any more
            while not ended.wait(_EVERY_S):
                sys.stderr.write(f"{name}: {work.told()}, {monotonic() - began:.0f} s so far\n")
                sys.stderr.flush()

    teller = Thread(target=tell, daemon=True, name="ebbtide-work")
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
