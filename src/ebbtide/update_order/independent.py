"""Facts about optimizers, modes, and memory that parameters share, for other orders of updates than the script's."""

import inspect
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import optim
from torch.optim import Optimizer
from torch.utils._device import DeviceContext

import ebbtide._torch as _torch
from ebbtide.capture.optimizer_events import hears_of_steps, is_torchs_own

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
"""They update each parameter from its own gradient and state alone, so the order of updates changes no bit.
``mixes`` has the exceptions."""

_CONSTANT = (int, float, bool, complex, str, type(None))
"""Kinds of settings that cannot change. A class of the script's own may compute otherwise, so it is none of them."""

IN_A_MODE = "step is called within a mode of PyTorch's (a dispatch or function mode, torch.func, tracing)"


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether it is of PyTorch's own two types, and its elements are numbers in a storage. None else is asked."""
    of_torch = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return of_torch and tensor.layout is torch.strided and not tensor.is_nested


def overlap(parameters: Iterable[torch.Tensor]) -> set[int]:
    """Return the ids of parameters whose elements lie where another one's do (``.data`` can make that so)."""
    found = set()
    there = {id(parameter): parameter for parameter in parameters if is_plain(parameter) and parameter.numel()}
    memory = _torch.memory_of([*there.values()])
    places = sorted(
        (*_extent(storage, parameter), key)
        for (storage, _), (key, parameter) in zip(memory, there.items(), strict=True)
        if storage
    )
    reached = last = 0  # one past the last byte so far, and whose that is
    for begin, end, key in places:
        if begin < reached:
            found |= {key, last}
        if end > reached:
            reached, last = end, key
    return found


def share_memory(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether the storages of two of these tensors have memory in common."""
    return _meet(_storages(tensors))


def share_what_changes(optimizer: Optimizer) -> bool:
    """Tell whether state, gradients or settings of a step lie in what the update of another parameter changes."""
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    states = [value for state in optimizer.state.values() for value in state.values()]
    settings = (value for group in groups for name, value in group.items() if name != "params")
    read = {*_storages([*(parameter.grad for parameter in parameters), *settings])}
    changing = [*{*_storages(parameters)}, *_storages(states)]
    return _meet(changing) or _meet([*changing, *_joined(read)])


def _storages(values: Iterable[object]) -> list[tuple[int, int]]:
    """Return begin and end of the storages of the tensors among these values."""
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.layout is torch.strided]
    return [(begin, begin + nbytes) for begin, nbytes in _torch.memory_of(tensors) if begin]


def _meet(ranges: Iterable[tuple[int, int]]) -> bool:
    """Tell whether two of these ranges have something in common."""
    return any(begin < end for (_, end), (begin, _) in pairwise(sorted(ranges)))


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same memory as ranges that do not meet."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _extent(storage: int, tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of the tensor's first element, and of what follows its last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = storage + int(tensor.storage_offset()) * tensor.element_size()
    return begin, begin + (steps + 1) * tensor.element_size()


def why_not_independent(optimizer: Optimizer) -> str:
    """Say why another order of its updates may change results, or ""."""
    if type(optimizer) not in INDEPENDENT or not getattr(type(optimizer).step, "hooked", False):
        return "only optimizers of torch.optim that treat each parameter on its own can"
    if not _computes_as_in_torch(optimizer):
        return "its step, or a function that its step calls, is not PyTorch's own"
    if hears_of_steps(optimizer):
        return "a hook of its step may change gradients, or look at what step was called with"
    if not _is_made_of_dicts(optimizer):
        return "its groups, or its state, are of a class of the script's own"
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            return "its step is differentiable"
        for parameter in group["params"]:
            if not is_plain(parameter):
                return f"a parameter is a {type(parameter).__name__}, which may not be one plain storage"
    return _may_change_unseen(optimizer) or mixes(optimizer)


def mixes(optimizer: Optimizer) -> str:
    """Say what one of ``INDEPENDENT`` takes from other parameters of a group, or ""."""
    for group in optimizer.param_groups:
        parameters = [each for each in group["params"] if each.requires_grad or each.grad is not None]
        one_epsilon = type(optimizer) is optim.Adafactor and group["eps"][0] is None
        if one_epsilon and len({parameter.dtype for parameter in parameters}) > 1:
            return "Adafactor takes epsilon from a group's first parameter, and the parameters have several types"
        gradients = (parameter.grad for parameter in parameters)
        nesterov = group.get("foreach") and group.get("nesterov")
        if nesterov and type(optimizer) is optim.SGD and group["weight_decay"] == 0 and not group["maximize"]:
            return "with foreach and nesterov, SGD changes gradients, which may lie in memory of others"
        if group.get("foreach") and any(grad is not None and grad.layout is not torch.strided for grad in gradients):
            return "with foreach, a sparse gradient changes how the other parameters of its group are updated"
    return ""


def _may_change_unseen(optimizer: Optimizer) -> str:
    """Name a setting that is an object of the script's own, whose number nobody can keep; else ""."""
    for group in optimizer.param_groups:
        for name in optimizer.defaults.keys() & group.keys():
            value = group[name]
            parts = value if type(value) in (list, tuple) else [value]
            if not all(map(_can_be_kept, parts)):
                return f"its setting {name} is a {type(value).__name__}, whose value may change unseen"
    return ""


def _can_be_kept(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return is_plain(value) and not (value.is_inference() or value.is_meta or value.requires_grad)
    if type(value) is np.ndarray:
        return bool(value.dtype != object)
    return type(value) in _CONSTANT or (isinstance(value, np.generic) and type(value).__module__ == "numpy")


def _is_made_of_dicts(optimizer: Optimizer) -> bool:
    groups, state = optimizer.param_groups, optimizer.state
    parts = [*groups, *state.values()]
    return type(groups) is list and type(state) in (dict, defaultdict) and all(type(part) is dict for part in parts)


def _computes_as_in_torch(optimizer: Optimizer) -> bool:
    """Tell whether nobody has replaced what an optimizer of torch.optim computes with."""
    kind: Any = type(optimizer)
    functions = getattr(inspect.unwrap(kind.step), "__globals__", {})
    name = str(functions.get("__name__")).rpartition(".")[2].removeprefix("_")
    names = (name, *(f"_{how}_{name}" for how in ("single_tensor", "multi_tensor", "fused")))
    computing = (kind.step, getattr(kind, "_init_group", None), *map(functions.get, names))
    replaced = "_init_group" in vars(optimizer)
    return not replaced and all(function is None or is_torchs_own(function) for function in computing)


def is_in_a_mode() -> bool:
    """Tell whether a mode is on that sees or changes calls. A default device's creates tensors and changes none."""
    c: Any = torch._C
    functions = (c._get_function_stack_at(place) for place in range(c._len_torch_function_stack()))
    return bool(
        c._len_torch_dispatch_stack()
        or c._functorch.peek_interpreter_stack() is not None
        or c._is_tracing()
        or any(not isinstance(mode, DeviceContext) for mode in functions)
    )
