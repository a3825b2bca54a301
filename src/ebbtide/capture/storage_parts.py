"""Finds the tensors in nested values, and takes those of other types apart, into those that have a storage."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in lists, tuples and values of dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def storage_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the parts with a storage: a DTensor's local tensor (no mesh), a quantized state's values and scales."""
    wrapper: Any = tensor
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and is_traceable_wrapper_subclass(wrapper):
        for name in wrapper.__tensor_flatten__()[0]:
            if isinstance(part := getattr(tensor, name), torch.Tensor):
                yield from storage_parts(part)
    else:
        yield tensor
