"""Keeps a storage in fast memory while somebody hands its address to the kernel.

The holder of a NumPy or DLPack view may pass it to a system call (``tofile``, ``os.write``, ``readinto``, ``send``).
The kernel does not fault like a program: it fails with EFAULT. So the storage is fetched, made writable and not evicted
while the array lives. RuntimeError is raised if it cannot be fetched (a disk that cannot be read, training state in a
forked child). What DLPack exported stays for good, because nobody tells when its consumer is done.

Of a storage in pieces, the pieces are held in which the tensor lies. ``data_ptr`` asks for a raw address: the tensor is
then in memory and writable at that moment, and the last to be evicted. PyTorch's own reads and writes of files hold the
storage for as long as they take. So do safetensors' writes (``safetensors_files``), and a backend's own collectives
until their Work has ended. ``in_front`` lists what is replaced. Left out: ``UntypedStorage._new_with_file`` (PyTorch's
tar files of 2016), which makes the storage itself.
"""

import contextlib
import ctypes
import mmap
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ebbtide._torch as _torch
from ebbtide.doors import safetensors_files, scripted_files
from ebbtide.host.signal_handlers import came_from_a_handler
from ebbtide.host.spill import reserve
from ebbtide.in_front import InFrontOf
from ebbtide.units import format_bytes, option

_address_of = torch._C.TensorBase.data_ptr  # what it is before a wrapper comes in front
_guarded = False
_least_managed = _least_in_pieces = sys.maxsize
_spill: Path | None = None
_shows_small = False
_this_thread = threading.local()


def sizes(least_managed: int, least_in_pieces: int, spill: Path) -> None:
    """Set the sizes from which storages may leave memory, and from which they may be in pieces; and a directory on a
    disk."""
    global _least_managed, _least_in_pieces, _spill
    _least_managed = min(_least_managed, least_managed)
    _least_in_pieces = min(_least_in_pieces, least_in_pieces)
    _spill = spill


def note_small_arrays() -> None:
    """Note from now on, once, which small memory arrays have, too: its updates are the script's own."""
    global _shows_small
    _shows_small = True


def guard() -> None:
    """Put a wrapper, once, in front of every function that gives a storage's address away."""
    global _guarded
    if _guarded:
        return
    _guarded = True
    InFrontOf.NUMPY.install(_numpy_held)
    InFrontOf.DLPACK.install(_dlpack_held)
    before_dlpack_exports(_held)
    InFrontOf.RPC.install(_sent_held)
    InFrontOf.BACKENDS.install(_collective_held)
    InFrontOf.DATA_PTR.install(_data_ptr_fetched)
    InFrontOf.STORAGE_FILES.install(partial(_holding, 0))
    InFrontOf.RECORD_WRITER.install(_written)
    InFrontOf.RECORD_READER.install(_read_in_chunks)
    safetensors_files.guard(addresses_only)
    scripted_files.guard(lambda nbytes: nbytes >= _least_in_pieces)


def before_dlpack_exports(function: Callable[[torch.Tensor, bool], object]) -> None:
    """Have the function called before a library takes a tensor through DLPack's table of C functions.

    It gets the tensor, and whether the library keeps the memory or looks at it in a call of its own.
    """
    if (theirs := getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)) is not None:
        torch.Tensor.__dlpack_c_exchange_api__ = _torch.dlpack_table(theirs, function)


@contextlib.contextmanager
def addresses_only() -> Iterator[None]:
    """Mark this thread's calls for addresses: the caller compares them and does not look there."""
    before = getattr(_this_thread, "addresses_only", False)
    _this_thread.addresses_only = True
    try:
        yield
    finally:
        _this_thread.addresses_only = before


