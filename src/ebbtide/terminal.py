"""Writes lines to standard error for whoever started the program. A failure to write never ends a training.

A script may close standard error, replace it with an object of its own, or lose its reader. Then our line is dropped,
and the script goes on as it would without us.
"""

import os
import sys
from contextlib import suppress
from typing import TextIO


def tell(text: str, stream: TextIO | None = None) -> None:
    """Write a line to ``stream``, by default standard error, if that is possible."""
    stream = stream or sys.stderr
    if stream is not None:  # print would take standard output
        with suppress(Exception):  # the script's own object may raise anything
            print(text, file=stream, flush=True)


def piped_columns(otherwise: int) -> int:
    """Return the width for who writes to a pipe: COLUMNS if it is set, else ``otherwise``."""
    told = os.environ.get("COLUMNS", "")
    return max(int(told), 20) if told.isascii() and told.isdigit() else otherwise


def columns_of(stream: TextIO | None) -> int | None:
    """Return the width of the terminal that ``stream`` writes to, or None where there is no terminal."""
    with suppress(Exception):
        if stream is not None and stream.isatty():
            return os.get_terminal_size(stream.fileno()).columns
    return None
