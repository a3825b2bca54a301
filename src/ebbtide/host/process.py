"""Measures this process's memory: what it holds, the most it ever held, and the most it may hold.

Linux only: ``/proc/self/status`` (VmRSS, VmHWM; proc(5)), ``/proc/self/clear_refs``, memory cgroups v1 and v2. A
cgroup's limit also counts what the kernel charges beyond resident pages: page tables, page cache, and other processes
of the container. So callers MUST keep headroom below it.
"""

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ebbtide.host.kernel_files import text_of
from ebbtide.host.mounts import Mount, read_mounts
from ebbtide.units import KIB

PROC = Path("/proc")
_UNLIMITED = 2**60  # cgroup v1 writes "no limit" as the largest page-rounded 63-bit number
_MOST_STATUS_BYTES = 1 << 14
_PR_SET_PDEATHSIG = 1
_NODES = Path("/sys/devices/system/node")
_LAST_NODE = 1023  # of any kernel
_SYS_GET_MEMPOLICY, _MPOL_BIND, _MODE = 239, 2, 0xFF  # the mode without its flags
_BINDS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_CPUS = os.sched_getaffinity(0)  # before anybody imported PyTorch, under ``ebbtide run``
_kept: tuple[int, int, os.stat_result] | None = None  # a process and its status, open since it was first read


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends, however that does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_bound() -> bool:
    """Tell whether OpenMP binds its threads: the first to one CPU, as it is loaded, and all that this one begins."""
    return any(map(os.environ.get, _BINDS))


@contextlib.contextmanager
def on_all_cpus() -> Iterator[None]:
    """Have what this thread begins meanwhile run on the CPUs that the process began with."""
    own = os.sched_getaffinity(0)
    if is_bound():
        os.sched_setaffinity(0, own | _CPUS)
    try:
        yield
    finally:
        if is_bound():
            os.sched_setaffinity(0, own)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The most memory that this process may have, and the words for who sets that limit."""

    nbytes: int
    source: str


def resident_bytes(proc: Path = PROC) -> int:
    """Return VmRSS: the memory that the process holds now."""
    return _status_bytes(proc, "VmRSS")


def peak_resident_bytes(proc: Path = PROC) -> int:
    """Return VmHWM: the most memory that the process held since it started or ``reset_peak`` was called."""
    return _status_bytes(proc, "VmHWM")


def anonymous_bytes(proc: Path = PROC) -> int:
    """Return the memory that the process holds now and that is no file's."""
    return resident_bytes(proc) - _status_bytes(proc, "RssFile")


def machine_bytes(proc: Path, field: str) -> int:
    """Return a field of /proc/meminfo."""
    return _field_bytes(text_of(proc / "meminfo"), field)


def peak_of_children_bytes() -> int:
    """Return the most that any child held that has ended and was waited for.

    This includes what it held before it ran a program of its own, which is what its parent held. ``children`` tells the
    two apart.
    """
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * KIB


def descendants(proc: Path = PROC) -> list[Path]:
    """Return the folders in /proc of the processes that run now and that this one started, or those did."""
    found, left = list[Path](), [proc / "self"]
    while left:
        with contextlib.suppress(OSError):  # it has ended, or no file can be opened
            for task in (left.pop() / "task").iterdir():
                children = [proc / pid for pid in text_of(task / "children").split()]
                found += children
                left += children
    return found


def peak_of_descendants_bytes(proc: Path = PROC) -> int:
    """Return the most that any process held that runs now and that this one started, or those did."""
    peak = 0
    for process in descendants(proc):
        with contextlib.suppress(OSError, ValueError):  # ValueError: it has ended, and has no memory
            peak = max(peak, _field_bytes(text_of(process / "status"), "VmHWM"))
    return peak


def worked_by_descendants_s(proc: Path = PROC) -> float:
    """Return the CPU time of those processes, and of theirs that ended."""
    ticks = 0
    for process in descendants(proc):
        with contextlib.suppress(OSError):
            after_name = text_of(process / "stat").rpartition(")")[2].split()
            ticks += sum(map(int, after_name[11:15]))  # utime, stime, cutime, cstime: proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


