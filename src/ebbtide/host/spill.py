"""Chooses the spill directories, and refuses one that cannot serve.

A directory in RAM would only move bytes within memory. So tmpfs and its kin are refused, also as a default. An overlay
whose upper layer lies in RAM is not noticed. Native code reserves free space. It spreads storages over several
directories in stripes of 4 MiB ([Note: stripes] in ``native/core/spill_file.hpp``).
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ebbtide.errors import SpillError
from ebbtide.host.mounts import find_mount, read_mounts
from ebbtide.host.process import PROC
from ebbtide.units import GIB

_RAM_KINDS = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_RAM_DEVICES = ("/dev/zram", "/dev/ram")
_ROOM = GIB
"""A directory with less free space is nearly full."""


def choose_spill_directories(asked: Sequence[str], proc: Path = PROC) -> tuple[Path, ...]:
    """Return the directories asked for, or the first default that can serve. Raises SpillError if there is none.

    A default that is nearly full is taken only where no other has more room.
    """
    if asked:
        return checked_spill_directories([_at_home(name) for name in asked], proc)
    candidates = [Path(os.environ["TMPDIR"])] if os.environ.get("TMPDIR") else []
    candidates.append(Path("/var/tmp"))
    problems: list[str] = []
    try:
        candidates.append(Path.cwd())
    except FileNotFoundError:
        problems.append("the current directory: it was deleted")
    free: dict[Path, int] = {}
    for candidate in candidates:
        try:
            directory = checked_spill_directory(candidate, proc)
            free[directory] = shutil.disk_usage(directory).free
        except SpillError as error:
            problems.append(f"{candidate}: {error.reason}")
            continue
        if free[directory] >= _ROOM:
            return (directory,)
    if not free:
        raise SpillError("any of the default directories", "; ".join(problems))
    return (max(free, key=free.__getitem__),)


def _at_home(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise SpillError(name, "nobody tells where that home directory is") from error


def checked_spill_directories(directories: Sequence[Path], proc: Path = PROC) -> tuple[Path, ...]:
    """Resolve symbolic links. Raises SpillError for a directory that cannot serve, or that is named twice."""
    checked: list[Path] = []
    for directory in directories:
        real = checked_spill_directory(directory, proc)
        if real in checked:
            raise SpillError(str(directory), "it is named twice, and one disk is no faster for that")
        checked.append(real)
    return tuple(checked)


def open_unnamed(directory: Path) -> tuple[int, bool]:
    """Open an unnamed file, as a run does. Return its descriptor, and whether O_DIRECT works. Raises OSError."""
    try:
        file = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        file, name = tempfile.mkstemp(prefix=".ebbtide-", dir=directory)
        os.unlink(name)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_DIRECT)
    except OSError:
        return file, False
    return file, True


def reserve(file: int, nbytes: int) -> bool:
    """Reserve space. Returns False where the file system cannot promise space. A full one raises OSError."""
    try:
        os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        # EINVAL: where the file system cannot reserve, glibc writes a byte to every page, which O_DIRECT refuses.
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(file, nbytes)
        return False
    return True


def free_bytes_of(directories: Sequence[Path]) -> tuple[int, ...]:
    """Return each directory's free space, shared evenly with the others on the same file system. Raises OSError."""
    devices = [directory.stat().st_dev for directory in directories]
    sharers = Counter(devices)
    free = (shutil.disk_usage(directory).free for directory in directories)
    return tuple(nbytes // sharers[device] for nbytes, device in zip(free, devices, strict=True))


def usable_bytes(directories: Sequence[Path]) -> int:
    """Return the bytes that stripes can fill: each directory holds as much as the fullest one. Raises OSError."""
    return min(free_bytes_of(directories)) * len(directories)


def checked_spill_directory(directory: Path, proc: Path = PROC) -> Path:
    """Resolve symbolic links. Raises SpillError for a directory that is missing, in RAM or not writable."""
    try:
        exists = directory.exists()
    except OSError as error:  # a name that is too long
        raise SpillError(str(directory), error.strerror or str(error)) from error
    if not exists:
        raise SpillError(str(directory), "it does not exist")
    if not directory.is_dir():
        raise SpillError(str(directory), "it is not a directory")
    real = directory.resolve()
    mount = find_mount(read_mounts(proc), real)
    if mount.kind in _RAM_KINDS or mount.source.startswith(_RAM_DEVICES):
        raise SpillError(str(directory), f"it lies in RAM ({mount.kind} on {mount.point}), which would free nothing")
    try:
        os.close(open_unnamed(real)[0])
    except OSError as error:
        raise SpillError(str(directory), f"no file can be created in it ({error.strerror})") from error
    return real
