"""What is shown in a notebook: one area below the cell that is written anew, in place of lines on standard error, which
a notebook shows as errors."""

import sys
from typing import Any

_MOST_LINES = 12


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


def area_here() -> Area | None:
    """A new one below the cell that runs; None outside a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is None or not hasattr(shell, "kernel"):
        return None
    return Area(ipython.display.display({"text/plain": ""}, raw=True, display_id=True))
