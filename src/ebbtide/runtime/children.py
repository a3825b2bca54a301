"""The most memory that a script's child processes held, as far as that is their own.

The kernel keeps one figure for all children that ended and were waited for, and their own such children
(``RUSAGE_CHILDREN``). It includes children from before a session. It also includes what the parent held when it started
a child: a child that runs another program begins with its parent's peak. So only a peak above both says anything. Left
out: children that still run, and those that nobody waited for.
"""

from ebbtide.host import process

_NOTABLE = 16  # a peak is the child's if it exceeds this process's own by this part of it: two readings differ a little


class Children:
    """The children that end from here on. It MUST be made before this process's own peak is reset."""

    def __init__(self) -> None:
        self._own_peak_bytes = process.peak_resident_bytes()
        self._peak_before_bytes = process.peak_of_children_bytes()

    def peak_bytes(self) -> int:
        """Return the most that one of them held, if that is more than this process ever did; else 0."""
        peak = process.peak_of_children_bytes()
        own = max(self._own_peak_bytes, process.peak_resident_bytes())
        return peak if peak > max(self._peak_before_bytes, own + own // _NOTABLE) else 0
