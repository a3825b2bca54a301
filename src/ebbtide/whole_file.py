"""Writes a file whole or not at all: what cannot be finished leaves the old file, and nothing beside it.

A device or a pipe (``/dev/null``, ``/dev/stdout``) is written to, and not replaced.
"""

import errno
import os
import tempfile
from pathlib import Path


def try_writing(path: Path) -> None:
    """Raises the OSError with which ``write_whole`` would fail for where the file lies. Leaves all as it is."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if _is_special(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    os.unlink(name)


def write_whole(path: Path, data: bytes) -> None:
    """Readable by those whom the umask allows, like any new file. Raises OSError."""
    if _is_special(path):
        path.write_bytes(data)
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()
