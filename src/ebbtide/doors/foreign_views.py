"""Keeps a storage in fast memory while somebody hands its address to the kernel.

Whoever holds a NumPy or DLPack view may pass it to a system call (``tofile``, ``os.write``, ``readinto``, ``send``),
and the kernel does not fault like a program: it fails with EFAULT. So the storage is fetched, made writable and not
evicted while the array lives; one that cannot be brought (a disk that cannot be read, training state in a forked
child) raises RuntimeError. What DLPack exported stays for good, because nobody tells when its consumer is done.
Of a storage in pieces the pieces are held that the tensor lies in. Whoever asks for a raw address (``data_ptr``) finds
the tensor in memory and writable at that moment, and the last to leave. PyTorch's own reads and writes of files hold
the storage for as long as they take; so do safetensors' writes (``safetensors_files``). Dynamo does not trace into the
wrappers, which stay until the process ends, because managed storages do. Left out: ``UntypedStorage._new_with_file``
(PyTorch's tar files of 2016), which makes the storage itself.
"""

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

import ebbtide._torch as _torch
from ebbtide.doors import safetensors_files, scripted_files

_Function = TypeVar("_Function", bound=Callable[..., Any])

_guarded = False
_least_managed = _least_in_pieces = sys.maxsize
_this_thread = threading.local()


def sizes(least_managed: int, least_in_pieces: int) -> None:
    """From now on storages of so many bytes may leave memory, or be in pieces."""
    global _least_managed, _least_in_pieces
    _least_managed = min(_least_managed, least_managed)
    _least_in_pieces = min(_least_in_pieces, least_in_pieces)


def guard() -> None:
    """Wraps what gives a storage's address away, once."""
    global _guarded
    if _guarded:
        return
    _guarded = True
    _guard_exports()
    for reader_or_writer in "_write_file", "_set_from_file":
        original = getattr(torch.UntypedStorage, reader_or_writer)
        setattr(torch.UntypedStorage, reader_or_writer, _holding(original, storage_at=0))
    writer = torch.PyTorchFileWriter  # of torch.save: it reads a storage once for its checksum, or not at all
    writer.write_record = _holding(writer.write_record, storage_at=2)  # type: ignore[method-assign]
    _read_in_chunks()
    safetensors_files.guard(addresses_only, untraced)
    scripted_files.guard(untraced, lambda nbytes: nbytes >= _least_in_pieces)


@contextlib.contextmanager
def addresses_only() -> Iterator[None]:
    """Whoever asks for an address on this thread compares it, and does not look there."""
    before = getattr(_this_thread, "addresses_only", False)
    _this_thread.addresses_only = True
    try:
        yield
    finally:
        _this_thread.addresses_only = before


def untraced(function: _Function) -> _Function:
    """Dynamo runs this function as it is. It is told without being imported, which takes a second."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    dynamo: Any = torch._C._dynamo.eval_frame
    skip = dynamo._FrameAction.SKIP
    dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))
    return function


def _guard_exports() -> None:
    numpy, dlpack, data_ptr = torch.Tensor.numpy, torch.Tensor.__dlpack__, torch.Tensor.data_ptr

    @untraced
    @functools.wraps(numpy)
    def numpy_held(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        array = numpy(self, *args, **kwargs)
        if array.size == 0:  # its address may be that of another storage
            return array
        address = array.__array_interface__["data"][0]
        nbytes = _extent(array.shape, array.strides, array.itemsize)
        if _torch.pin(address, nbytes):
            weakref.finalize(array, _torch.unpin, address, nbytes).atexit = False
        return array

    @untraced
    @functools.wraps(dlpack)
    def dlpack_held(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "cpu" and self.layout == torch.strided and self.numel() > 0:
            _torch.pin(data_ptr(self), _extent_of(self))
        return dlpack(self, *args, **kwargs)

    @untraced
    @functools.wraps(data_ptr)
    def data_ptr_fetched(self: torch.Tensor) -> int:
        address = data_ptr(self)
        if getattr(_this_thread, "addresses_only", False) or self.device.type != "cpu":
            return address
        with contextlib.suppress(RuntimeError):  # what cannot be brought says so when it is touched
            nbytes = _extent_of(self)
            if nbytes > 0 and _torch.pin(address, nbytes):
                _torch.unpin(address, nbytes)
        return address

    torch.Tensor.data_ptr = data_ptr_fetched  # type: ignore[method-assign, assignment]
    torch.Tensor.numpy = numpy_held  # type: ignore[method-assign, assignment]
    torch.Tensor.__dlpack__ = dlpack_held  # type: ignore[method-assign]


def _extent_of(tensor: torch.Tensor) -> int:
    item = tensor.element_size()
    return _extent(tensor.shape, tuple(stride * item for stride in tensor.stride()), item) if tensor.numel() else 0


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Bytes from the first element to the last."""
    return itemsize + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _read_in_chunks() -> None:
    """What may leave memory: PyTorch would hand the kernel its address, where nothing waits for what is away."""
    reader: Any = torch._C.PyTorchFileReader
    original = reader.get_storage_from_record

    @untraced
    @functools.wraps(original)
    def in_chunks(self: Any, name: str, numel: int, dtype: Any) -> Any:
        if dtype is torch.UntypedStorage and numel >= _least_managed:
            return _torch.read_record(self, name, numel)
        return original(self, name, numel, dtype)

    reader.get_storage_from_record = in_chunks


def _holding(function: Callable[..., Any], storage_at: int) -> Callable[..., Any]:
    """The function with the storage that is its argument of that number held while it runs."""

    @untraced
    @functools.wraps(function)
    def holding(*args: Any, **kwargs: Any) -> Any:
        storage = args[storage_at] if len(args) > storage_at else None
        on_cpu = isinstance(storage, torch.UntypedStorage) and storage.device.type == "cpu"
        address = storage.data_ptr() if on_cpu else 0  # type: ignore[union-attr]
        held = address != 0 and _torch.pin(address)
        try:
            return function(*args, **kwargs)
        finally:
            if held:
                _torch.unpin(address)

    return holding
