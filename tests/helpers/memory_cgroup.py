"""A memory cgroup for one command: what a container's limit does to a process, without a container.

Works with cgroup v1 and v2, for whoever may create a child of its own cgroup (or, on v2, where a cgroup that holds
processes can have no such children, a sibling). The page cache that the command fills is charged to it as well.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class NotPermitted(Exception):
    """No memory cgroup can be created here; the text says why."""


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    path: Path
    limit_bytes: int

    def wrap(self, command: Sequence[str]) -> list[str]:
        """The same command, but its process enters the cgroup before it becomes the command."""
        enter = f'echo $$ > "{self.path / "cgroup.procs"}" && exec "$@"'
        return ["/bin/sh", "-c", enter, "sh", *command]

    def oom_kills(self) -> int:
        """How many processes the kernel killed here for memory."""
        for name in ("memory.events", "memory.oom_control"):
            if (self.path / name).exists():
                fields = dict(line.split() for line in (self.path / name).read_text().splitlines())
                return int(fields["oom_kill"])
        return 0


def _parents() -> Iterator[Path]:
    """Directories in which this process might create a memory cgroup, best first."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    v1 = [Path(m[1]) for m in mounts if m[2] == "cgroup" and "memory" in m[3].split(",")]
    v2 = [Path(m[1]) for m in mounts if m[2] == "cgroup2"]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield from (mount / path.lstrip("/") for mount in v1)
        elif number == "0":
            for mount in v2:
                own = mount / path.lstrip("/")
                yield from [own] if own == mount else [own, own.parent]


def _set_limit(path: Path, limit_bytes: int) -> None:
    """Limit memory, and leave no swap to flee to (which kernels without swap accounting do not offer to limit)."""
    if (path / "memory.max").exists():
        limit, swap, swap_limit = path / "memory.max", path / "memory.swap.max", 0
    else:
        limit, swap, swap_limit = path / "memory.limit_in_bytes", path / "memory.memsw.limit_in_bytes", limit_bytes
    limit.write_text(str(limit_bytes))
    if swap.exists():
        swap.write_text(str(swap_limit))


def _remove(path: Path) -> None:
    """Kill what is left in the cgroup and remove it; the kernel lets go of dead processes a little later."""
    for _ in range(100):
        for pid in (path / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        try:
            path.rmdir()
            return
        except OSError:
            time.sleep(0.05)
    raise OSError(f"cannot remove {path}: still in use")


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[MemoryCgroup]:
    """A fresh cgroup limited to ``limit_bytes``, removed at the end with all processes in it. Raises NotPermitted."""
    reasons = []
    for parent in _parents():
        path = parent / f"ebbtide-{os.getpid()}-{time.monotonic_ns()}"
        try:
            path.mkdir()
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
            continue
        try:
            _set_limit(path, limit_bytes)
        except OSError as error:
            path.rmdir()
            reasons.append(f"{parent}: {error.strerror}")
            continue
        try:
            yield MemoryCgroup(path, limit_bytes)
        finally:
            _remove(path)
        return
    raise NotPermitted("memory cgroups cannot be created here: " + ("; ".join(reasons) or "none is mounted"))
