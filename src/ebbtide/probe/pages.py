"""Memory on huge pages and aligned to them, like the arena's storages."""

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import numpy.typing as npt

from ebbtide.units import MIB

HUGE_PAGE_BYTES = 2 * MIB

Bytes = npt.NDArray[np.uint8]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_LIBC.mremap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
_LIBC.mremap.restype = ctypes.c_void_p
_TO_ANOTHER_PLACE = 1 | 2 | 4  # MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP


def huge_bytes(nbytes: int) -> Bytes:
    """Return ``nbytes`` of zeros at a multiple of 2 MiB, on huge pages where the kernel has them. The array owns
    them."""
    # Private: shared memory, mmap's default, has small pages on most systems (transparent_hugepage/shmem_enabled).
    pages = mmap.mmap(-1, nbytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(pages, dtype=np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE_BYTES
    memory = whole[start : start + nbytes]
    memory.fill(0)
    return memory


class MovingPages:
    """Whole huge pages for transfers. They move between two places, as storages' do when they leave and come back.

    The kernel interrupts other CPUs for that.
    """

    def __init__(self, contents: Bytes) -> None:
        self._places = [huge_bytes(len(contents)), huge_bytes(len(contents))]
        for place in self._places:
            place[:] = contents

    @property
    def data(self) -> memoryview:
        return self._places[0].data

    @contextmanager
    def transferred(self, out: bool) -> Iterator[memoryview]:
        """Yield the memory for a transfer, read-only if it is a write. Afterwards, its pages are elsewhere."""
        here, there = (place.ctypes.data for place in self._places)
        if out:
            _LIBC.mprotect(here, len(self.data), mmap.PROT_READ)
        try:
            yield self.data
        finally:
            if out:
                _LIBC.mprotect(here, len(self.data), mmap.PROT_READ | mmap.PROT_WRITE)
            for at in range(0, len(self.data), HUGE_PAGE_BYTES):
                _LIBC.mremap(here + at, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES, _TO_ANOTHER_PLACE, there + at)
            self._places.reverse()
