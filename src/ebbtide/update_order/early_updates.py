"""Updates of one optimizer in the backward pass: their conditions, and one update.

The optimizer's own ``step`` makes each update, on one parameter alone. So its mathematics are not copied. That gives
the bits of one step over all parameters only where these are independent of each other, as in the optimizers of
``INDEPENDENT`` (``test_in_backward.py`` tries each, for-loop, foreach and fused).
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.optim import Optimizer

import ebbtide._torch as _torch
from ebbtide.ir.run_report import KINDS
from ebbtide.update_order.gone_gradient import GoneGradient
from ebbtide.update_order.independent import is_in_a_mode, why_not_independent
from ebbtide.update_order.noted_update import (
    GIVEN,
    NO_STATE_YET,
    numbers,
    reason_to_stay,
    settings_of,
    stand_in,
    uncollected,
)

_GRADIENT = KINDS.index("gradient")


class EarlyUpdates:
    """The state of one optimizer. ``due`` are the parameters whose gradients became complete since its last step. Where
    updates are ``early``, they have been updated already. Where the optimizer is only watched, they wait for ``step``.
    ``reached`` gets ``number`` when somebody is about to use what is guarded from then on: these parameters, their
    state, and while the optimizer is watched their gradients.
    """

    def __init__(
        self, optimizer: Optimizer, gone: Callable[[], None], reached: Callable[[int], BaseException | None]
    ) -> None:
        self._reference = weakref.ref(optimizer, lambda _: gone())
        self._reached = reached
        self.number = next(numbers)
        self.name = type(optimizer).__name__
        self.left = False  # True: its updates stay as they are written, and nothing is watched
        self.early = False
        self.stepping_on: int | None = None  # a thread: the script's step began there, and has not ended, or raised
        self.watched_steps = 0
        self.due: dict[int, torch.Tensor] = {}
        self._completed: dict[int, object] = {}  # by parameter: its gradient's memory and version
        self._held: set[int] = set()  # parameters that had a gradient before the backward pass
        self._groups: dict[int, dict[str, Any]] = {}  # by parameter: its group's settings as the pass began
        self._hooks: dict[int, Any] = {}  # by parameter: PyTorch's table of those for its complete gradient
        self._settings: list[Mapping[str, object]] = []
        self._states: dict[int, object] = {}  # by parameter: its state after an early update, else before step
        self._stand_ins: dict[int, torch.Tensor] = {}  # by parameter: what stands for its gradient
        self._stayed: set[int] = set()  # parameters whose gradients wait for ``step``, and may change until then
        self._returning: list[torch.Tensor] = []

    @property
    def optimizer(self) -> Optimizer | None:
        return self._reference()

    def parameters(self) -> Iterator[torch.Tensor]:
        if (optimizer := self.optimizer) is not None:
            for group in optimizer.param_groups:
                yield from group["params"]

    def state(self) -> Iterator[torch.Tensor]:
        if (optimizer := self.optimizer) is not None:
            states: object = optimizer.state  # an optimizer of the script's own may keep anything there
            for state in states.values() if isinstance(states, dict) else ():
                if isinstance(state, dict):
                    yield from (value for value in state.values() if isinstance(value, torch.Tensor))

    def has(self, parameter: torch.Tensor) -> bool:
        """Tell whether it was the optimizer's when the backward pass began."""
        return id(parameter) in self._groups

    def attach(self, hook: Callable[[torch.Tensor], None]) -> None:
        """Have ``hook`` called for complete gradients. Parameters may be added and thawed at any time.

        PyTorch would number it, as it numbers all hooks, and a pickled net has the numbers of its own."""
        for parameter in self.parameters():
            if parameter.requires_grad and id(parameter) not in self._hooks:
                of_gradient: Any = parameter
                if of_gradient._post_accumulate_grad_hooks is None:
                    of_gradient._post_accumulate_grad_hooks = OrderedDict()
                table = self._hooks[id(parameter)] = of_gradient._post_accumulate_grad_hooks
                table[self] = hook

    def detach(self) -> None:
        for table in self._hooks.values():
            table.pop(self, None)
        self._hooks.clear()

    def begin(self) -> None:
        """Prepare for a backward pass."""
        optimizer = self.optimizer
        if optimizer is None:
            return
        self._held = {id(parameter) for parameter in self.parameters() if parameter.grad is not None}
        if not self.due:
            self._settings, self._groups = _settings(optimizer), {}
        for group in optimizer.param_groups:  # the script's step would not see what a hook changes for a while
            settings = settings_of(optimizer, group)
            for parameter in group["params"]:
                self._groups.setdefault(id(parameter), settings)

    def may_begin(self, all_have_stepped: bool) -> bool:
        """Tell if the first update may be early: a step was watched, and what it left behind is gone. Before all other
        optimizers have stepped, this pass may be another one's, as in a GAN: then a second step is watched."""
        return self.watched_steps > (0 if all_have_stepped else 1) and not self.due and not self._held

    # ---- what forbids it, in words, or "" -------------------------------------------------------------------------

    def forbidden(self) -> str:
        """Say what forbids early updates, as far as it can be seen at any time between steps."""
        optimizer = self.optimizer
        if optimizer is None:
            return ""
        if reason := why_not_independent(optimizer):
            return reason
        if distributed.is_available() and distributed.is_initialized():
            return "processes exchange gradients after they are complete"
        for parameter in self.parameters():
            hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
            if len(hooks) > (id(parameter) in self._hooks):
                return "a hook of the script's waits for its gradients"
        return ""

    def changes_gradients(self) -> str:
        """Say what the optimizer, set as it is before a pass, does to gradients that may lie in memory of others."""
        scale = getattr(self.optimizer, "grad_scale", None)
        return "its grad_scale is set, and step divides gradients by it in place" if scale is not None else ""

    def completed(self, parameter: torch.Tensor) -> str:
        """Say why the parameter's complete gradient may not be used at once."""
        if id(parameter) in self.due or id(parameter) in self._held:
            return "gradients are added up over several backward passes, or kept (zero_grad(set_to_none=False))"
        return ""

    def stays(self, parameter: torch.Tensor) -> bool:
        """Tell, and note, whether the script's ``step`` makes this update: it is none that could be made at another
        time."""
        optimizer = self.optimizer
        if optimizer is None or is_in_a_mode() or parameter.grad is None:
            stays = True
        else:
            reason = reason_to_stay(optimizer, self._groups[id(parameter)], parameter)
            stays = reason != "" and (self.early or reason != NO_STATE_YET)
        if stays:
            self._stayed.add(id(parameter))
        return stays

    def changed_settings(self) -> str:
        """Name an optimizer's setting that changed since the backward pass began, or ""."""
        optimizer = self.optimizer
        now = [] if optimizer is None else _settings(optimizer)
        if len(now) != len(self._settings):
            return "a group of parameters"
        for before, after in zip(self._settings, now, strict=True):
            for name in sorted(before.keys() | after.keys()):
                if before.get(name) is not after.get(name) and before.get(name) != after.get(name):
                    return {"params": "the parameters of a group", "": "its state"}.get(name, name)
        return "its state" if any(self._states[key] != self._state_of(self.due[key]) for key in self.due) else ""

    def changed_gradient(self) -> bool:
        """Tell whether a gradient changed since it was complete, or came from elsewhere."""
        if self.early:
            return any(parameter.grad is not self._stand_ins.get(key) for key, parameter in self.due.items())
        for parameter in self.parameters():
            noted, gradient = self._completed.get(id(parameter)), parameter.grad
            if noted is None and gradient is not None and id(parameter) not in self._stayed:
                return True
            if noted is not None and (gradient is None or noted != _identity(gradient)):
                return True
        return False

    # ---- between a complete gradient and the script's step --------------------------------------------------------

    def watch(self, parameter: torch.Tensor) -> None:
        """Note a complete gradient, which stays for ``step``."""
        assert parameter.grad is not None
        self._completed[id(parameter)] = _identity(parameter.grad)
        self.due[id(parameter)] = parameter
        self._guard(self._used_with(parameter))
        if _has_its_own_memory(parameter.grad):
            self._guard([parameter.grad])
        self._states[id(parameter)] = self._state_of(parameter)

    def watch_gradients(self) -> None:
        """Guard them all from the end of the backward pass on: until then others may share memory with them."""
        self._guard([parameter.grad for parameter in self.due.values() if parameter.grad is not None])

    def update(self, parameter: torch.Tensor) -> None:
        """Make the optimizer's step of one parameter, and free its gradient. Both are left to ``step`` where the memory
        cannot be guarded, or another thread may use it now."""
        optimizer = self.optimizer
        assert optimizer is not None
        assert parameter.grad is not None
        self.due[id(parameter)] = parameter  # from here on, even if the update fails
        if not self._guard(self._used_with(parameter), alone=True):
            del self.due[id(parameter)]
            self._stayed.add(id(parameter))
            return
        _torch.classify([parameter.grad], _GRADIENT)
        attributes = {name: value for name, value in vars(optimizer).items() if name not in GIVEN}
        groups = [{**self._groups[id(parameter)], "params": [parameter]}]
        one = stand_in(type(optimizer), attributes, groups, optimizer.state)
        step: Any = type(optimizer).step
        with _outside_autocast(), uncollected():
            _torch.make_early(lambda: step.__wrapped__(one))  # below the hooks of the script's own step
        parameter.grad = self._stand_ins[id(parameter)] = GoneGradient.of(parameter)
        self._states[id(parameter)] = self._state_of(parameter)

    def stale(self) -> bool:
        """Tell whether the script's step would take gradients for new that an update has used already."""
        waiting = (parameter for parameter in self.parameters() if id(parameter) not in self.due)
        with torch._C.DisableTorchFunction():
            return bool(self._returning) or any(isinstance(parameter.grad, GoneGradient) for parameter in waiting)

    def stepping(self) -> None:
        """Begin the script's step: it finds only gradients of parameters that have not been updated."""
        if self.early:
            self._returning = list(self.due.values())
            for parameter in self._returning:
                parameter.grad = None
            torch._C._increment_version(self._returning)  # as the script's step would
        else:
            self.release()
        self.stepping_on = threading.get_ident()
        self._stayed.clear()
        self._states.clear()
        self._completed.clear()

    def release(self) -> None:
        """Forget what is due. Anybody may use it."""
        self.due.clear()
        self._stand_ins.clear()
        _torch.carried_out(self.number)

    def stepped(self) -> None:
        """End the script's step, which has made the updates that were left to it."""
        self.stepping_on = None
        self.release()
        for parameter in self._returning:
            if parameter.grad is None:
                parameter.grad = GoneGradient.of(parameter)
        self._returning = []

    def _state_of(self, parameter: torch.Tensor) -> object:
        state = self.optimizer.state.get(parameter) if self.optimizer is not None else None
        return state and (id(state), {name: _constant(value) for name, value in state.items()})

    def _used_with(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        """Return the parameter and its state."""
        state = self.optimizer.state.get(parameter, {}) if self.optimizer is not None else {}
        return [parameter, *(value for value in state.values() if isinstance(value, torch.Tensor))]

    def _guard(self, tensors: list[torch.Tensor], alone: bool = False) -> bool:
        return not tensors or _torch.guard(self.number, tensors, self._reached, alone)


@contextmanager
def _outside_autocast() -> Iterator[None]:
    """Switch autocast off, as in the script's step, which was seen. A backward pass may run inside autocast."""
    if not torch.is_autocast_enabled("cpu"):
        yield
        return
    torch.set_autocast_enabled("cpu", False)  # the context manager would clear the script's cache of casts as it ends
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", True)


def _settings(optimizer: Optimizer) -> list[Mapping[str, object]]:
    """List the settings by group, and last the attributes that ``step`` reads, with its state's holder. They are
    compared, not read."""
    groups: list[Mapping[str, object]] = [
        {name: [*map(id, value)] if name == "params" else _setting(value) for name, value in group.items()}
        for group in optimizer.param_groups
    ]
    scales = {name: _setting(vars(optimizer)[name]) for name in ("found_inf", "grad_scale") if name in vars(optimizer)}
    return [*groups, {**scales, "": id(optimizer.state)}]


def _constant(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return id(value), None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [*map(_constant, value)] if isinstance(value, list | tuple) else value


def _setting(value: object) -> object:
    """Note a value with the number in it, since ``lr.data`` can change unseen. Not a number equals itself there."""
    parts = value if isinstance(value, list | tuple) else [value]
    tensors = (part for part in parts if isinstance(part, torch.Tensor) and not part.is_meta)
    numbers = [repr(part.item()) for part in tensors if part.numel() == 1]
    return _constant(value), numbers


def _identity(gradient: torch.Tensor) -> object:
    return _torch.memory_of([gradient]), gradient._version


def _has_its_own_memory(gradient: torch.Tensor) -> bool:
    ((_, nbytes),) = _torch.memory_of([gradient])
    return nbytes == gradient.numel() * gradient.element_size()
