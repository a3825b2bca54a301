"""Has an optimizer that works through lists do so group by group, on a device whose memory does not hold all at once.

``torch.optim``'s functions for lists (``_multi_tensor_adam``, say) go through all parameters, their gradients and their
state once for each operator. Called for some parameters after the others, they compute the same: no operator of theirs
mixes two elements of a list, but for those that ``_mixes`` finds. Then what belongs to a parameter is needed once, and
not once for each operator.
Left out: fused optimizers, which native code cuts (``list_operators.cpp``).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ebbtide.in_front import InFrontOf, Wrapper


def cut_lists(group_bytes: int) -> list[Wrapper]:
    """Cut lists into groups of at most so many bytes of parameters, gradients and state, from now on."""

    def in_groups(function: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> None:
        lists = [params, *args, *kwargs.values()]
        whole = [(0, len(params))] if _mixes(function, lists, kwargs) else _groups(lists, len(params), group_bytes)
        for begin, end in whole:
            parts = [_part(value, len(params), begin, end) for value in lists]
            positional = 1 + len(args)
            function(*parts[:positional], **dict(zip(kwargs, parts[positional:], strict=True)))
            for value, part in zip(lists, parts, strict=True):
                if part is not value:
                    value[begin:end] = part  # an optimizer may have put a tensor there: its first momentum, say

    return InFrontOf.LIST_OPTIMIZERS.install(in_groups)


def _mixes(function: Callable[..., Any], lists: list[Any], named: Mapping[str, Any]) -> bool:
    """Tell whether one element of a list changes what becomes of the others: as ``update_order.independent.mixes``."""
    one_epsilon = function.__name__ == "_multi_tensor_adafactor" and named.get("eps1") is None
    if one_epsilon and len({parameter.dtype for parameter in lists[0]}) > 1:
        return True
    nesterov = function.__name__ == "_multi_tensor_sgd" and named.get("nesterov")
    if nesterov and named.get("weight_decay") == 0 and not named.get("maximize"):
        return True
    tensors = (tensor for value in lists if isinstance(value, list) for tensor in value)
    return any(isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided for tensor in tensors)


def _part(value: Any, length: int, begin: int, end: int) -> Any:
    return value[begin:end] if isinstance(value, list) and len(value) == length else value


def _groups(lists: list[Any], length: int, group_bytes: int) -> Iterator[tuple[int, int]]:
    begin = nbytes = 0
    for at in range(length):
        own = sum(
            value[at].nbytes
            for value in lists
            if isinstance(value, list) and len(value) == length and isinstance(value[at], torch.Tensor)
        )
        if at > begin and nbytes + own > group_bytes:
            yield begin, at
            begin, nbytes = at, 0
        nbytes += own
    if length:
        yield begin, length
