"""What this process holds in memory, the most it ever held, and the most it may hold.

Linux only: ``/proc/self/status`` (VmRSS, VmHWM; proc(5)), ``/proc/self/clear_refs``, memory cgroups v1 and v2.
A cgroup's limit counts what the kernel charges beyond resident pages too (page tables, page cache, other processes of
the container), so callers MUST keep headroom below it.
"""

import ctypes
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from ebbtide.host.mounts import Mount, read_mounts
from ebbtide.units import KIB

PROC = Path("/proc")
_UNLIMITED = 2**60  # cgroup v1 writes "no limit" as the largest page-rounded 63-bit number


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The most memory there is for this process, and who says so, in words."""

    nbytes: int
    source: str


def resident_bytes(proc: Path = PROC) -> int:
    """VmRSS: what the process holds in memory now."""
    return _status_bytes(proc, "VmRSS")


def peak_resident_bytes(proc: Path = PROC) -> int:
    """VmHWM: the most the process held in memory since it started or ``reset_peak`` was called."""
    return _status_bytes(proc, "VmHWM")


def anonymous_bytes(proc: Path = PROC) -> int:
    """What the process holds in memory now that is no file's."""
    return resident_bytes(proc) - _status_bytes(proc, "RssFile")


def machine_bytes(proc: Path, field: str) -> int:
    """A field of /proc/meminfo."""
    return _field_bytes((proc / "meminfo").read_text(), field)


def peak_of_children_bytes() -> int:
    """The most that any child held that has ended, and was waited for; also what it held before it ran a program of
    its own, which is what its parent held (``children`` tells the two apart)."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * KIB


def reset_peak(proc: Path = PROC) -> bool:
    """VmHWM starts again from what is resident now; False where the kernel forbids it."""
    try:
        (proc / "self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def give_back_freed_memory() -> None:
    """What was freed otherwise stays in the C library's heap, and so in the process."""
    ctypes.CDLL(None).malloc_trim(0)


def memory_limit(proc: Path = PROC) -> MemoryLimit:
    """The lowest of the machine's memory and the limits of the memory cgroups that the process lies in."""
    limits = [MemoryLimit(machine_bytes(proc, "MemTotal"), "this machine")]
    limits += [MemoryLimit(nbytes, "this container") for _, nbytes in cgroup_limits(proc)]
    return min(limits, key=lambda limit: limit.nbytes)


def _status_bytes(proc: Path, field: str) -> int:
    return _field_bytes((proc / "self/status").read_text(), field)


def _field_bytes(text: str, field: str) -> int:
    for line in text.splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * KIB
    raise ValueError(f"no {field} in what the kernel reports")


def cgroup_files(proc: Path, controller: str, v1_names: tuple[str, ...], v2_names: tuple[str, ...]) -> list[Path]:
    """The controller's files of every group from the process's own up to the highest that is visible here.

    Not all of them need exist.
    """
    mounts = read_mounts(proc)
    files: list[Path] = []
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            names, mount = v2_names, _find_cgroup(mounts, "cgroup2", "")
        elif controller in controllers.split(","):
            names, mount = v1_names, _find_cgroup(mounts, "cgroup", controller)
        else:
            continue
        if mount is not None:
            files += [directory / name for directory in _upwards(mount, group) for name in names]
    return files


def cgroup_limits(proc: Path) -> list[tuple[Path, int]]:
    """The files of the groups above that limit this process's memory, and the limits."""
    files = cgroup_files(proc, "memory", ("memory.limit_in_bytes",), ("memory.max", "memory.high"))
    return [(path, nbytes) for path in files if (nbytes := _read_limit(path)) is not None]


def _find_cgroup(mounts: list[Mount], kind: str, controller: str) -> Mount | None:
    for mount in mounts:
        if mount.kind == kind and (not controller or controller in mount.options.split(",")):
            return mount
    return None


def _upwards(mount: Mount, group: str) -> list[Path]:
    """The group's directory and its parents within the mount, which may show only a part of the hierarchy."""
    root = mount.root.rstrip("/")
    inside = group[len(root) :] if group == root or group.startswith(f"{root}/") else group
    directory = mount.point / os.path.normpath(f"/{inside}").lstrip("/")
    chain = [directory, *directory.parents]
    return chain[: chain.index(mount.point) + 1]


def _read_limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    if not text.isdigit() or int(text) >= _UNLIMITED:
        return None
    return int(text)
