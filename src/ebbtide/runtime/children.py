"""What the processes that a script starts held at most, as far as that is theirs.

The kernel keeps one figure for all children that ended and were waited for, and their own such children
(``RUSAGE_CHILDREN``). It also holds what came before a session, and what the parent held when it started a child:
a child that runs another program begins with its parent's peak. So only what lies above both says anything.
Left out: children that still run, and those that nobody waited for.
"""

from ebbtide.host import process

_NOTABLE = 16  # above this process's own peak by this part of it, a peak is the child's: two readings differ a little


class Children:
    """Those that end from here on. It MUST be made before this process's own peak is reset."""

    def __init__(self) -> None:
        self._own_peak_bytes = process.peak_resident_bytes()
        self._peak_before_bytes = process.peak_of_children_bytes()

    def peak_bytes(self) -> int:
        """The most that one of them held, where that is more than this process ever did; else 0."""
        peak = process.peak_of_children_bytes()
        own = max(self._own_peak_bytes, process.peak_resident_bytes())
        return peak if peak > max(self._peak_before_bytes, own + own // _NOTABLE) else 0
