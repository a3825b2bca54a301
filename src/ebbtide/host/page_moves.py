"""Whether this kernel moves pages as the arena does (mremap with MREMAP_DONTUNMAP)."""

import ctypes
import mmap
import os

_MREMAP_FLAGS = 1 | 4  # MAYMOVE | DONTUNMAP
_FAILED = ctypes.c_void_p(-1).value


def try_page_move() -> str:
    """Move a page. Returns the reason of a failure, or ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mremap.restype = ctypes.c_void_p
    libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    pages = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    moved = libc.mremap(address, mmap.PAGESIZE, mmap.PAGESIZE, _MREMAP_FLAGS, None)
    if moved == _FAILED:
        return os.strerror(ctypes.get_errno())
    libc.munmap(moved, mmap.PAGESIZE)
    return ""
