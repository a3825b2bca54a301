"""What is shown in a notebook: one area below the cell that is written anew, in place of lines on standard error, which
a notebook shows as errors. Ebbtide's warnings go there, too.

A warning is still one of Python's: filters hide it or make it an error first, and ``catch_warnings(record=True)`` has
it. Only where it would be written to standard error, it is not.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any, TextIO

from ebbtide.errors import EbbtideWarning

_MOST_LINES = 12
_warned: "Area | None" = None
_ours: Callable[..., None] | None = None
"""What shows warnings, once a session began in a notebook. It stays: what other code put over it may call it."""


class Area:
    """Lines that stay, of which the latest are shown, and below them one that changes."""

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
        """The line that changes; what was said stays."""
        self.draw("")

    def _show(self) -> None:
        text = "\n".join([*self._said[-_MOST_LINES:], *([self._line] if self._line else [])])
        if text != self._shown:
            self._shown = text
            self._handle.update({"text/plain": text}, raw=True)


def warnings_go_to(area: Area | None) -> None:
    """Of Ebbtide's, from now on; None: to where Python's go."""
    global _warned, _ours
    _warned = area
    if area is not None and warnings.showwarning is not _ours:
        _ours = warnings.showwarning = _shown_in_area(warnings.showwarning)


def _shown_in_area(others: Callable[..., None]) -> Callable[..., None]:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if _warned is not None and file is None and issubclass(category, EbbtideWarning):
            _warned.say(f"warning: {message}")
        else:
            others(message, category, filename, lineno, file, line)

    return show


def area_here() -> Area | None:
    """A new one below the cell that runs; None outside a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is None or not hasattr(shell, "kernel"):
        return None
    return Area(ipython.display.display({"text/plain": ""}, raw=True, display_id=True))
