"""Repeats an operator's call from its record in a trace: the same overload, shapes, types and strides.

Values are made up: floating-point numbers in [0.5, 1.5), integers 0 (an index that every table has), truth values
False. A view begins at the start of its storage. Left out: operators that change a tensor's storage, and calls with
arguments that a trace cannot tell.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ebbtide.units import round_up

Buffers = Sequence[torch.Tensor]
"""The bytes of each operand's storage."""

_NOT_REPEATED = ("set_", "resize_", "resize_as_", "as_strided_")
_LARGEST_ITEM_BYTES = 16


class NotRepeatableError(Exception):
    """A call cannot be repeated, for the reason that the text gives."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of the call: a view of operand ``operand``."""

    operand: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def of(self, buffers: Buffers) -> torch.Tensor:
        return torch.as_strided(buffers[self.operand].view(self.dtype), self.shape, self.strides)


@dataclass(slots=True)
class Call:
    """A call and its operands: the storages of its arguments in their order.

    It touches at most ``needed_bytes`` of each, whose values have the type in ``dtypes``.
    """

    function: Any
    args: list[Any]
    kwargs: dict[str, Any]
    needed_bytes: list[int] = field(default_factory=list)
    dtypes: list[torch.dtype] = field(default_factory=list)

    def bound(self, buffers: Buffers) -> Callable[[], Any]:
        """Return the call on those buffers, without arguments."""
        args = [_filled(value, buffers) for value in self.args]
        kwargs = {name: _filled(value, buffers) for name, value in self.kwargs.items()}
        return lambda: self.function(*args, **kwargs)

    def filled(self) -> list[torch.Tensor]:
        """Return memory with values for each operand."""
        buffers = [torch.empty(nbytes, dtype=torch.uint8) for nbytes in self.needed_bytes]
        for buffer, dtype in zip(buffers, self.dtypes, strict=True):
            typed = buffer.view(dtype)
            if typed.is_floating_point():
                typed.uniform_(0.5, 1.5)
            else:
                typed.zero_()
        return buffers

    def require_at_most(self, nbytes: int) -> None:
        """Raise NotRepeatableError for larger operands and results."""
        if sum(self.needed_bytes) + self.result_bytes() > nbytes:
            raise NotRepeatableError("its operands are too large for this machine")

    def result_bytes(self) -> int:
        """Return the bytes of the call's results without computing them, or 0 where they cannot be told."""
        shapes_only = [torch.empty(nbytes, dtype=torch.uint8, device="meta") for nbytes in self.needed_bytes]
        try:
            return sum(value.untyped_storage().nbytes() for value in tensors_in(self.bound(shapes_only)()))
        except Exception:  # any error that an operator raises for tensors without values
            return 0


def call_of(operator: str, arguments: str) -> Call:
    """Make the call. Raises NotRepeatableError."""
    namespace, _, name = operator.partition("::")
    if not arguments:
        raise NotRepeatableError("its arguments were not recorded")
    if namespace != "aten" or name in _NOT_REPEATED:
        raise NotRepeatableError("not an operator of PyTorch's own that computes")
    try:
        told = json.loads(arguments)
        function = getattr(getattr(torch.ops.aten, name), told["overload"] or "default")
        call = Call(function, [], {})
        declared = {argument.name: argument for argument in function._schema.arguments}
        seen: list[int] = []
        for argument, value in zip(function._schema.arguments, told["args"], strict=False):
            call.args.append(_argument(value, argument, call, seen))
        for key, value in told["kwargs"].items():
            call.kwargs[key] = _argument(value, declared[key], call, seen)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, RuntimeError, OverflowError) as error:
        raise NotRepeatableError(f"its arguments make no sense: {error}") from error
    if not call.needed_bytes:
        raise NotRepeatableError("it has no operand in memory")
    return call


def _argument(value: Any, declared: Any, call: Call, seen: list[int]) -> Any:
    """Convert an argument of the trace. ``seen`` are the operands of the call's tensors so far."""
    if isinstance(value, list):
        return [_argument(item, declared, call, seen) for item in value]
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float(value["float"])
    if "shape" not in value or "layout" in value or "device" in value:
        raise NotRepeatableError(f"an argument that traces do not tell: {declared.name}")
    dtype = getattr(torch, value["dtype"])
    if not isinstance(dtype, torch.dtype) or any(type(size) is not int or size < 0 for size in value["shape"]):
        raise ValueError("not a tensor")
    shape = tuple(value["shape"])
    strides = tuple(value.get("strides") or torch.empty(shape, device="meta").stride())
    needed = _needed(shape, strides, dtype.itemsize)
    if "same" in value:
        operand = seen[value["same"]]
    else:
        operand = len(call.needed_bytes)
        call.needed_bytes.append(0)
        call.dtypes.append(dtype)
    call.needed_bytes[operand] = max(call.needed_bytes[operand], needed)
    seen.append(operand)
    return _Tensor(operand, shape, strides, dtype)


def _needed(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Return the bytes from the first element to the end of the last, in whole elements of the largest type."""
    if len(shape) != len(strides) or any(type(stride) is not int or stride < 0 for stride in strides):
        raise ValueError("strides do not suit the shape")
    last = 0 if 0 in shape else sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return round_up((last + 1) * itemsize, _LARGEST_ITEM_BYTES)


def _filled(value: Any, buffers: Buffers) -> Any:
    if isinstance(value, _Tensor):
        return value.of(buffers)
    return [_filled(item, buffers) for item in value] if isinstance(value, list) else value


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in tensors_in(item)] if isinstance(value, list | tuple) else []
