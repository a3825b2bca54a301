"""The display in a notebook: one area below the cell, which is written anew. A notebook would show lines on standard
error as errors. Ebbtide's warnings go to the area, too.

A warning is still one of Python's: filters hide it or make it an error first, and ``catch_warnings(record=True)`` has
it. Only what would be written to standard error goes to the area.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TextIO

from ebbtide.errors import EbbtideWarning
from ebbtide.in_front import InFrontOf, Wrapper

_MOST_LINES = 12
_shown: list[Wrapper] = []
"""The wrapper that shows warnings in a session's area."""


class Area:
    """Lines that stay, of which the latest are shown, and one line below them that changes."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._said: list[str] = []
        self._line = self._shown = ""

    def say(self, line: str) -> None:
        self._said.append(line)
        self._show()

    def draw(self, line: str) -> None:
        self._line = line
        self._show()

    def erase(self) -> None:
        """Erase the line that changes. The others stay."""
        self.draw("")

    def _show(self) -> None:
        text = "\n".join([*self._said[-_MOST_LINES:], *([self._line] if self._line else [])])
        if text != self._shown:
            self._shown = text
            self._handle.update({"text/plain": text}, raw=True)


def warnings_go_to(area: Area | None) -> None:
    """Show Ebbtide's warnings there from now on; None: where Python's go."""
    while _shown:
        _shown.pop().remove()
    if area is not None:
        _shown.extend(InFrontOf.NOTEBOOK_WARNINGS.install(partial(_show, area)))


def _show(
    area: Area,
    others: Callable[..., None],
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if file is None and issubclass(category, EbbtideWarning):
        area.say(f"warning: {message}")
    else:
        others(message, category, filename, lineno, file, line)


def area_here() -> Area | None:
    """Make an area below the cell that runs; None outside a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is None or not hasattr(shell, "kernel"):
        return None
    return Area(ipython.display.display({"text/plain": ""}, raw=True, display_id=True))
