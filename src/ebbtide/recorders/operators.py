"""Tells how an operator uses each argument, by native code's rules (``native/torch/operator_rules.hpp``)."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

import ebbtide._torch as _torch
from ebbtide.capture.storage_parts import tensors_in

_touches_nothing = cache(_torch.touches_nothing)
_uses_of = cache(_torch.uses_of)


def touches_nothing(operator: Any) -> bool:
    """Say whether the operator only makes a view, or memory that nobody has written."""
    return _touches_nothing(operator._schema.name, operator._schema.overload_name)


def over_lists(operator: Any) -> bool:
    return _torch.over_lists(operator._schema.name)


def list_length(operator: Any, args: tuple[Any, ...]) -> int:
    return max((len(value) for value in args if _is_tensor_list(value)), default=0)


def _is_tensor_list(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], torch.Tensor)


def operands(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], element: int | None = None
) -> Iterator[tuple[torch.Tensor, int, bool]]:
    """Return each tensor, its access, and whether it is written without being read.

    If ``element`` is given, only that element of each list counts.
    """
    schema = operator._schema
    length = list_length(operator, args) if element is not None else 0
    leaves_gradients = element is not None and kwargs.get("grad_scale") is None
    uses = _uses_of(schema.name, schema.overload_name, leaves_gradients)
    for place, (declared, (access, overwrites)) in enumerate(zip(schema.arguments, uses, strict=True)):
        value: Any = args[place] if place < len(args) else kwargs.get(declared.name)
        if element is not None and _is_tensor_list(value):
            value = value[element] if len(value) == length else None
        elif element is not None:
            continue
        for tensor in tensors(value):
            yield tensor, access, overwrites


def tensors(value: object) -> Iterator[torch.Tensor]:
    return (tensor for tensor in tensors_in(value) if tensor.layout is torch.strided)


def shapes(args: Sequence[Any]) -> list[Any]:
    return [list(value.shape) if isinstance(value, torch.Tensor) else value for value in args]
