"""Tells which operators make the same bits when they run again: their result depends on their inputs alone.

The table is native (``native/torch/repeatable.cpp``), since the runtime asks it too. ``test_repeatable.py`` tries it.
"""

import functools

import ebbtide._torch as _torch


def repeats(operator: str, overload: str) -> bool:
    """Tell it of an overload, such as ("aten::mul", "Tensor"). The default overload is ""."""
    return (f"{operator}.{overload}" if overload else operator) in _names()


@functools.cache
def _names() -> frozenset[str]:
    made, changed = _torch.repeatable_operators()
    return frozenset((*made, *changed))
