"""Places where memory is read or written without an operator: updates that are put off are carried out before. The same
holds before a change of those process settings by which operators compute.

Native code sees operators (``native/torch/deferred.cpp``). The functions here ask for an address, read a storage's
bytes, or run compiled code on addresses. ``in_front`` lists them. Who guards memory is told of each, forks excepted.
Left out: kernels that C++ calls without PyTorch's dispatcher, on a tensor that was handed to it; addresses that
somebody has from before; and ``data_ptr`` itself, where a script took the function before the session (``f =
torch.Tensor.data_ptr``).
"""

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

import ebbtide._torch as _torch
from ebbtide.doors.foreign_views import before_dlpack_exports
from ebbtide.in_front import InFrontOf

_Base: Any = torch._C.StorageBase
_address_of = _Base.data_ptr  # what it is before a wrapper comes in front
_guarded: set[str] = set()
_compiled_calls = 0


def guard() -> None:
    """Put the wrappers in place, those of settings excepted. Callers MUST call ``foreign_views.guard`` first: its
    wrappers come after these. A second call is cheap."""
    if "torch" not in _guarded:
        _guarded.add("torch")
        InFrontOf.TENSOR_DOORS.install(_looking_at_tensors)
        InFrontOf.SWAPS.install(_looking_at_tensors)
        InFrontOf.VERSIONS.install(_looking_at_each)
        InFrontOf.STORAGE_DOORS.install(_looking_at_storages)
        InFrontOf.SCRIPTED_DOORS.install(_all_first)
        before_dlpack_exports(lambda tensor, _: _torch.look_at([tensor]))
        os.register_at_fork(before=_torch.carry_out_all, after_in_child=_torch.abandon_deferred)
    for module, install in _COMPILERS.items():
        if module not in _guarded and module in sys.modules:
            _guarded.add(module)
            install()


def guard_settings() -> None:
    """Put the wrappers of those settings in place. What is to be made anew is made before a change of one, too."""
    if "settings" not in _guarded:
        _guarded.add("settings")
        InFrontOf.SETTINGS.install(_around_a_setting)
        InFrontOf.KERNELS.install(_around_other_kernels)


def compiled_calls() -> int:
    """Count entries into code that Dynamo may have compiled: it reads addresses, and no operator is seen."""
    return _compiled_calls


def _looking_at_tensors(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _torch.look_at([value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)])
    return original(*args, **kwargs)


def _looking_at_each(original: Callable[..., Any], tensor: Any, *rest: Any) -> Any:
    """For a function that takes a tensor, or an iterable of them."""
    tensors = tensor if isinstance(tensor, torch.Tensor) else tuple(tensor)
    _torch.look_at([tensors] if isinstance(tensors, torch.Tensor) else tensors)
    return original(tensors, *rest)


def _looking_at_storages(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if _torch.deferred_count():
        for storage in args:
            if isinstance(storage, torch.UntypedStorage) and storage.device.type == "cpu":
                with contextlib.suppress(RuntimeError):  # a storage without memory
                    _torch.look_at_memory(_address_of(storage), storage.nbytes())
    return original(*args, **kwargs)


def _all_first(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _torch.look_at_all()
    return original(*args, **kwargs)


def _around_a_setting(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        _torch.begin_change()  # may take a while, and Ctrl-C comes as it ends
        _torch.look_before_a_setting()
        return original(*args, **kwargs)
    finally:
        _torch.end_change()


def _around_other_kernels(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    def change(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            _torch.look_again_what_repeats()

    return _around_a_setting(change, *args, **kwargs)


def _before_compiled_code(original: Callable[[Any], Any], callback: Any) -> Any:
    """Watch what Dynamo is set to do with frames from here on: nothing (None, or False), or run compiled code."""
    if callback is not None and callback is not False:
        _look_at_all()
    return original(callback)


def _before_other_compiled_code(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if torch._C._current_graph_task_id() == -1:
        _look_at_all()
    else:  # a compiled backward pass, which reads what it is called with
        given = [value for arg in args for value in (arg if isinstance(arg, list | tuple) else [arg])]
        _torch.look_at([value for value in given if isinstance(value, torch.Tensor)])
    return original(*args, **kwargs)


def _look_at_all() -> None:
    global _compiled_calls
    _compiled_calls += 1
    _torch.look_at_all()


_COMPILERS: dict[str, Callable[[], object]] = {
    "torch._dynamo.eval_frame": lambda: InFrontOf.COMPILED_CODE.install(_before_compiled_code),
    "torch._dynamo.aot_compile": lambda: InFrontOf.COMPILED_BEFOREHAND.install(_before_other_compiled_code),
    "torch._inductor.output_code": lambda: InFrontOf.COMPILED_BY_INDUCTOR.install(_before_other_compiled_code),
}
