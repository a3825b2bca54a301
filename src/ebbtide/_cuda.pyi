"""Typed face of the native module that stands in front of PyTorch's CUDA allocator.

It is there where torch is built for CUDA, and can be imported once ``ebbtide.host.cuda.require_cuda`` says so.
Sizes are bytes. RuntimeError says what to do.
"""

from typing import TypedDict

from typing_extensions import CapsuleType

class Stats(TypedDict):
    """Of the arena's GPU, since ``install``."""

    served: int  # allocations that the arena made
    left_alone: int  # of min_bytes and more, while it was on: of captures, of other pools, of other GPUs
    outside_bytes: int  # a level: what PyTorch's own allocator has of the GPU

def face() -> CapsuleType:
    """For the arena: what PyTorch does on its GPU (``CudaFace`` in native/device/faces.hpp)."""

def install(arena: CapsuleType, device: int, min_bytes: int) -> None:
    """Stands in front of PyTorch's allocator from now on, once for all, off. ``arena`` is the arena's ``ArenaFace``.

    RuntimeError where another allocator than PyTorch's native one is in place.
    """

def set_on(on: bool) -> None:
    """Storages of ``min_bytes`` and more that are born on ``device`` come from the arena while it is on."""

def set_budget(nbytes: int) -> None:
    """What arena and PyTorch's allocator may have of the GPU together; 0: nothing is said.

    RuntimeError where ``torch.cuda.set_per_process_memory_fraction`` allows less, now, and in that call later on.
    """

def set_largest_block(nbytes: int) -> None:
    """What cuDNN is told is the largest block that can be had, which it chooses algorithms by; 0: as PyTorch says."""

def stats() -> Stats: ...
