"""Keeps a storage in fast memory while a NumPy array or a DLPack consumer shares it.

Whoever holds such a view may hand it to the kernel (``tofile``, ``os.write``, ``readinto``, ``send``), and the kernel
does not fault like a program: it fails with EFAULT. So the storage is fetched, made writable and not evicted while
the array lives. What DLPack exported stays for good, because nobody tells when its consumer is done. Whoever asks for
a raw address (``data_ptr``, as safetensors does) finds the storage in memory and writable at that moment, no longer.
The wrappers stay until the process ends, because managed storages do.
"""

import functools
import weakref
from typing import Any

import torch

from ebbtide import _torch

_guarded = False


def guard() -> None:
    """Wraps ``Tensor.numpy`` (which ``np.asarray`` uses too), ``__dlpack__`` and ``data_ptr``, once."""
    global _guarded
    if _guarded:
        return
    _guarded = True
    numpy, dlpack, data_ptr = torch.Tensor.numpy, torch.Tensor.__dlpack__, torch.Tensor.data_ptr

    @functools.wraps(numpy)
    def numpy_held(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        array = numpy(self, *args, **kwargs)
        address = array.__array_interface__["data"][0]
        if _torch.hold(address):
            weakref.finalize(array, _torch.let_go, address).atexit = False
        return array

    @functools.wraps(dlpack)
    def dlpack_held(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "cpu":
            _torch.hold(data_ptr(self))
        return dlpack(self, *args, **kwargs)

    @functools.wraps(data_ptr)
    def data_ptr_fetched(self: torch.Tensor) -> int:
        address = data_ptr(self)
        if self.device.type == "cpu" and _torch.hold(address):
            _torch.let_go(address)
        return address

    torch.Tensor.data_ptr = data_ptr_fetched  # type: ignore[method-assign, assignment]
    torch.Tensor.numpy = numpy_held  # type: ignore[method-assign, assignment]
    torch.Tensor.__dlpack__ = dlpack_held  # type: ignore[method-assign]
