"""Writes safetensors files tensor by tensor, so that a model larger than fast memory can be saved.

safetensors asks for every address first and then hands tensor after tensor to the kernel, which does not fault like a
program. So Ebbtide replaces its ``serialize_file`` for ``safetensors.torch``. safetensors makes the header from the
same names and dtypes with one element each. The true shapes and offsets are then put in. Then each tensor is held,
written and let go, chunk by chunk. As safetensors does it, the file is made beside its target, and renamed over it when
it is whole.

Left out: safetensors before 0.8, which copies the whole model before it writes. That works as without Ebbtide, and
needs the memory for the copy outside the arena. ``save``, which returns bytes, copies like a program and needs nothing.
"""

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ebbtide._torch as _torch
from ebbtide.host.signal_handlers import came_from_a_handler
from ebbtide.in_front import InFrontOf
from ebbtide.units import MIB

_LENGTH_BYTES = 8
_ALIGNMENT = 8
_AT_ONCE = 16 * MIB  # bytes that are held while they are written: a tensor may be larger than fast memory


def guard(addresses_only: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Replace the function with which ``safetensors.torch`` writes files, where it is installed. Called once.

    It imports the module at once, because a script may import it for its last line. Within ``addresses_only`` nothing
    is fetched for a caller that asks for an address. safetensors compares them, and asks for all before its first
    write.
    """
    if importlib.util.find_spec("safetensors") is None:
        return
    try:
        library: Any = importlib.import_module("safetensors.torch")
    except Exception:  # a broken installation is the problem of whoever uses it
        return
    if not hasattr(library, "TensorSpec"):
        return

    def serialize_file(
        original: Callable[..., None],
        tensor_dict: Mapping[str, Any],
        filename: Any,
        metadata: dict[str, str] | None = None,
    ) -> None:
        layout = _layout(library, tensor_dict, metadata)
        if layout is None:
            original(tensor_dict, filename, metadata=metadata)
            return
        try:
            _write(filename, *layout)
        except OSError as error:
            if came_from_a_handler(error):  # a time limit, say
                raise
            reason = f"{error.strerror} (os error {error.errno})"
            raise _error_class()(f"Error while serializing: I/O error: {reason}") from error

    def comparing(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with addresses_only():
            return original(*args, **kwargs)

    InFrontOf.SAFETENSORS_WRITER.install(serialize_file)
    InFrontOf.SAFETENSORS_ADDRESSES.install(comparing)


_ONE_ELEMENT = ctypes.create_string_buffer(16)  # of the widest dtype


def _layout(library: Any, specs: Mapping[str, Any], metadata: dict[str, str] | None) -> tuple[bytes, list[Any]] | None:
    """Make the header with its length, and list the tensors in the order of their data. None if it is not as known."""
    template: dict[str, Any] = {}
    for name, spec in specs.items():
        dtype = library._TYPES.get(spec.dtype)
        if dtype is None:
            return None
        elements = 1 if spec.data_len else 0
        template[name] = library.TensorSpec(
            dtype=str(dtype).split(".")[-1],
            shape=[elements],
            data_ptr=ctypes.addressof(_ONE_ELEMENT),
            data_len=elements * dtype.itemsize,
        )
    made = bytes(library.serialize(template, metadata=metadata))
    text = made[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(made[:_LENGTH_BYTES], "little")]
    entries = json.loads(text)
    if _as_text(entries) != text:
        return None
    order = [name for name in entries if name in specs]  # the entry __metadata__ is no tensor
    offset = 0
    for name in order:
        end = offset + specs[name].data_len
        entries[name] |= {"shape": list(specs[name].shape), "data_offsets": [offset, end]}
        offset = end
    text = _as_text(entries)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, [specs[name] for name in order]


def _as_text(entries: dict[str, Any]) -> bytes:
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % _ALIGNMENT)


def _write(filename: Any, header: bytes, specs: list[Any]) -> None:
    target = os.fsdecode(filename)
    file, unfinished = tempfile.mkstemp(prefix=".tmp", dir=os.path.dirname(target) or ".")
    try:
        with os.fdopen(file, "wb", buffering=0):
            os.truncate(file, len(header) + sum(spec.data_len for spec in specs))
            _write_all(file, memoryview(header))
            for spec in specs:
                for begin in range(0, spec.data_len, _AT_ONCE):
                    address, nbytes = spec.data_ptr + begin, min(_AT_ONCE, spec.data_len - begin)
                    with held(address, nbytes):
                        _write_all(file, memoryview((ctypes.c_ubyte * nbytes).from_address(address)))
        os.replace(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):  # the error to tell is the first one
            os.unlink(unfinished)
        raise


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


@contextlib.contextmanager
def held(address: int, nbytes: int = 0) -> Iterator[None]:
    """Hold these bytes in memory during the block, or the whole storage there."""
    is_managed = _torch.pin(address, nbytes)
    try:
        yield
    finally:
        if is_managed:
            _torch.unpin(address, nbytes)


def _error_class() -> Any:
    return importlib.import_module("safetensors").SafetensorError
