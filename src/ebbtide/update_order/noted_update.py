"""One parameter's update, as ``optimizer.step()`` found it: carried out later, it gives the same bits.

The optimizer's own ``step`` makes it, called on a stand-in whose groups hold this parameter alone. So its mathematics
are not copied. It works on aliases of the parameter, of its gradient and of its state. So it changes nothing if the
script takes the gradient away, or gives the parameter other memory or the optimizer another state. The aliases have
version counters of their own. So autograd finds no change where the script made none.
"""

import gc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import optim
from torch.optim import Optimizer

import ebbtide._torch as _torch
from ebbtide.errors import OrderError

numbers = itertools.count()  # for updates, and for optimizers whose updates are early: unique in the process
GIVEN = ("param_groups", "state")
"""The attributes of an optimizer that its stand-in gets from elsewhere."""
_COMPILING = ("_is_compiling_flag", "_is_exporting_flag", "_is_non_strict_tracing_flag")
"""Flags of ``torch.compiler`` for the whole process."""
NO_STATE_YET = "its state is born in this step"


def stand_in(kind: type[Optimizer], attributes: Mapping[str, Any], groups: Sequence[Any], state: Any) -> Optimizer:
    """Make an optimizer with these attributes, groups and state: its ``step`` sees no others."""
    optimizer = object.__new__(kind)
    vars(optimizer).update(attributes, param_groups=groups, state=state)
    return optimizer


def kept(value: Any) -> Any:
    """Copy a setting as it is now: a tensor or an array can be changed in place."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(map(kept, value))
    return copy(value) if isinstance(value, np.ndarray) else value


def settings_of(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    """Note a group's settings as they are now. What else the script keeps there, no step of torch.optim reads."""
    return {
        name: kept(value) if name in optimizer.defaults else value for name, value in group.items() if name != "params"
    }


def reason_to_stay(optimizer: Optimizer, group: Mapping[str, Any], parameter: torch.Tensor) -> str:
    """Say why this parameter's update is made in ``step`` itself, or ""."""
    gradient = parameter.grad
    assert gradient is not None
    if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided or gradient.requires_grad:
        return "gradients are sparse, no plain tensors, or have gradients (create_graph)"
    if parameter.is_inference() or gradient.is_inference() or gradient.dtype != parameter.dtype:
        return "gradients have another type than their parameters, or are inference tensors"
    if not _torch.is_managed(parameter):
        return "parameters are too small to be moved"
    state = optimizer.state.get(parameter) or {}
    known = [value for value in state.values() if isinstance(value, torch.Tensor) and value.layout is torch.strided]
    if len(known) < len(state):
        return "its state is not all plain tensors"
    if not all(_torch.is_unshared(tensor) for tensor in (parameter, gradient, *known)):
        return "NumPy, DLPack or other processes share parameters, gradients or state"
    if not state and not (type(optimizer) is optim.SGD and not group["momentum"]):
        return NO_STATE_YET
    return ""


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector out of an update. What it finds may have a ``__del__`` of the script's, which would see some
    parameters after a step and others before it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Somebody may look while torch.export or Dynamo work. Optimizers compute with tensors in place of numbers then."""
    flags = {name: vars(torch.compiler)[name] for name in _COMPILING if name in vars(torch.compiler)}
    vars(torch.compiler).update(dict.fromkeys(flags, False))
    try:
        yield
    finally:
        vars(torch.compiler).update(flags)


class NotedUpdate:
    """The values that ``step`` would have read. ``attributes`` are the optimizer's and ``settings`` the group's."""

    def __init__(
        self, optimizer: Optimizer, attributes: Mapping[str, Any], settings: Mapping[str, Any], parameter: torch.Tensor
    ) -> None:
        assert parameter.grad is not None
        self._kind = type(optimizer)
        self._attributes = attributes
        self._settings = settings
        self._parameter = parameter.data
        self._parameter.grad = parameter.grad.data
        self._of_script: dict[str, Any] = optimizer.state.get(parameter) or {}
        self._before = dict(self._of_script)
        self._counted = [parameter.detach(), parameter.grad.detach()]  # they share version counters with the script's
        self._noted: object = None
        self.withdrawn = ""  # the reason why it is not to be made

    @property
    def name(self) -> str:
        return f"{self._kind.__name__}'s update of a parameter of shape {tuple(self._parameter.shape)}"

    def defer(self, number: int) -> bool:
        """Defer it. Callers MUST have counted the changes of parameter and state already (``increment_version``)."""
        self.look_again()
        gradient = self._parameter.grad
        assert gradient is not None
        return _torch.defer(number, [self._parameter, *self.state_tensors()], gradient)

    def look_again(self) -> None:
        """Take what the operands are now for what ``step`` found."""
        self._noted = self._as_it_is()

    def carry_out(self) -> None:
        """Make the update. Raises OrderError where its operands were changed and nobody was told."""
        if self.withdrawn:
            raise OrderError(self.withdrawn, deferred=True)
        if self._as_it_is() != self._noted:
            raise OrderError(f"{self.name} finds memory that was changed without PyTorch's knowledge", deferred=True)
        before = {name: value.data if torch.is_tensor(value) else value for name, value in self._before.items()}
        state = dict(before)
        groups = [{**self._settings, "params": [self._parameter]}]
        step: Any = self._kind.step
        with _uncompiled():
            step.__wrapped__(stand_in(self._kind, self._attributes, groups, {self._parameter: state}))
        for name, value in state.items():
            if value is not before.get(name) and self._of_script.get(name) is self._before.get(name):
                self._of_script[name] = value

    def state_tensors(self) -> list[torch.Tensor]:
        return [value for value in self._before.values() if isinstance(value, torch.Tensor)]

    def _as_it_is(self) -> object:
        tensors = [*self._counted, *self.state_tensors()]
        versions = [0 if tensor.is_inference() else tensor._version for tensor in tensors]
        return _torch.memory_of(tensors), versions