def _numpy_held(numpy: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    array = numpy(*args, **kwargs)
    if not isinstance(array, np.ndarray) or array.size == 0:  # a subclass's own; its address may be another storage's
        return array
    address = array.__array_interface__["data"][0]
    nbytes = _extent(array.shape, array.strides, array.itemsize)
    if _torch.pin(address, nbytes):
        weakref.finalize(array, _torch.unpin, address, nbytes).atexit = False
    elif _shows_small and nbytes < _least_managed:
        _torch.note_array(address, True)
        weakref.finalize(array, _torch.note_array, address, False).atexit = False
    return array


def _dlpack_held(dlpack: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    held = _held(args[0], keeps=True) if args and isinstance(args[0], torch.Tensor) else None
    try:
        return dlpack(*args, **kwargs)
    except BaseException:  # a parameter that requires a gradient is not exported
        if held is not None:
            _torch.unpin(*held)
        raise


def _sent_held(send: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hold the tensors of a message: those among the arguments, and those that a pickler found in an object."""
    _hold_all([*args, *kwargs.values()])
    sent = send(*args, **kwargs)
    if isinstance(sent, tuple) and len(sent) == 2 and isinstance(sent[1], list):
        _hold_all(sent[1])
    return sent


def _collective_held(collective: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    tensors = list(_tensors_in([*args, *kwargs.values()]))
    _torch.look_at(tensors)
    _torch.enter_backend(tensors)
    work = None
    try:
        work = collective(*args, **kwargs)
        return work
    finally:
        _torch.exit_backend(work)


def _tensors_in(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def _hold_all(values: Sequence[Any]) -> None:
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    _torch.look_at(tensors)
    for tensor in tensors:
        _held(tensor, keeps=True)


def _held(tensor: torch.Tensor, keeps: bool) -> tuple[int, int] | None:
    """Hold a tensor's memory for good, or fetch it alone. Return what is held: the address and bytes."""
    with torch._C.DisableTorchFunction():  # a subclass's own functions are for what the script calls
        if tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.numel() > 0:
            address, nbytes = _address_of(tensor), _extent_of(tensor)
            if _torch.pin(address, nbytes):
                if keeps:
                    return address, nbytes
                _torch.unpin(address, nbytes)
            elif _shows_small and keeps and nbytes < _least_managed:
                _torch.note_array(address, True)
    return None


def _data_ptr_fetched(data_ptr: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    address = data_ptr(*args, **kwargs)
    if getattr(_this_thread, "addresses_only", False) or not isinstance(address, int):
        return address
    if torch._C._get_tracing_state() is not None:
        return address  # sizes are tensors there, and whoever asks for one is noted
    with torch._C.DisableTorchFunction():
        tensor = args[0]
        nbytes = _extent_of(tensor) if tensor.device.type == "cpu" else 0
        try:
            for begin in range(0, nbytes, _least_in_pieces):  # what is larger than memory may be asked for its address
                part = address + begin, min(nbytes - begin, _least_in_pieces)
                if not _torch.pin(*part):
                    break
                _torch.unpin(*part)
        except RuntimeError as error:  # touched, it says what is wrong
            if came_from_a_handler(error):
                raise
    return address


def _extent_of(tensor: torch.Tensor) -> int:
    item = tensor.element_size()
    return _extent(tensor.shape, tuple(stride * item for stride in tensor.stride()), item) if tensor.numel() else 0


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Return the bytes from the first element to the end of the last."""
    return itemsize + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _read_in_chunks(read: Callable[..., Any], reader: Any, name: str, numel: int, dtype: Any) -> Any:
    """Read storages that may leave memory in chunks. PyTorch would hand the kernel their address, which waits for
    nothing that is away."""
    is_typed = isinstance(dtype, torch.dtype)
    nbytes = numel * dtype.itemsize if is_typed else numel
    if nbytes < _least_managed or not (is_typed or dtype is torch.UntypedStorage):
        return read(reader, name, numel, dtype)
    made = _torch.read_record(reader, name, nbytes)
    return torch.empty(0, dtype=dtype).set_(made.untyped_storage(), 0, (numel,), (1,)) if is_typed else made


def _written(write: Callable[..., Any], *args: Any) -> Any:
    """Write a storage to an archive. One about as large as the arena goes by a file: PyTorch hands the kernel its
    address, and wants all of it in memory."""
    storage = args[2] if len(args) > 2 else None
    nbytes = storage.nbytes() if isinstance(storage, torch.UntypedStorage) and storage.device.type == "cpu" else 0
    if nbytes < _least_in_pieces or not 0 < _torch.counters()["arena_limit_bytes"] < 2 * nbytes:
        return _holding(2, write, *args)  # it reads the storage once for its checksum, or not at all
    try:
        unnamed = tempfile.TemporaryFile(dir=_spill)  # noqa: SIM115 (closed below)
    except OSError:  # the directory has gone: the spill file in it has no name, and needs none
        return _holding(2, write, *args)
    with unnamed as file:
        _reserve(file.fileno(), nbytes)
        with mmap.mmap(file.fileno(), nbytes) as copy:
            there, begin = torch.frombuffer(copy, dtype=torch.uint8), storage.data_ptr()  # type: ignore[union-attr]
            _torch.look_at_data_files()  # its pages are not the process's: else tensors would leave for them
            try:
                for at in range(0, nbytes, _least_in_pieces):
                    ctypes.memmove(_address_of(there) + at, begin + at, min(nbytes - at, _least_in_pieces))
                return write(args[0], args[1], there.untyped_storage(), nbytes)
            finally:
                del there
                copy.madvise(mmap.MADV_DONTNEED)  # while it is known: the kernel forgets a mapping before its pages


def _reserve(file: int, nbytes: int) -> None:
    """Reserve a file's space before it is mapped: where a disk is full, a write to a page of a hole is SIGBUS. Raises
    OutOfMemoryError."""
    try:
        reserve(file, nbytes)
    except OSError as error:
        cure = f"free space there or choose another ({option('spill', 'DIR')} or EBBTIDE_SPILL)"
        raise torch.OutOfMemoryError(
            f"ebbtide: a tensor of {format_bytes(nbytes)} is written by way of the spill directory {_spill}, which "
            f"has no room for it ({error.strerror}); {cure}"
        ) from error


def _holding(storage_at: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hold the storage that is the argument of that number while the function runs."""
    storage = args[storage_at] if len(args) > storage_at else None
    on_cpu = isinstance(storage, torch.UntypedStorage) and storage.device.type == "cpu"
    with safetensors_files.held(storage.data_ptr() if on_cpu else 0):  # type: ignore[union-attr]
        return function(*args, **kwargs)
