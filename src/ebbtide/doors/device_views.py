"""Keeps a tensor on its device while somebody has its address there.

Native code sees operators. The functions here give an address away (Triton, CuPy, bitsandbytes and captured graphs use
it): the storage comes back before, and stays until the step ends, or for good where nobody tells when its user is done
with it. Left out: C++ code that takes a tensor and calls no operator. If that may write, PyTorch 2.13 and newer
tell.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch

import ebbtide._torch as _torch
from ebbtide.doors.foreign_views import before_dlpack_exports
from ebbtide.in_front import InFrontOf

_guarded = False
_device = "cpu"
_thread = threading.local()  # `saves`: it is in torch.save()


def guard(device_type: str) -> None:
    """Put the wrappers in place, once."""
    global _guarded, _device
    _device = device_type
    if _guarded:
        return
    _guarded = True
    InFrontOf.DEVICE_ADDRESSES.install(_pinned)
    InFrontOf.DEVICE_STORAGES.install(_held)
    InFrontOf.DEVICE_SAVES.install(_saved)
    InFrontOf.DEVICE_EXPORTS.install(_pinned_for_good)
    InFrontOf.CAPTURES.install(_around_capture)
    before_dlpack_exports(_exported)


def _pinned(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if getattr(_thread, "saves", False) and isinstance(args[0], torch.UntypedStorage):
        return args[0]._cdata if args[0].nbytes() else 0
    _pin(args, for_good=False)
    return function(*args, **kwargs)


def _held(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    held = _pin(args, for_good=False)
    try:
        return function(*args, **kwargs)
    finally:
        for value in held:
            _torch.unpin_on_device(value)


def _saved(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _thread.saves = True
    try:
        return function(*args, **kwargs)
    finally:
        _thread.saves = False


def _pinned_for_good(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _pin(args, for_good=True)
    return function(*args, **kwargs)


def _exported(tensor: torch.Tensor, keeps: bool) -> None:
    _pin((tensor,), for_good=keeps)


def _around_capture(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    begins = function.__name__ == "capture_begin"
    if begins:
        _torch.suspend_device(True)
    try:
        return function(*args, **kwargs)
    finally:
        if not begins:
            _torch.suspend_device(False)


def _pin(args: tuple[Any, ...], for_good: bool) -> list[torch.Tensor | torch.UntypedStorage]:
    """Return those that would not have stayed otherwise."""
    with torch._C.DisableTorchFunction():
        values = [v for v in args if isinstance(v, torch.Tensor | torch.UntypedStorage) and v.device.type == _device]
        return [value for value in values if not _torch.pin_on_device(value, for_good)]
