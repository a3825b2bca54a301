"""Repeats an operator's call from its record in a trace: the same overload, shapes, types and strides.

Values are made up: floating-point numbers in [0.5, 1.5), integers 0 (an index that every table has), truth values
False. A view begins at the start of its storage. Left out: operators that change a tensor's storage, and calls with
arguments that a trace cannot tell.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ebbtide.ir.trace import Access
from ebbtide.units import round_up

Buffers = Sequence[torch.Tensor]
"""The bytes of each operand's storage."""

_NOT_REPEATED = ("set_", "resize_", "resize_as_", "as_strided_")
_ALL = int(Access.READ | Access.WRITE)
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
    """A call and its operands: the storages of its arguments in their order, then those of the results that may be
    placed.

    ``trace_bytes`` are an operand's bytes in the trace. The call touches at most ``needed_bytes`` of them.
    """

    function: Any
    args: list[Any]
    kwargs: dict[str, Any]
    trace_bytes: list[int] = field(default_factory=list)
    needed_bytes: list[int] = field(default_factory=list)
    access: list[int] = field(default_factory=list)
    dtypes: list[torch.dtype] = field(default_factory=list)
    outs: dict[str, _Tensor] = field(default_factory=dict)
    into: Any = None  # the overload that writes results into given tensors

    def bound(self, buffers: Buffers) -> Callable[[], Any]:
        """Return the call on those buffers, without arguments."""
        args = [_filled(value, buffers) for value in self.args]
        kwargs = {name: _filled(value, buffers) for name, value in self.kwargs.items()}
        if self.into is None:
            return lambda: self.function(*args, **kwargs)
        outs = {name: tensor.of(buffers) for name, tensor in self.outs.items()}
        return lambda: self.into(*args, **kwargs, **outs)

    def buffer(self, operand: int) -> torch.Tensor:
        """Return ordinary memory for an operand."""
        return torch.empty(self.needed_bytes[operand], dtype=torch.uint8)

    def filled(self) -> list[torch.Tensor]:
        """Return ordinary memory with values for each operand."""
        buffers = [self.buffer(operand) for operand in range(len(self.trace_bytes))]
        for operand, buffer in enumerate(buffers):
            self.fill(operand, buffer)
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

    def fill(self, operand: int, buffer: torch.Tensor) -> None:
        typed = buffer.view(self.dtypes[operand])
        if typed.is_floating_point():
            typed.uniform_(0.5, 1.5)
        else:
            typed.zero_()

    def add_results(self, result: Any, buffers: Buffers) -> None:
        """Add the results as operands. They can be placed if an overload writes into given tensors (``into``)."""
        own = {buffer.untyped_storage().data_ptr() for buffer in buffers}
        results = tensors_in(result)
        born = [value for value in results if value.untyped_storage().data_ptr() not in own]
        found = _into(self.function, len(born)) if born and len(born) == len(results) else None
        for at, value in enumerate(born):
            if found is not None:
                operand = len(self.trace_bytes)
                self.outs[found[1][at]] = _Tensor(operand, tuple(value.shape), value.stride(), value.dtype)
            self.trace_bytes.append(max(value.untyped_storage().nbytes(), 1))
            self.needed_bytes.append(_needed(value.shape, value.stride(), value.itemsize))
            self.access.append(int(Access.WRITE))
            self.dtypes.append(value.dtype)
        if found is not None:
            self.into = found[0]


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
    if not call.trace_bytes:
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
    nbytes = value.get("bytes", math.prod(shape) * dtype.itemsize)
    is_written = declared.alias_info is not None and declared.alias_info.is_write
    access = _ALL if is_written else int(Access.READ)
    if "same" in value:
        operand = seen[value["same"]]
        call.access[operand] |= access
    else:
        operand = len(call.trace_bytes)
        call.trace_bytes.append(max(nbytes, 1))
        call.needed_bytes.append(0)
        call.access.append(access)
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


def _into(function: Any, results: int) -> tuple[Any, list[str]] | None:
    """Find the overload of the same arguments that writes into given tensors with a kernel of its own.

    Returns it with the names of these tensors, or None. The overloads that PyTorch generates compute elsewhere and
    copy, so they would measure the copy.
    """
    schema = function._schema
    names = [(argument.name, str(argument.type)) for argument in schema.arguments]
    packet = function.overloadpacket
    for overload in packet.overloads():
        other = getattr(packet, overload)
        outs = [argument.name for argument in other._schema.arguments if argument.is_out]
        rest = [(argument.name, str(argument.type)) for argument in other._schema.arguments if not argument.is_out]
        full = f"{schema.name}.{overload}"
        if len(outs) == results and rest == names and torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU"):
            return other, outs
    return None
