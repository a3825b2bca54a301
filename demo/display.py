"""What is on the screen while a run goes on: a bar on a terminal; elsewhere lines, one a step, more if it takes long.

The steps are read off what the run prints, by whoever starts it; seconds count from its start.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

StepEnded = Callable[[int], None]
"""Is told how many of a run's steps have ended."""

_SILENT_S = 15.0
"""After so long without a step, a line says that the run goes on."""


def say(console: Console, text: str) -> None:
    """A line as it is: neither wrapped nor coloured."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def shown(console: Console, steps: int, silent_s: float = _SILENT_S) -> Iterator[StepEnded]:
    """While the block runs, a run of so many steps is shown; what is yielded is called from the block's thread."""
    with _bar(console, steps) if console.is_terminal else _lines(console, steps, silent_s) as ended:
        yield ended


def _text(ended: int, steps: int) -> str:
    return f"step {ended} of {steps}" if ended else "starting"


@contextmanager
def _bar(console: Console, steps: int) -> Iterator[StepEnded]:
    text = TextColumn("{task.description}")
    columns = (TextColumn("   "), SpinnerColumn(), text, BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(_text(0, steps), total=steps)
        yield lambda ended: progress.update(task, completed=ended, description=_text(ended, steps))


@contextmanager
def _lines(console: Console, steps: int, silent_s: float) -> Iterator[StepEnded]:
    started = time.monotonic()
    latest, closing = 0, False
    news = threading.Event()  # that a step ended, or the run

    def line(still: str) -> None:
        say(console, f"    {still}{_text(latest, steps)}, {time.monotonic() - started:.0f} s")

    def speak_up() -> None:
        while not closing:
            if news.wait(silent_s):
                news.clear()
            else:
                line("still ")

    def ended(number: int) -> None:
        nonlocal latest
        latest = number
        line("")
        news.set()

    thread = threading.Thread(target=speak_up, name="demo-lines", daemon=True)
    thread.start()
    try:
        yield ended
    finally:
        closing = True
        news.set()
        thread.join()
