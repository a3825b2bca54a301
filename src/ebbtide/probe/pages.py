"""Memory on huge pages and aligned to them, like the arena's storages."""

import mmap
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from ebbtide.units import MIB

HUGE_PAGE_BYTES = 2 * MIB

Bytes = npt.NDArray[np.uint8]


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
