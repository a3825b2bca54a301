"""Deferred updates: ``optimizer.step()`` takes note, and each parameter is updated before anybody looks at it.

Parameters, gradients and optimizer state are then used just before the parameter's next use, mostly in the next
forward pass, and their traffic overlaps with computing. ``step`` itself updates what is too small to be moved. Native
code looks at every operator's arguments (``native/torch/deferred.cpp``), ``doors`` at whatever needs no operator;
whoever is about to use a parameter, its gradient or its state has the update carried out first, so nothing can be seen
that the script's own order would not show. All that is left goes at the beginning of a backward pass, at the
optimizer's next step, before a fork, and at the session's end.

Left out: what ``doors`` leaves out, and a parameter's version counter, which grows by one in ``step``.
"""

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._device import DeviceContext

import ebbtide._torch as _torch
from ebbtide.capture.gone_gradient import script_line
from ebbtide.capture.iterations import is_compiled, steps_on_stack, uncompiled
from ebbtide.errors import OrderError
from ebbtide.ir.run_report import LEFT
from ebbtide.runtime import doors
from ebbtide.runtime.independent import INDEPENDENT, pre_hooks_of_others
from ebbtide.runtime.noted_update import NO_STATE_YET, NotedUpdate, kept, reason_to_stay, stand_in

_autograd: Any = torch.autograd


