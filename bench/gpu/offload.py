"""Saved tensors to pinned host memory and back on streams of their own: the baseline that people write by hand today.

It is what torchtune's and TRL's ``OffloadActivations`` do, in little: a copy out behind the forward pass, the last few
saved tensors stay, a copy in when backward asks; PyTorch's cache of pinned memory serves the host side. Left out:
prefetching ahead of backward, views of one storage kept once.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

STASHED = 5


class Offload:
    """``moved``: bytes that went out. Tensors of parameters, on the CPU or smaller than ``smallest`` bytes stay."""

    def __init__(self, parameters: Iterable[Tensor], smallest: int) -> None:
        self.smallest = smallest
        self.moved = 0
        self.kept = {p.untyped_storage().data_ptr() for p in parameters}
        self.cuda = torch.cuda.is_available()
        self.out = torch.cuda.Stream() if self.cuda else None
        self.back = torch.cuda.Stream() if self.cuda else None
        self.stash: list[tuple[Tensor, Any]] = []
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def __enter__(self) -> "Offload":
        self.hooks.__enter__()
        return self

    def __exit__(self, *what: object) -> None:
        self.hooks.__exit__(*what)
        self.stash.clear()

    def pack(self, tensor: Tensor) -> object:
        large = tensor.nbytes >= self.smallest and tensor.dim() > 0
        if not large or tensor.untyped_storage().data_ptr() in self.kept or tensor.is_cuda != self.cuda:
            return tensor
        self.moved += tensor.nbytes
        key = (tuple(tensor.shape), tensor.dtype)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.cuda)
        if not self.cuda:
            return host.copy_(tensor), tensor.stride(), key, None
        assert self.out is not None
        self.out.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.out):
            host.copy_(tensor, non_blocking=True)
        # The tensor lives until its copy has passed: a few are stashed, and the oldest is waited for in stream order.
        self.stash.append((tensor, self.out.record_event()))
        if len(self.stash) > STASHED:
            torch.cuda.current_stream().wait_event(self.stash.pop(0)[1])
        return host, tensor.stride(), key, self.stash[-1][1]

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        host, stride, key, event = packed
        device = "cuda" if self.cuda else "cpu"
        fresh = torch.empty_strided(key[0], stride, dtype=key[1], device=device)
        if not self.cuda:
            return fresh.copy_(host)
        assert self.back is not None
        now = torch.cuda.current_stream()
        self.back.wait_stream(now)
        self.back.wait_event(event)
        with torch.cuda.stream(self.back):
            fresh.copy_(host, non_blocking=True)
        now.wait_stream(self.back)
        return fresh
