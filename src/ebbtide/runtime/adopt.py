"""Adoption: storages born elsewhere (a model built before the session, a mapped checkpoint) move into the arena.

Callers MUST be at a step boundary: none of their operators runs, because a storage's data pointer changes under its
tensors. A storage is taken only if it is proven to own its memory alone. Every reference to it, to the tensors in it
and to their Python objects must be explained (``native/torch/holders.hpp`` says by what). An alias made by NumPy,
DLPack, a slice of a storage or a library holds a reference that is not, and so does a variable of a function that
another thread runs, as that thread may pass it on meanwhile. A storage that is left alone keeps its address and is
reported. It is looked at again at the next boundary, because a reference may have been a passing one: an argument of
a C function, for example. Left out: an address that is kept without any reference (ctypes), which nothing can prove.
"""

import torch

import ebbtide._torch as _torch
from ebbtide.capture.objects import roots, running_locals
from ebbtide.host.process import give_back_freed_memory


def adopt_all() -> tuple[int, list[tuple[int, str]]] | None:
    """Adopt storages. Return the bytes adopted, and the bytes and reason of each storage left alone.

    Other threads wait meanwhile to begin an operator. None where one stays in an operator: nothing was looked at.
    """
    owners = {torch.nn.parallel.DistributedDataParallel: "reducer", torch.jit.ScriptModule: "_c"}
    found = _torch.adopt_all(owners, running_locals(), roots())
    if found is not None and found[0]:
        give_back_freed_memory()  # the originals
    return found


def bytes_on_gpus() -> int:
    """Return the bytes of this process's tensors on its GPUs, which no session manages."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return sum(torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()))
