"""Finds the tensors in nested values, and takes those of other types apart, into those that have a storage."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

layout_of = torch.Tensor.layout.__get__  # type: ignore[attr-defined]
"""What PyTorch itself says. A class of the script's may say something else, or do something when it is asked."""


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in lists, tuples and values of dicts, which may contain themselves. No function of a class of
    the script's is called."""
    ahead, seen = [value], set[int]()
    while ahead:
        value = ahead.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | dict) and id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, dict):
                ahead += dict.values(value)
            else:
                ahead += list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)


def storage_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the parts with a storage: a DTensor's local tensor (no mesh), a quantized state's values and scales."""
    wrapper: Any = tensor
    names = None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        with suppress(Exception):  # a class of the script's own may not have been made for this
            names = wrapper.__tensor_flatten__()[0] if is_traceable_wrapper_subclass(wrapper) else None
    if names is None:
        yield tensor
        return
    for name in names:
        if isinstance(part := getattr(tensor, name, None), torch.Tensor):
            yield from storage_parts(part)
