"""Lines for whoever started the program: on standard error, as wide as the terminal, and never the end of a training.

A script may close standard error, put an object of its own in its place, or lose whoever reads it. Then a line of ours
is dropped, and the script goes on as it would without us.
"""

import os
import sys
from contextlib import suppress
from typing import TextIO


def tell(text: str, stream: TextIO | None = None) -> None:
    """Writes a line to ``stream`` (standard error), if that can be done."""
    stream = stream or sys.stderr
    if stream is not None:  # print would take standard output
        with suppress(Exception):  # an object of the script's may raise anything
            print(text, file=stream, flush=True)


def columns_of(stream: TextIO | None) -> int | None:
    """How wide the terminal is that ``stream`` writes to; None where it is none."""
    with suppress(Exception):
        if stream is not None and stream.isatty():
            return os.get_terminal_size(stream.fileno()).columns
    return None
