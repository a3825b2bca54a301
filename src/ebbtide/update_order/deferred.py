"""Deferred updates: ``optimizer.step()`` takes note, and each parameter is updated before anybody looks at it.

Parameters, gradients and optimizer state are then used just before the parameter's next use, mostly in the next
forward pass. So their traffic overlaps with computing. ``step`` itself updates what is too small to be moved. Native
code looks at every operator's arguments (``native/torch/deferred.cpp``), and ``doors`` at whatever needs no operator.
Whoever is about to use a parameter, its gradient or its state has the update carried out first. So nothing can be seen
that the script's own order would not show. All other updates are made at the beginning of a backward pass, at the
optimizer's next step, before a fork, and at the session's end.

Left out: what ``doors`` leaves out, and version counters of parameters and state, which grow by one in ``step``.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from time import sleep
from typing import Any

import torch
from torch.optim import Optimizer

import ebbtide._torch as _torch
from ebbtide.capture.iterations import is_compiled, steps_on_stack
from ebbtide.capture.optimizer_events import Call, Place, Subscriber, subscribe, unsubscribe
from ebbtide.doors import tensors as doors
from ebbtide.doors.foreign_views import note_small_arrays
from ebbtide.errors import OrderError
from ebbtide.ir.run_report import LEFT
from ebbtide.update_order.gone_gradient import script_line
from ebbtide.update_order.independent import (
    IN_A_MODE,
    is_in_a_mode,
    overlap,
    share_what_changes,
    why_not_independent,
)
from ebbtide.update_order.noted_update import (
    GIVEN,
    NO_STATE_YET,
    NotedUpdate,
    kept,
    numbers,
    reason_to_stay,
    settings_of,
    stand_in,
    uncollected,
)
from ebbtide.update_order.signals_later import signals_later


class Deferred(Subscriber):
    """Defers updates for one session. ``say`` and ``warn`` tell what becomes of each optimizer; ``told`` keeps it.
    ``unlike`` is called in a step that begins or ends with deferred updates, but not both: later steps are not like it.
    ``defers``: while it is False, steps are made as the script has them, and all that is guarded stays so.
    """

    place = Place.UPDATE_ORDER

    def __init__(self, say: Callable[[str], None], warn: Callable[[str], None], unlike: Callable[[], None]) -> None:
        self._say = say
        self._warn = warn
        self._unlike = unlike
        self.defers = True
        self.told: list[str] = []
        self._noted: dict[int, NotedUpdate] = {}  # by number
        self._last: dict[int, dict[int, int]] = {}  # by optimizer: numbers by parameter, of its last step
        self._one_at_a_time = threading.RLock()
        self._stepping: dict[int, list[NotedUpdate]] = {}  # by thread: noted by a step that has not ended
        self._compiled_before = doors.compiled_calls()
        self._broken = ""  # an update that failed
        self._has_ended = False
        self._noting: set[int] = set()  # threads in before_step
        self._process = os.getpid()

    def install(self) -> None:
        doors.guard()
        note_small_arrays()
        _torch.set_updater(self._update)
        subscribe(self)

    def remove(self) -> None:
        """End it. Raises OrderError where an update cannot be carried out."""
        self._has_ended = True
        unsubscribe(self)
        for _ in range(_POLLS):  # other threads may be noting updates, which are carried out with the rest
            if not self._noting - {threading.get_ident()}:
                break
            sleep(_POLL_S)
        try:
            _torch.carry_out_all()
            if _torch.gave_up():
                self._check()
        finally:
            _torch.set_updater(None)
            for number in self._noted:  # some are left after an error
                _torch.carried_out(number)

    # ---- the script's step ----------------------------------------------------------------------------------------

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
        """Return other arguments for ``step``: a stand-in for the optimizer, with the rest of its parameters."""
        if os.getpid() != self._process:
            return None
        self._noting.add(threading.get_ident())
        try:
            return None if self._has_ended else self._begin_step(optimizer, args, kwargs)
        finally:
            self._noting.discard(threading.get_ident())

    def _begin_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
        self._check_step(own_steps=1)
        self._check()
        doors.guard()
        last = self._last.pop(id(optimizer), {})
        _torch.carry_out(list(last.values()))
        reason = self._refusal(optimizer, args, kwargs) if self.defers else ""
        deferred: dict[int, int] = {}
        rest = optimizer
        if self.defers and not reason:
            deferred, rest, reason = self._defer(optimizer)
        if deferred:
            self._tell(f"{type(optimizer).__name__}: each parameter is updated before its next use", self._say)
            self._last[id(optimizer)] = deferred
        elif reason not in ("", NO_STATE_YET):
            self._tell(f"{type(optimizer).__name__} {LEFT}: {reason}", self._warn)
        if bool(deferred) != bool(last):
            self._unlike()
        if not deferred:
            return None
        noted = [self._noted[number] for number in deferred.values() if number in self._noted]
        self._stepping[threading.get_ident()] = noted
        return (rest, *args[1:]), kwargs

    def after_step(self, optimizer: Optimizer) -> None:
        self._stepping.pop(threading.get_ident(), None)

    def around_backward(self, run: Callable[[], Any], roots: Sequence[torch.Tensor], trains: bool) -> Any:
        if os.getpid() == self._process:
            self._check_step()
            _torch.carry_out_all()
            self._check()
        return run()

    def _check_step(self, own_steps: int = 0) -> None:
        """Find a step that raised while the script went on. The script's order would have updated other parameters."""
        if threading.get_ident() not in self._stepping or steps_on_stack() > own_steps:
            return
        noted = self._stepping.pop(threading.get_ident())
        for update in noted:
            update.withdrawn = f"{update.name} is not made, since step raised an error after it was put off"
        if noted and not self._broken:
            self._break(noted[0], OrderError(noted[0].withdrawn, deferred=True))

    def _refusal(self, optimizer: Optimizer, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """Say why this step is made as the script has it, or ""."""
        if is_in_a_mode():
            return IN_A_MODE
        if reason := why_not_independent(optimizer):
            return reason
        if any(argument is not None for argument in (*args[1:], *kwargs.values())):
            return "step is called with a closure"
        if steps_on_stack() != 1 or is_compiled():
            return "its step is compiled, or lies within another's"
        if doors.compiled_calls() != self._compiled_before:
            return "compiled code reads parameters, and does not say when"
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if len({*map(id, parameters)}) < len(parameters) or overlap(parameters):
            return "parameters share memory"
        if share_what_changes(optimizer):
            return "state, gradients or settings share memory with what an update changes"
        return ""

    def _defer(self, optimizer: Optimizer) -> tuple[dict[int, int], Optimizer, str]:
        """Note updates. Return their numbers, what is left for now, and a reason why some are not deferred."""
        attributes = {name: kept(value) for name, value in vars(optimizer).items() if name not in GIVEN}
        deferred: dict[int, int] = {}
        reasons: list[str] = []
        gradients: set[int] = set()
        groups = []
        for group in optimizer.param_groups:
            settings = settings_of(optimizer, group)
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
        for (
            number
        ) in deferred.values():  # some share a version counter, though no memory: parts of one tensor, converted
            if (update := self._noted.get(number)) is not None:
                update.look_again()
        reason = NO_STATE_YET if NO_STATE_YET in reasons else next(iter(reasons), "")
        return deferred, stand_in(type(optimizer), attributes, groups, optimizer.state), reason

    def _note(self, update: NotedUpdate, parameter: torch.Tensor) -> int:
        """Note one update. Return its number, or -1."""
        torch._C._increment_version(
            (parameter, *(tensor for tensor in update.state_tensors() if not tensor.is_inference()))
        )
        number = next(numbers)
        self._noted[number] = update
        if update.defer(number):
            return number
        del self._noted[number]
        return -1

    # ---- an update ------------------------------------------------------------------------------------------------

    def _update(self, number: int) -> BaseException | None:
        """Make an update for native code. It returns what to raise where somebody looked: it cannot raise itself."""
        self._check_step()
        with signals_later(), self._one_at_a_time, uncollected():
            update = self._noted.get(number)
            if update is None:
                return None  # another thread has made it
            try:
                _torch.make_in_its_scene(number, update.carry_out)
            except BaseException as error:
                return self._break(update, error)
            finally:
                del self._noted[number]
                _torch.carried_out(number)
            return None

    def _break(self, update: NotedUpdate, error: BaseException) -> BaseException:
        """End training for good, even where the script catches the error: the next step or backward pass raises it
        again."""
        what = error.what if isinstance(error, OrderError) else f"{update.name} raised {type(error).__name__}: {error}"
        if not self._broken:
            self._broken = f"{script_line()}: {what}"
            self._tell(f"an error, and training cannot go on: {self._broken}", self._warn)
        if not isinstance(error, Exception):  # SystemExit, say, from a signal's handler
            return error
        return OrderError(self._broken, deferred=True)

    def _check(self) -> None:
        if not self._broken and _torch.gave_up():
            self._broken = "an update could not be begun when its parameter was looked at (is there no memory?)"
            self._tell(f"an error, and training cannot go on: {self._broken}", self._warn)
        if self._broken:
            raise OrderError(self._broken, deferred=True)

    def _tell(self, text: str, how: Callable[[str], None]) -> None:
        if text not in self.told:
            self.told.append(text)
            how(f"deferred updates: {text}")


_POLL_S, _POLLS = 0.001, 5000