class Deferred:
    """Of one session. ``say`` and ``warn`` are told what becomes of each optimizer; ``told`` keeps it. ``unlike`` is
    called in a step that begins or ends with deferred updates, and not both: it is not like those that follow."""

    def __init__(self, say: Callable[[str], None], warn: Callable[[str], None], unlike: Callable[[], None]) -> None:
        self._say = say
        self._warn = warn
        self._unlike = unlike
        self.told: list[str] = []
        self._noted: dict[int, NotedUpdate] = {}  # by number
        self._last: dict[int, dict[int, int]] = {}  # by optimizer: of its last step, numbers by parameter
        self._one_at_a_time = threading.Lock()
        self._compiled_before = doors.compiled_calls()
        self._broken = ""  # an update that failed
        self._handle: Any = None
        self._run_backward: Any = None
        self._process = os.getpid()

    def install(self) -> None:
        """Before other hooks of optimizers, which then see a step without what this leaves in it."""
        doors.guard()
        _torch.set_updater(self._update)
        self._handle = register_optimizer_step_pre_hook(uncompiled(self._before_step))
        self._run_backward = run_backward = _autograd._engine_run_backward

        def engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            if self._run_backward is not None and os.getpid() == self._process:
                _torch.carry_out_all()
                self._check()
            return run_backward(*args, **kwargs)

        _autograd._engine_run_backward = engine_run_backward

    def remove(self) -> None:
        """Raises OrderError where an update cannot be carried out."""
        self._handle.remove()
        _autograd._engine_run_backward, self._run_backward = self._run_backward, None
        try:
            _torch.carry_out_all()
        finally:
            _torch.set_updater(None)
            for number in self._noted:  # an error has come between
                _torch.carried_out(number)

    # ---- the script's step ----------------------------------------------------------------------------------------

    def _before_step(
        self, optimizer: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]] | None:
        """What ``step`` is called with in place of the optimizer: a stand-in that has the rest of its parameters."""
        if os.getpid() != self._process:
            return None
        self._check()
        doors.guard()
        last = self._last.pop(id(optimizer), {})
        _torch.carry_out(list(last.values()))
        reason = self._refusal(optimizer, args, kwargs)
        deferred: dict[int, int] = {}
        rest = optimizer
        if not reason:
            deferred, rest, reason = self._defer(optimizer)
        if deferred:
            self._tell(f"{type(optimizer).__name__}: each parameter is updated before its next use", self._say)
            self._last[id(optimizer)] = deferred
        elif reason not in ("", NO_STATE_YET):
            self._tell(f"{type(optimizer).__name__} {LEFT}: {reason}", self._warn)
        if bool(deferred) != bool(last):
            self._unlike()
        return ((rest, *args[1:]), kwargs) if deferred else None

    def _refusal(self, optimizer: Optimizer, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """Why this step is made as the script has it, or ""."""
        if type(optimizer) not in INDEPENDENT or not getattr(type(optimizer).step, "hooked", False):
            return "only optimizers of torch.optim that treat each parameter on its own can"
        if any(argument is not None for argument in (*args[1:], *kwargs.values())):
            return "step is called with a closure"
        if optimizer._optimizer_step_pre_hooks or pre_hooks_of_others():
            return "a hook may change gradients when step has begun"
        if any(group.get("differentiable") for group in optimizer.param_groups):
            return "its step is differentiable"
        if steps_on_stack() != 1 or is_compiled():
            return "its step is compiled, or lies within another's"
        if doors.compiled_calls() != self._compiled_before:
            return "compiled code reads parameters, and does not say when"
        if _is_in_a_mode():
            return "step is called within a mode of PyTorch's (a dispatch or function mode, torch.func, tracing)"
        return ""

    def _defer(self, optimizer: Optimizer) -> tuple[dict[int, int], Optimizer, str]:
        """Takes note: the numbers of the updates, what is left for now, and if nothing is deferred, why."""
        attributes = {name: kept(value) for name, value in vars(optimizer).items() if name not in _GIVEN}
        deferred: dict[int, int] = {}
        reasons: list[str] = []
        gradients: set[int] = set()
        groups = []
        for group in optimizer.param_groups:
            settings = {name: kept(value) for name, value in group.items() if name != "params"}
            rest = []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                reason = reason_to_stay(optimizer, group, parameter)
                if id(parameter.grad) in gradients:
                    reason = "parameters have the same gradient"
                gradients.add(id(parameter.grad))
                if not reason:
                    _torch.look_at([parameter, parameter.grad])  # they may be another optimizer's too
                    number = self._note(NotedUpdate(optimizer, attributes, settings, parameter), parameter)
                    reason = "" if number >= 0 else "parameters share memory"
                if reason:
                    rest.append(parameter)
                    reasons.append(reason)
                else:
                    deferred[id(parameter)] = number
            if rest:
                groups.append({**group, "params": rest})
        return deferred, stand_in(type(optimizer), attributes, groups, optimizer.state), next(iter(reasons), "")

    def _note(self, update: NotedUpdate, parameter: torch.Tensor) -> int:
        """Its number, or -1."""
        torch._C._increment_version((parameter,))
        number = next(_numbers)
        self._noted[number] = update
        if update.defer(number):
            return number
        del self._noted[number]
        return -1

    # ---- an update ------------------------------------------------------------------------------------------------

    def _update(self, number: int) -> type[BaseException] | None:
        """Native code calls this, in the modes of the step that noted it. Nothing can be raised from here."""
        with self._one_at_a_time:
            update = self._noted.get(number)
            if update is None:
                return None  # another thread has made it
            raised: type[BaseException] | None = None
            with _interrupts_later() as interrupted:
                try:
                    update.carry_out()
                except BaseException as error:
                    raised = self._break(update, error)
                finally:
                    del self._noted[number]
                    _torch.carried_out(number)
            return raised or (KeyboardInterrupt if interrupted else None)

    def _break(self, update: NotedUpdate, error: BaseException) -> type[BaseException]:
        """Training cannot go on, also where the script catches what is raised: the next step or backward pass raises
        it again."""
        what = error.what if isinstance(error, OrderError) else f"{update.name} raised {type(error).__name__}: {error}"
        if not self._broken:
            self._broken = f"{script_line()}: {what}"
            self._tell(f"an error, and training cannot go on: {self._broken}", self._warn)
        if not isinstance(error, Exception):  # SystemExit, say, from a signal's handler
            return type(error)
        broken = self._broken

        class Broken(OrderError):
            def __init__(self) -> None:
                super().__init__(broken, deferred=True)

        Broken.__name__, Broken.__qualname__, Broken.__module__ = "OrderError", "OrderError", OrderError.__module__
        return Broken

    def _check(self) -> None:
        if self._broken:
            raise OrderError(self._broken, deferred=True)

    def _tell(self, text: str, how: Callable[[str], None]) -> None:
        if text not in self.told:
            self.told.append(text)
            how(f"deferred updates: {text}")


_GIVEN = ("param_groups", "state")
_numbers = itertools.count()  # of updates, in the process


def _is_in_a_mode() -> bool:
    """Where a mode is on that sees or changes what is called; a default device's creates tensors, and changes none."""
    c: Any = torch._C
    functions = (c._get_function_stack_at(place) for place in range(c._len_torch_function_stack()))
    return bool(
        c._len_torch_dispatch_stack()
        or c._functorch.peek_interpreter_stack() is not None
        or c._is_tracing()
        or any(not isinstance(mode, DeviceContext) for mode in functions)
    )


@contextmanager
def _interrupts_later() -> Iterator[list[int]]:
    """Ctrl-C does not end what runs in here, which would leave it half done; it is noted."""
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield noted
        return
    signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
