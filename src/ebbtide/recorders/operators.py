"""What an operator does with each of its arguments, from its schema: the rules of ``native/torch/recorder.cpp``."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ebbtide.ir.trace import Access


def touches_nothing(operator: Any) -> bool:
    """It makes a view, or memory that nobody has written."""
    schema = operator._schema
    if schema.name.startswith(("aten::empty", "aten::new_empty", "aten::_unsafe_view")):
        return True
    aliases = [result.alias_info for result in schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def over_lists(operator: Any) -> bool:
    return str(operator._schema.name).startswith(("aten::_foreach_", "aten::_fused_ada", "aten::_fused_sgd"))


def list_length(operator: Any, args: tuple[Any, ...]) -> int:
    return max((len(value) for value in args if _is_tensor_list(value)), default=0)


def _is_tensor_list(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], torch.Tensor)


def operands(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], element: int | None = None
) -> Iterator[tuple[torch.Tensor, int, bool]]:
    """Tensor, access and whether it is written without being read. Of lists only one element, if that is given."""
    schema = operator._schema
    length = list_length(operator, args) if element is not None else 0
    overwrites = schema.name in _OVERWRITE
    for place, declared in enumerate(schema.arguments):
        value: Any = args[place] if place < len(args) else kwargs.get(declared.name)
        written = declared.alias_info is not None and declared.alias_info.is_write
        if element is not None and declared.name == "grads" and kwargs.get("grad_scale") is None:
            written = False  # fused optimizers write to gradients only where they unscale them
        access = int(Access.READ | Access.WRITE) if written else int(Access.READ)
        if element is not None and _is_tensor_list(value):
            value = value[element] if len(value) == length else None
        elif element is not None:
            continue
        for tensor in tensors(value):
            yield tensor, access, overwrites or declared.is_out


_OVERWRITE = frozenset(
    f"aten::{name}_" for name in ("copy", "fill", "zero", "normal", "uniform", "random", "bernoulli")
)


def tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def shapes(args: Sequence[Any]) -> list[Any]:
    return [list(value.shape) if isinstance(value, torch.Tensor) else value for value in args]
