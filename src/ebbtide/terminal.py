"""Writes lines to standard error for whoever started the program. A failure to write never ends a training.

A script may close standard error, replace it with an object of its own, or lose its reader. Then our line is dropped,
and the script goes on as it would without us.
"""

import os
import sys
import textwrap
import warnings
from contextlib import suppress
from typing import TextIO

from ebbtide.errors import EbbtideWarning

SUMMARY_TEXT = 21
"""The column at which texts of a summary begin, to the right of their labels."""
WIDEST = 110
"""Longer lines are hard to read, however wide the terminal."""
_USUAL = 80


def tell(text: str, stream: TextIO | None = None) -> None:
    """Write a line to ``stream``, by default standard error, if that is possible. It stands above tqdm's bars, which
    make way and come again below it. Without a bar tqdm is not called: it would make a lock, and with it fix how the
    script's processes start."""
    stream = stream or sys.stderr
    if stream is None:
        return
    with suppress(Exception):  # the script's own object may raise anything
        if has_bars():
            sys.modules["tqdm"].tqdm.write(text, file=stream)
            stream.flush()
        else:
            stream.write(f"{text}\n")  # a script may have put another function in print's place
            stream.flush()


def warn_user(text: str) -> None:
    """Warn. Where warnings are made errors (``-W error``), it prints the text, and the training goes on."""
    try:
        warnings.warn(text, EbbtideWarning, stacklevel=2)
    except EbbtideWarning:
        tell(f"ebbtide: warning: {text}")


def has_bars() -> bool:
    """Tell whether one of tqdm's bars is shown: it has no line's end behind it."""
    return bool(getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", None))


def piped_columns(otherwise: int) -> int:
    """Return the width for who writes to a pipe: COLUMNS if it is set, else ``otherwise``."""
    told = os.environ.get("COLUMNS", "")
    return max(int(told), 20) if told.isascii() and told.isdigit() else otherwise


def columns_of(stream: TextIO | None) -> int | None:
    """Return the width of the terminal that ``stream`` writes to (80 if it has none, as in containers), or None where
    there is no terminal."""
    with suppress(Exception):
        if stream is not None and stream.isatty():
            return os.get_terminal_size(stream.fileno()).columns or _USUAL
    return None


def terminal_columns(stream: TextIO | None = None) -> int | None:
    """Return the longest line for the terminal of ``stream`` (standard error), or None where there is no terminal."""
    columns = columns_of(stream or sys.stderr)
    return None if columns is None else min(columns, WIDEST)


def folded_for_terminal(text: str, stream: TextIO | None = None, hanging: int = SUMMARY_TEXT) -> str:
    """Fold a text for the terminal of ``stream`` (standard error). Without a terminal, the text stays as it is."""
    columns = terminal_columns(stream)
    return text if columns is None else folded(text, columns, hanging)


def folded(text: str, columns: int, hanging: int = SUMMARY_TEXT) -> str:
    """Fold a text into lines of at most ``columns``, where words allow that.

    Folded lines go on at column ``hanging``, by default below a summary's text.
    """
    indent = " " * hanging
    lines = (
        textwrap.wrap(
            line,
            max(columns, 2 * len(indent)),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        or [""]
        for line in text.splitlines()
    )
    return "\n".join(line for folds in lines for line in folds)
