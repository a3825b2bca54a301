"""Storages that the user wants in memory all the time: pinned until the session ends. Unmanaged ones stay anyway.

Left out: tensors that take the place of the kept ones later, and their gradients and optimizer state.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch.multiprocessing.reductions import StorageWeakRef

import ebbtide._torch as _torch
from ebbtide.errors import SettingError


class Kept:
    """The kept storages. Each is pinned once, however often it is named, and lives no longer for it."""

    def __init__(self) -> None:
        self._by_address: dict[int, StorageWeakRef] = {}

    def keep(self, what: object) -> None:
        """Fetch and pin storages. Raises SettingError for a value without tensors, RuntimeError if one cannot be
        read."""
        for tensor in list(tensors_of(what, "cpu")):
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            known = self._by_address.get(address)
            if (known is None or _is_gone(known)) and _torch.pin(address):
                self._by_address[address] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def release(self) -> None:
        for address, storage in self._by_address.items():
            if not _is_gone(storage):
                _torch.unpin(address)
        self._by_address = {}


def _is_gone(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]


def tensors_of(what: object, device_type: str) -> Iterator[torch.Tensor]:
    """Yield the strided tensors of such a device. Raises SettingError for a value without tensors."""
    if isinstance(what, torch.Tensor):
        if what.layout is torch.strided and what.device.type == device_type:
            yield what
    elif isinstance(what, torch.nn.Module):
        yield from tensors_of([*what.parameters(), *what.buffers()], device_type)
    elif isinstance(what, Mapping):
        yield from tensors_of(list(what.values()), device_type)
    elif isinstance(what, Iterable) and not isinstance(what, str | bytes):
        for part in what:
            yield from tensors_of(part, device_type)
    else:
        raise SettingError(f"what is to be kept is a module, a tensor, or several of them, not {type(what).__name__}")
