"""Slow memory that operations can use on an ordinary computer: a file's mapping whose pages are not in memory.

When an operation reads it, the system fetches each page from the file. Bytes that were written are in the file once
``settle`` has returned.
"""

import ctypes
import mmap
import os
import tempfile
from pathlib import Path

import torch

from ebbtide.errors import SpillError

_LIBC = ctypes.CDLL(None, use_errno=True)
_MOST_KEPT = 0.02
_LOWEST_BIT = bytes(value & 1 for value in range(256))


class MappedFile:
    """A tensor of ``nbytes`` in an unnamed file in ``directory``. Raises SpillError."""

    def __init__(self, directory: Path, nbytes: int) -> None:
        self.nbytes = nbytes
        self._directory = directory
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                self._descriptor = os.dup(file.fileno())
                os.posix_fallocate(self._descriptor, 0, nbytes)
                self._map = mmap.mmap(self._descriptor, nbytes)
        except OSError as error:
            raise SpillError(str(directory), f"{nbytes} bytes cannot be mapped there: {error.strerror}") from error
        self.buffer = torch.frombuffer(self._map, dtype=torch.uint8)
        self._address = self.buffer.data_ptr()

    def __del__(self) -> None:
        """Close the file. The mapping goes with its last view."""
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def settle(self) -> None:
        """Wait until written bytes are in the file."""
        self._map.flush()

    def leave_memory(self) -> None:
        """Remove all of it from memory. Raises SpillError where the file system keeps it there (a tmpfs)."""
        self.settle()
        self._map.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if (kept := self.resident_share()) > _MOST_KEPT:
            raise SpillError(
                str(self._directory),
                f"{100 * kept:.0f} % of a file's pages stay in memory there, so it is no slow memory to measure with",
            )

    def resident_share(self) -> float:
        """Return the part of its pages that is in memory."""
        pages = -(-self.nbytes // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        if _LIBC.mincore(ctypes.c_void_p(self._address), ctypes.c_size_t(self.nbytes), found):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(bytes(found).translate(_LOWEST_BIT)) / pages
