"""Chooses the directory that moved storages go to, and refuses one that cannot serve.

A directory in RAM would take from one pocket what it puts into the other, so tmpfs and its kin are refused, also as a
default. What this cannot see is an overlay whose upper layer lies in RAM. Free space is reserved by native code.
"""

import os
import tempfile
from pathlib import Path

from ebbtide.errors import SpillError
from ebbtide.runtime.mounts import find_mount, read_mounts
from ebbtide.runtime.process import PROC

_RAM_KINDS = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_RAM_DEVICES = ("/dev/zram", "/dev/ram")


def choose_spill_directory(asked: str | None, proc: Path = PROC) -> Path:
    """The directory asked for, or the first default that can serve; raises SpillError when there is none."""
    if asked is not None:
        return checked_spill_directory(Path(asked).expanduser(), proc)
    candidates = [Path(os.environ["TMPDIR"])] if os.environ.get("TMPDIR") else []
    candidates += [Path("/var/tmp"), Path.cwd()]
    problems: list[str] = []
    for candidate in candidates:
        try:
            return checked_spill_directory(candidate, proc)
        except SpillError as error:
            problems.append(f"{candidate}: {error.reason}")
    raise SpillError("any of the default directories", "; ".join(problems))


def checked_spill_directory(directory: Path, proc: Path = PROC) -> Path:
    """The same directory without symbolic links; raises SpillError when it is missing, in RAM or not writable."""
    if not directory.exists():
        raise SpillError(str(directory), "it does not exist")
    if not directory.is_dir():
        raise SpillError(str(directory), "it is not a directory")
    real = directory.resolve()
    mount = find_mount(read_mounts(proc), real)
    if mount.kind in _RAM_KINDS or mount.source.startswith(_RAM_DEVICES):
        raise SpillError(str(directory), f"it lies in RAM ({mount.kind} on {mount.point}), which would free nothing")
    try:
        with tempfile.TemporaryFile(dir=real):
            pass
    except OSError as error:
        raise SpillError(str(directory), f"no file can be created in it ({error.strerror})") from error
    return real
