"""The optimizer's hooks: where steps end, and which storages are parameters, gradients and optimizer state.

Hooks are global (``torch.optim.optimizer``), so every optimizer is seen, also one built before the session. A step
ends where an outermost ``optimizer.step`` ends.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ebbtide import _torch
from ebbtide.report.run_report import KINDS
from ebbtide.runtime.outermost import is_outermost

_PARAMETER = KINDS.index("parameter")
_GRADIENT = KINDS.index("gradient")
_OPTIMIZER_STATE = KINDS.index("optimizer_state")


class OptimizerHooks:
    """Tells a session about optimizers and classifies what they hold.

    ``on_built`` is called when an optimizer took parameters, before they are classified, ``on_begin`` after that and
    when an optimizer starts to step, ``on_end`` when an outermost step ended. All run on the optimizer's thread.
    ``native`` is told of kinds and of where optimizers run, or what stands in for it.
    """

    def __init__(
        self,
        on_built: Callable[[], None],
        on_begin: Callable[[], None],
        on_end: Callable[[], None],
        native: Any = _torch,
    ) -> None:
        self._native = native
        self._on_built = on_built
        self._on_begin = on_begin
        self._on_end = on_end
        self._handles: list[RemovableHandle] = []
        self._original: Callable[..., None] = Optimizer.add_param_group
        self._wrapper: Callable[..., None] | None = None

    def install(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        original = self._original

        @functools.wraps(original)
        def add_param_group(optimizer: Optimizer, param_group: dict[str, Any]) -> None:
            original(optimizer, param_group)
            if self._handles:
                self._on_built()
                self._classify(_parameters(optimizer), _PARAMETER)
                self._on_begin()  # last, so that what parameters moved before is not taken for this step's

        self._wrapper = add_param_group
        Optimizer.add_param_group = add_param_group  # type: ignore[method-assign,assignment]

    def remove(self) -> None:
        """A wrapper that someone else wrapped stays where it is, and does nothing any more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if Optimizer.add_param_group is self._wrapper:
            Optimizer.add_param_group = self._original  # type: ignore[method-assign]

    def _before_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self._on_begin()
        parameters = list(_parameters(optimizer))
        self._classify(parameters, _PARAMETER)
        self._classify((parameter.grad for parameter in parameters if parameter.grad is not None), _GRADIENT)
        self._native.enter_optimizer(True)

    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self._classify(_tensors_in(optimizer.state), _OPTIMIZER_STATE)
        if is_outermost(sys._getframe(1)):
            self._native.enter_optimizer(False)
            self._on_end()

    def _classify(self, tensors: Iterable[torch.Tensor], kind: int) -> None:
        """Looks at hundreds of tensors in microseconds, so nothing is remembered that could grow stale."""
        self._native.classify([tensor for tensor in tensors if tensor.layout is torch.strided], kind)


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors in an optimizer's state; its keys are parameters, and no part of it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)
