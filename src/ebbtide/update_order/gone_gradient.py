"""The stand-in in ``parameter.grad`` for a gradient that was freed after its parameter's update in the backward pass.

It has the gradient's shape and type and no bytes. Whoever uses it gets an error that names the line of the script.
Python gets it through ``__torch_function__``, and C++ (a second backward pass that accumulates) through
``__torch_dispatch__``. ``zero_grad(set_to_none=True)`` takes the stand-in away without a look.
"""

import linecache
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._subclasses import meta_utils

from ebbtide.errors import OrderError

_NAMES = """
__hash__ __len__ __repr__ _backward_hooks _has_compatible_shallow_copy_type _is_view _version device dim dtype
element_size grad_fn is_complex is_contiguous is_cpu is_cuda is_floating_point is_leaf is_meta is_quantized is_sparse
is_sparse_csr is_mkldnn is_nested itemsize layout names nbytes ndim ndimension nelement numel register_hook
register_post_accumulate_grad_hook requires_grad requires_grad= requires_grad_ retains_grad shape size stride
"""
_METADATA = frozenset(_NAMES.split())
"""The calls and attributes of a tensor that look at no element."""

_CASTS = ("bfloat16", "cpu", "detach", "double", "float", "half", "to", "type")
_OURS = tuple(f"{Path(module.__file__).parent}/" for module in (torch, sys.modules["ebbtide"]) if module.__file__)


listeners: list[Callable[[str], None]] = []
"""They are told of every use, in words, before the error is raised: a script may catch it."""


class GoneGradient(torch.Tensor):
    """Stands for the gradient of one parameter."""

    @staticmethod
    def of(parameter: torch.Tensor) -> "GoneGradient":
        gone: GoneGradient = torch.Tensor._make_wrapper_subclass(
            GoneGradient, parameter.shape, strides=parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        return gone

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = _called(func), kwargs or {}
        if name == "__repr__":
            return f"<gradient of shape {tuple(args[0].shape)}, freed in the backward pass>"
        if name in _METADATA or _is_described():
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name in _CASTS and isinstance(args[0], GoneGradient) and _changes_nothing(func, args, kwargs):
            return args[0]
        if name == "data=" and args[1:] == (args[0],):  # as ``Module.to`` sets it
            return None
        raise _used(name)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise _used(str(func))


def _is_described() -> bool:
    """Say whether a compiler asks, for a fake tensor in its place: it reads no element."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        if frame.f_code.co_filename == meta_utils.__file__:
            return True
        frame = frame.f_back
    return False


def _called(func: Any) -> str:
    """Return the name of the call, or of the attribute that is read; with "=" after it, of one that is set."""
    name = getattr(func, "__name__", "")
    if name not in ("__get__", "__set__"):
        return str(name)
    return str(getattr(func.__self__, "__name__", name)) + ("=" if name == "__set__" else "")


def script_line(frame: FrameType | None = None) -> str:
    """Return the running line of the script, as "train.py:31 (loss.backward())"; with a ``frame``, that from which it
    was reached."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_OURS, "<")):
            line = linecache.getline(file, frame.f_lineno).strip()
            return f"{Path(file).name}:{frame.f_lineno}" + (f" ({line:.80})" if line else "")
        frame = frame.f_back
    return "the script"


def outermost_forward() -> FrameType | None:
    """Return the frame of the outermost module's call that is running, None where none is."""
    found, frame = None, sys._getframe(1).f_back
    while frame is not None:
        if frame.f_code is torch.nn.Module.__call__.__code__:
            found = frame
        frame = frame.f_back
    return found


def _used(name: str) -> OrderError:
    what = f"{script_line()} uses a gradient ({name}) after its parameter's update"
    if name.startswith("aten.add"):
        what = f"{script_line()} adds to gradients of which the update has been made"
    for listener in listeners:
        listener(what)
    return OrderError(what)


def _changes_nothing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a cast would return the same tensor, as those of ``Module.to`` and ``Module.cpu`` mostly do."""
    gone = args[0]
    with torch._C.DisableTorchFunctionSubclass():
        like = torch.empty((), dtype=gone.dtype, device=gone.device)
        try:
            cast = func(like, *args[1:], **kwargs)
        except (RuntimeError, TypeError):
            return False
        return isinstance(cast, torch.Tensor) and (cast.dtype, cast.device) == (gone.dtype, gone.device)
