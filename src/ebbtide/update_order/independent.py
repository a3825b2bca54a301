"""Facts about optimizers, modes, and memory that parameters share, for other orders of updates than the script's."""

import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import optim
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._device import DeviceContext

import ebbtide._torch as _torch
from ebbtide.in_front import is_ours

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

_KEPT = (int, float, complex, str, torch.Tensor, np.ndarray, np.generic)
"""Kinds of settings: none of them can change, or they can be copied."""

IN_A_MODE = "step is called within a mode of PyTorch's (a dispatch or function mode, torch.func, tracing)"


def overlap(parameters: Iterable[torch.Tensor]) -> set[int]:
    """Return the ids of parameters whose elements lie where another one's do (``.data`` can make that so)."""
    found = set()
    there = {id(parameter): parameter for parameter in parameters if parameter.numel()}
    memory = _torch.memory_of([*there.values()])
    places = sorted(
        (storage, *_extent(parameter), key)
        for (storage, _), (key, parameter) in zip(memory, there.items(), strict=True)
    )
    end = (0, 0)  # storage, and one past the last element so far
    last = 0
    for storage, begin, stop, key in places:
        if storage and storage == end[0] and begin < end[1]:
            found |= {key, last}
        if (storage, stop) > end:
            end, last = (storage, stop), key
    return found


def share_memory(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether two of these tensors lie in one storage."""
    places = [begin for begin, _ in _torch.memory_of([*tensors]) if begin]
    return len({*places}) < len(places)


def share_what_changes(optimizer: Optimizer) -> bool:
    """Tell whether state, gradients or settings of a step lie in what the update of another parameter changes."""
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    states = [value for state in optimizer.state.values() if isinstance(state, dict) for value in state.values()]
    settings = (value for group in groups for name, value in group.items() if name != "params")
    read = [*(parameter.grad for parameter in parameters), *settings]
    own, of_state, of_others = map(_places, (parameters, states, read))
    changing = {*own, *of_state}
    return len(changing) < len({*own}) + len(of_state) or not changing.isdisjoint(of_others)


def _places(values: Iterable[object]) -> list[int]:
    """Return where the storages of the tensors among these values begin."""
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.layout is torch.strided]
    return [begin for begin, _ in _torch.memory_of(tensors) if begin]


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the places in its storage of the tensor's first element, and of the one after its last."""
    begin = int(tensor.storage_offset())
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + steps + 1


def why_not_independent(optimizer: Optimizer) -> str:
    """Say why another order of its updates may change results, or ""."""
    if type(optimizer) not in INDEPENDENT or not getattr(type(optimizer).step, "hooked", False):
        return "only optimizers of torch.optim that treat each parameter on its own can"
    if not _computes_as_in_torch(optimizer):
        return "its step, or a function that its step calls, is not PyTorch's own"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks or _hooks_of_others():
        return "a hook of its step may change gradients, or look at what step was called with"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "its step is differentiable"
    return _may_change_unseen(optimizer) or mixes(optimizer)


def mixes(optimizer: Optimizer) -> str:
    """Say what one of ``INDEPENDENT`` takes from other parameters of a group, or ""."""
    for group in optimizer.param_groups:
        parameters = [parameter for parameter in group["params"] if parameter.requires_grad]
        one_epsilon = type(optimizer) is optim.Adafactor and group["eps"][0] is None
        if one_epsilon and len({parameter.dtype for parameter in parameters}) > 1:
            return "Adafactor takes epsilon from a group's first parameter, and the parameters have several types"
        gradients = (parameter.grad for parameter in parameters)
        if group.get("foreach") and any(grad is not None and grad.layout is not torch.strided for grad in gradients):
            return "with foreach, a sparse gradient changes how the other parameters of its group are updated"
    return ""


def _may_change_unseen(optimizer: Optimizer) -> str:
    """Name a setting that is an object of the script's own, whose number nobody can keep; else ""."""
    for group in optimizer.param_groups:
        for name in optimizer.defaults.keys() & group.keys():
            value = group[name]
            parts = value if type(value) in (list, tuple) else [value]
            if not all(part is None or isinstance(part, _KEPT) for part in parts):
                return f"its setting {name} is a {type(value).__name__}, whose value may change unseen"
    return ""


def _computes_as_in_torch(optimizer: Optimizer) -> bool:
    """Tell whether nobody has replaced what an optimizer of torch.optim computes with."""
    kind: Any = type(optimizer)
    functions = getattr(inspect.unwrap(kind.step), "__globals__", {})
    name = str(functions.get("__name__")).rpartition(".")[2].removeprefix("_")
    names = (name, *(f"_{how}_{name}" for how in ("single_tensor", "multi_tensor", "fused")))
    computing = (kind.step, getattr(kind, "_init_group", None), *map(functions.get, names))
    replaced = "_init_group" in vars(optimizer)
    return not replaced and all(function is None or _is_torchs_own(function) for function in computing)


def _is_torchs_own(function: Any) -> bool:
    """Tell whether a function and all that it wraps are PyTorch's, below wrappers of ``in_front``."""
    defined_in = getattr(function, "__globals__", {}).get("__name__", "")
    if not is_ours(function) and not defined_in.startswith("torch."):
        return False
    return _is_torchs_own(function.__wrapped__) if hasattr(function, "__wrapped__") else True


def _hooks_of_others() -> bool:
    """Tell whether every optimizer's step has hooks that are not Ebbtide's."""
    hooks = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    return not all(str(getattr(hook, "__module__", "")).startswith("ebbtide.") for hook in hooks)


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
