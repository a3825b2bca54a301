"""Finds the memory that this process may use: what the machine and its containers have free, and what it holds already.

The page cache of files counts as free, since the kernel gives it up. A thread follows changes. Linux only, like
``process``.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from ebbtide.host.kernel_files import text_of
from ebbtide.host.own_thread import OwnThread
from ebbtide.host.process import (
    PROC,
    MemoryLimit,
    anonymous_bytes,
    cgroup_limits,
    machine_bytes,
    of_bound_nodes,
)

_EVERY_S = 1.0
_NEWS_PART = 64
"""Free memory changes all the time. A change of less than this part of it is no news."""


def free_memory(proc: Path = PROC, ranks: int = 1) -> MemoryLimit:
    """Return the least that the machine, the process's nodes and each container have left for it, with what it holds.

    Each of the ``ranks`` on this node has its share of the free memory.
    """
    own = anonymous_bytes(proc)  # files' pages are available
    found = [MemoryLimit(machine_bytes(proc, "MemAvailable") // ranks + own, "this machine")]
    found += [
        MemoryLimit(nodes.nbytes // ranks + own, nodes.source)
        for nodes in of_bound_nodes("MemFree", "Active(file)", "Inactive(file)", proc=proc)
    ]
    for path, limit in cgroup_limits(proc):
        others = max(_used_bytes(path.parent) - own, 0)
        left = limit - others
        found.append(MemoryLimit(max(min((left - own) // ranks + own, left), 0), "this container"))
    return min(found, key=lambda limit: limit.nbytes)


def _used_bytes(group: Path) -> int:
    """Return the bytes that a cgroup is charged with, less the page cache, or 0 where it does not say."""
    for name in ("memory.usage_in_bytes", "memory.current"):
        try:
            used = int(text_of(group / name))
            lines = text_of(group / "memory.stat").splitlines()
        except (OSError, ValueError):
            continue
        fields = {key: int(number) for key, _, number in (line.partition(" ") for line in lines)}
        prefix = "total_" if "total_inactive_file" in fields else ""  # only there does v1 count the groups below
        return used - fields.get(f"{prefix}inactive_file", 0) - fields.get(f"{prefix}active_file", 0)
    return 0


class Follower:
    """Calls ``changed`` with the result of ``look`` each time that it has changed, until it is closed.

    Where the kernel's files cannot be read or understood, it says so once, and looks again.
    """

    def __init__(
        self,
        look: Callable[[], int],
        changed: Callable[[int], None],
        say: Callable[[str], None],
        every_s: float = _EVERY_S,
    ) -> None:
        self._look = look
        self._changed = changed
        self._say = say
        self._every_s = every_s
        self._said = False
        self._closing = threading.Event()
        self._thread = OwnThread(target=self._follow, name="ebbtide-limits", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _follow(self) -> None:
        known = self._seen(0)
        while not self._closing.wait(self._every_s):
            now = self._seen(known)
            if abs(now - known) > known // _NEWS_PART:
                known = now
                self._changed(now)

    def _seen(self, before: int) -> int:
        """Return the present figure, or ``before`` where nothing can be read."""
        try:
            return self._look()
        except (OSError, ValueError) as error:
            if not self._said:
                self._said = True
                self._say(f"free memory cannot be read ({error}), so the bound stays as it is until it can")
            return before
