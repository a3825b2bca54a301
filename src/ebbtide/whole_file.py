"""Writes a file whole or not at all. A failed write leaves the old file as it was, and nothing beside it.

A device, a pipe, or what is open already (``/dev/null``, ``/dev/stdout``) is written to, and not replaced. So is a file
that is mounted by itself. A link stays, and the file that it points to is written.
"""

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def try_writing(path: Path) -> None:
    """Raise the OSError that ``write_whole`` would raise because of the file's place. Leaves everything as it is."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if is_special(path) or os.path.ismount(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    handle, beside = _new_beside(_place_of(path))
    os.close(handle)
    beside.unlink()


def write_whole(path: Path, data: bytes) -> None:
    """Write the file. An old file keeps its permissions; a new one gets those of the umask. Raises OSError."""
    if (special := is_special(path)) or os.path.ismount(path):
        how = os.O_NONBLOCK | os.O_APPEND if special else os.O_TRUNC  # a pipe that nobody reads is an error
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | how)
        os.set_blocking(handle, True)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return
    place = _place_of(path)
    handle, beside = _new_beside(place)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        with suppress(FileNotFoundError):
            beside.chmod(stat.S_IMODE(place.stat().st_mode))
        os.replace(beside, place)
    except BaseException as error:
        beside.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def _place_of(path: Path) -> Path:
    """Follow links. Raises OSError for those that lead to each other."""
    place = Path(os.path.realpath(path))
    if place.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return place


def _new_beside(place: Path) -> tuple[int, Path]:
    """Open a new file beside ``place``. The kernel applies the umask; reading it here would set it for all threads."""
    name = os.fsdecode(os.fsencode(place.name)[:200])  # with what is added, no name of a file is too long
    beside = place.with_name(f".{name}.{secrets.token_hex(4)}")
    return os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666), beside


def is_special(path: Path) -> bool:
    """Tell whether it is a device, a pipe, or what this process has open (``/dev/stdout``, ``/proc/self/fd/1``)."""
    if not path.exists() or path.is_dir():
        return False
    return not path.is_file() or (path.is_symlink() and os.path.abspath(path).startswith(("/dev/", "/proc/")))
