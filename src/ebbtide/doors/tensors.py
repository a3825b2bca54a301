"""Where memory is read or written without an operator: updates that are put off are carried out before. So they are
before a setting of the process changes that operators compute by.

Operators are seen by native code (``native/torch/deferred.cpp``). What is here asks for an address, reads a storage's
bytes, or runs compiled code on addresses. The wrappers stay until the process ends, and cost nothing where no update is
put off. Left out: kernels that C++ calls without PyTorch's dispatcher, on a tensor that was handed to it; addresses
that somebody has from before.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

import ebbtide._torch as _torch
from ebbtide.doors.foreign_views import untraced

_OF_TENSORS = ("numpy", "__dlpack__", "data_ptr", "untyped_storage")
_OF_STORAGES = [
    "__getitem__",
    "__setitem__",
    "data_ptr",
    "copy_",
    "fill_",
    "resize_",
    "_byteswap",
    "_write_file",
    "_set_from_file",
    "_share_fd_cpu_",
    "_share_filename_cpu_",
    "_swap_data_ptr_",
    "_resize_with_addr_",
]
_OF_NUMBERS = (
    "set_num_threads",
    "set_flush_denormal",
    "_set_default_dtype",
    "_set_default_tensor_type",
    "_set_deterministic_algorithms",
    "_set_float32_matmul_precision",
    "_set_fp32_precision_setter",
    "_set_mkldnn_enabled",
    "_set_mkldnn_deterministic",
    "_set_nnpack_enabled",
)
_OF_SCRIPTED = ("save", "save_to_buffer", "_save_for_lite_interpreter", "_save_to_buffer_for_lite_interpreter")

_guarded: set[str] = set()
_compiled_calls = 0


def guard() -> None:
    """Callers MUST have called ``foreign_views.guard``, whose wrappers come after these. To call it again is cheap."""
    if "torch" not in _guarded:
        _guarded.add("torch")
        _guard_torch()
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and "dynamo" not in _guarded:
        _guarded.add("dynamo")
        dynamo._maybe_set_eval_frame = _before_compiled_code(dynamo._maybe_set_eval_frame)  # type: ignore[attr-defined]


def compiled_calls() -> int:
    """How often code that Dynamo may have compiled was entered: it reads addresses, and no operator is seen."""
    return _compiled_calls


def _guard_torch() -> None:
    for name in _OF_TENSORS:
        original = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, untraced(_looking_first(original)))
    for name in _OF_STORAGES:
        original = getattr(torch.UntypedStorage, name)
        setattr(torch.UntypedStorage, name, untraced(_looking_at_storage(original)))
    for module in (torch, torch.utils.dlpack):
        module.to_dlpack = untraced(_looking_first(module.to_dlpack))  # type: ignore[attr-defined]
    for module in (torch, torch._C):
        for name in _OF_NUMBERS:
            if hasattr(module, name):
                setattr(module, name, untraced(_all_first(getattr(module, name))))
    jit: Any = torch.jit
    for name in _OF_SCRIPTED:
        setattr(jit.RecursiveScriptModule, name, _all_first(getattr(jit.RecursiveScriptModule, name)))
    os.register_at_fork(before=_torch.carry_out_all, after_in_child=_torch.abandon_deferred)


def _looking_first(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def looking_first(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _torch.look_at([self])
        return function(self, *args, **kwargs)

    return looking_first


def _looking_at_storage(function: Callable[..., Any]) -> Any:
    address_of = torch._C.StorageBase.data_ptr  # type: ignore[attr-defined]

    @functools.wraps(function)
    def looking_first(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if _torch.deferred_count() and self.device.type == "cpu":
            with contextlib.suppress(RuntimeError):  # a storage without memory
                _torch.look_at_memory(address_of(self), self.nbytes())
        return function(self, *args, **kwargs)

    return looking_first


def _all_first(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def all_first(*args: Any, **kwargs: Any) -> Any:
        _torch.carry_out_all()
        return function(*args, **kwargs)

    return all_first


def _before_compiled_code(function: Callable[..., Any]) -> Any:
    """``function`` sets what Dynamo does with frames from here on: nothing (None, or False), or run compiled code."""

    @functools.wraps(function)
    def entered(callback: Any) -> Any:
        global _compiled_calls
        if callback is not None and callback is not False:
            _compiled_calls += 1
            _torch.carry_out_all()
        return function(callback)

    return entered
