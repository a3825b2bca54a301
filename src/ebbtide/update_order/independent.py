"""What the orders of updates other than the script's know of optimizers, and of memory that parameters share."""

from collections.abc import Iterable

import torch
from torch import optim
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

INDEPENDENT = (
    optim.ASGD,
    optim.Adadelta,
    optim.Adafactor,
    optim.Adagrad,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.Muon,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Rprop,
    optim.SGD,
)
"""Each of their parameters is updated from its own gradient and state alone, so the order of updates changes no bit."""


def overlap(parameters: Iterable[torch.Tensor]) -> set[int]:
    """Those, by id, of which elements lie where another one has elements too (as ``.data`` can make it)."""
    found = set()
    places = sorted(
        (storage_of(parameter), *_extent(parameter), key)
        for key, parameter in {id(parameter): parameter for parameter in parameters}.items()
        if parameter.numel()
    )
    end = (0, 0)  # storage, and one past the last element so far
    last = 0
    for storage, begin, stop, key in places:
        if storage and storage == end[0] and begin < end[1]:
            found |= {key, last}
        if (storage, stop) > end:
            end, last = (storage, stop), key
    return found


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """In its storage, its first element and one past its last."""
    begin = int(tensor.storage_offset())
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + steps + 1


def storage_of(tensor: torch.Tensor) -> int:
    """0 for what has none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return 0


def hooks_of_others() -> bool:
    """Whether hooks of every optimizer's step are there that are not Ebbtide's."""
    hooks = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    return not all(str(getattr(hook, "__module__", "")).startswith("ebbtide.") for hook in hooks)
