"""What a script's child processes held at most, as far as that is their own, and whether one of them trained.

The kernel keeps one figure for all children that ended and were waited for, and their own such children
(``RUSAGE_CHILDREN``). It includes children from before a session. It also includes what the parent held when it started
a child: a child that runs another program begins with its parent's peak. So only a peak above both says anything. A
forked child writes that it trains to a page that it shares with its parent. Of processes that still run, /proc tells.
Left out: those that ended and that nobody waited for, and whether one trains that was not forked.
"""

import mmap
import os

from ebbtide.host import process

_NOTABLE = 16  # a peak is the child's if it exceeds this process's own by this part of it: two readings differ a little

_TRAINS_S = 0.5
"""A child that trains takes more time than this on a CPU: importing PyTorch alone does."""


class Children:
    """The children that end from here on. It MUST be made before this process's own peak is reset."""

    def __init__(self) -> None:
        self._own_peak_bytes = process.peak_resident_bytes()
        self._peak_before_bytes = _peak_bytes()
        self._worked_before_s = _worked_s()
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def trained(self) -> bool:
        """True once an optimizer has stepped in a forked child."""
        return self._shared[0] != 0

    @property
    def worked(self) -> bool:
        """True once there were children that may have trained."""
        return self.trained or _worked_s() - self._worked_before_s >= _TRAINS_S

    def note_training(self) -> None:
        """Note in a forked child that it trains."""
        self._shared[0] = 1

    def peak_bytes(self) -> int:
        """Return the most that one of them held, if that is more than this process ever did; else 0."""
        peak = _peak_bytes()
        own = max(self._own_peak_bytes, process.peak_resident_bytes())
        return peak if peak > max(self._peak_before_bytes, own + own // _NOTABLE) else 0


def _peak_bytes() -> int:
    return max(process.peak_of_children_bytes(), process.peak_of_descendants_bytes())


def _worked_s() -> float:
    """Return the CPU time of all children that were waited for, or run now."""
    times = os.times()
    return times.children_user + times.children_system + process.worked_by_descendants_s()
