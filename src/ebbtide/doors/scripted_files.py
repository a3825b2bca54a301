"""Reads and writes TorchScript's files where a tensor takes most of the arena.

``torch.jit`` hands a tensor's address to the kernel, which does not fault like a program. A storage about as large as
the arena may lack some of its pieces by then. So such files go through a buffer outside the arena, which a program
fills and empties.
"""

import zipfile
from collections.abc import Callable
from typing import Any

import torch

import ebbtide._torch as _torch
from ebbtide.in_front import InFrontOf


def guard(is_in_pieces: Callable[[int], bool]) -> None:
    """Put itself in front of both functions. Callers MUST call this once. ``is_in_pieces``: whether storages of so
    many bytes may be."""

    def goes_through_a_buffer(nbytes: int) -> bool:
        return is_in_pieces(nbytes) and 0 < _torch.counters()["arena_limit_bytes"] < 2 * nbytes

    def save_large(save: Callable[..., Any], module: Any, f: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():  # a mode of the script's hears nothing of it
            tensors = [*module.parameters(), *module.buffers()]
            is_large = any(goes_through_a_buffer(tensor.untyped_storage().nbytes()) for tensor in tensors)
        if not is_large:
            return save(module, f, **kwargs)
        written = module.save_to_buffer(**kwargs)
        with open(str(f), "wb") as file:
            file.write(written)
        return None

    def read_large(read: Callable[..., Any], unit: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        if not goes_through_a_buffer(_largest_record(path)):
            return read(unit, path, *args, **kwargs)
        with open(path, "rb") as file:
            native: Any = torch._C
            return native.import_ir_module_from_buffer(unit, file.read(), *args, **kwargs)

    InFrontOf.SCRIPTED_WRITER.install(save_large)
    InFrontOf.SCRIPTED_READER.install(read_large)


def _largest_record(path: str) -> int:
    """Return a file's largest record; 0 for what is no such file: PyTorch says so."""
    try:
        with zipfile.ZipFile(path) as file:
            return max((record.file_size for record in file.infolist()), default=0)
    except (OSError, zipfile.BadZipFile):
        return 0