def reset_peak(proc: Path = PROC) -> bool:
    """Restart VmHWM from what is resident now. Returns False where the kernel forbids it."""
    try:
        (proc / "self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def give_back_freed_memory() -> None:
    """Return freed memory to the system. Otherwise it stays in the C library's heap, and so in the process."""
    ctypes.CDLL(None).malloc_trim(0)


def memory_limit(proc: Path = PROC) -> MemoryLimit:
    """Return the lowest of the machine's memory, that of the process's nodes, and the limits of its memory cgroups."""
    limits = [MemoryLimit(machine_bytes(proc, "MemTotal"), "this machine")]
    limits += of_bound_nodes("MemTotal", proc=proc)
    limits += [MemoryLimit(nbytes, "this container") for _, nbytes in cgroup_limits(proc)]
    return min(limits, key=lambda limit: limit.nbytes)


def of_bound_nodes(*fields: str, proc: Path = PROC) -> list[MemoryLimit]:
    """Return the sum of those fields of the NUMA nodes on which this process's memory must lie (cpuset.mems, or
    ``numactl --membind``). Nothing where that is all of them, or not known."""
    listed = (line.partition(":") for line in _status(proc).splitlines())
    allowed = next((_numbers(text) for name, _, text in listed if name == "Mems_allowed_list"), set[int]())
    nodes = _numbers(text_of(_NODES / "has_memory")) if (_NODES / "has_memory").exists() else set[int]()
    bound = nodes & allowed & (_nodes_of_policy() if proc == PROC else nodes)
    if not bound or bound == nodes:
        return []
    texts = [text_of(_NODES / f"node{node}/meminfo").replace(f"Node {node} ", "") for node in bound]
    return [MemoryLimit(sum(_field_bytes(text, field) for text in texts for field in fields), "this set of NUMA nodes")]


def _numbers(text: str) -> set[int]:
    """Read a list such as ``0-1,3``."""
    ranges = (part.partition("-") for part in text.split(",") if part.strip())
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}


def _nodes_of_policy() -> set[int]:
    """Return the nodes to which this thread's memory policy binds what it allocates: all without such a policy."""
    mode, mask = ctypes.c_int(), (ctypes.c_uint8 * (_LAST_NODE // 8 + 1))()
    failed = ctypes.CDLL(None).syscall(_SYS_GET_MEMPOLICY, ctypes.byref(mode), mask, _LAST_NODE + 2, None, 0)
    is_bound = not failed and mode.value & _MODE == _MPOL_BIND
    return {node for node in range(_LAST_NODE + 1) if not is_bound or mask[node // 8] >> node % 8 & 1}


def may_swap(proc: Path = PROC) -> bool:
    """Tell whether the machine swaps, and this process's memory cgroups let it."""
    allowed = map(_read_limit, cgroup_files(proc, "memory", (), ("memory.swap.max",)))
    return machine_bytes(proc, "SwapTotal") > 0 and 0 not in allowed


def _status_bytes(proc: Path, field: str) -> int:
    return _field_bytes(_status(proc), field)


def _status(proc: Path) -> str:
    return _own_status() if proc == PROC else text_of(proc / "self/status")


def _own_status() -> str:
    """Read the status. It stays open, since the script may use descriptors up, and may close those that it finds."""
    global _kept
    kept, process = _kept, os.getpid()
    if kept is None or kept[0] != process or not _is_open(*kept[1:]):
        file = os.open(PROC / "self/status", os.O_RDONLY | os.O_CLOEXEC)
        _kept = kept = process, file, os.fstat(file)
    return os.fsdecode(os.pread(kept[1], _MOST_STATUS_BYTES, 0))


def _is_open(file: int, was: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(file), was)
    except OSError:
        return False


def _field_bytes(text: str, field: str) -> int:
    for line in text.splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * KIB
    raise ValueError(f"no {field} in what the kernel reports")


def cgroup_files(proc: Path, controller: str, v1_names: tuple[str, ...], v2_names: tuple[str, ...]) -> list[Path]:
    """Return the controller's files, from the process's own group up to the highest visible one. Some may not exist."""
    mounts = read_mounts(proc)
    files: list[Path] = []
    for line in text_of(proc / "self/cgroup").splitlines():
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
    """Return the limits of this process's memory, each with the file of the group that sets it."""
    files = cgroup_files(proc, "memory", ("memory.limit_in_bytes",), ("memory.max", "memory.high"))
    return [(path, nbytes) for path in files if (nbytes := _read_limit(path)) is not None]


def _find_cgroup(mounts: list[Mount], kind: str, controller: str) -> Mount | None:
    for mount in mounts:
        if mount.kind == kind and (not controller or controller in mount.options.split(",")):
            return mount
    return None


def _upwards(mount: Mount, group: str) -> list[Path]:
    """Return the group's directory and its parents within the mount, which may show only a part of the hierarchy."""
    root = mount.root.rstrip("/")
    inside = group[len(root) :] if group == root or group.startswith(f"{root}/") else group
    directory = mount.point / os.path.normpath(f"/{inside}").lstrip("/")
    chain = [directory, *directory.parents]
    return chain[: chain.index(mount.point) + 1]


def _read_limit(path: Path) -> int | None:
    try:
        text = text_of(path).strip()
    except OSError:
        return None
    if not text.isdigit() or int(text) >= _UNLIMITED:
        return None
    return int(text)
