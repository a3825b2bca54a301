"""Updates in the backward pass: each parameter is updated as soon as its gradient is complete, and the gradient freed.

``optimizer.step()`` then does the rest: what is too small to be moved, say. An optimizer's first steps run as the
script has them, and are watched. Its updates are early from then on under two conditions. Between the backward pass and
``step``, nobody reads or changes a gradient, a parameter, the optimizer's state or its settings. And no gradient is
added to. Otherwise the optimizer is left as written, and the report says why. From then on, what an early update does
not allow is an error. It is raised at the call that would see another number. Up to ``step``, native code and ``doors``
tell of it, as they do of deferred updates (``native/torch/deferred.cpp``). After it, the ``GoneGradient`` does.

Left out: what ``doors`` leaves out.
"""

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

import ebbtide._torch as _torch
from ebbtide.capture.iterations import is_compiled, steps_on_stack
from ebbtide.capture.objects import instances
from ebbtide.capture.optimizer_events import Place, Subscriber, subscribe, unsubscribe
from ebbtide.doors import tensors as doors
from ebbtide.doors.foreign_views import note_small_arrays
from ebbtide.errors import OrderError
from ebbtide.ir.run_report import LEFT
from ebbtide.update_order.early_updates import EarlyUpdates
from ebbtide.update_order.gone_gradient import listeners, outermost_forward, script_line
from ebbtide.update_order.independent import IN_A_MODE, is_in_a_mode, overlap, share_memory
from ebbtide.update_order.signals_later import SignalsLater

_MODIFIED = "has been modified by an inplace operation"  # autograd's words for a saved tensor


class InBackward(Subscriber):
    """Makes one session's early updates. ``say`` and ``warn`` tell what becomes of each optimizer; ``told`` keeps
    it."""

    place = Place.UPDATE_ORDER

    def __init__(self, say: Callable[[str], None], warn: Callable[[str], None]) -> None:
        self._say = say
        self._warn = warn
        self.told: list[str] = []
        self._known: dict[int, EarlyUpdates] = {}  # by optimizer
        self._thread: int | None = None  # that of the backward pass, until it has ended and nothing is due
        self._without_step: set[int] = set()  # numbers of optimizers that went when updates had been made
        self._collected: set[int] = set()  # those of them for which Python has looked for cycles
        self._passes = 0  # under way, one within another
        self._signals = SignalsLater(for_long=True)  # from a step's first early update to its end
        self._has_ended = False
        self._broken = ""  # an error that left parameters updated for a step that was not made
        self._process = os.getpid()

    def install(self) -> None:
        for found in instances(Optimizer):
            if hasattr(found, "param_groups"):
                self.built(found)
        doors.guard()
        note_small_arrays()
        subscribe(self)
        listeners.append(self._used)

    def remove(self) -> None:
        """End it. Parameters stay guarded that were updated for a step that was not made."""
        self._has_ended = True
        unsubscribe(self)
        if self._used in listeners:
            listeners.remove(self._used)
        for order in self._orders():
            self._give_up(order)
        self._signals.end()

    # ---- optimizers and backward passes ---------------------------------------------------------------------------

    def built(self, optimizer: Optimizer) -> None:
        key = id(optimizer)
        if key not in self._known:
            self._known[key] = EarlyUpdates(optimizer, lambda: self._forget(key), self._reached)

    def _orders(self) -> list[EarlyUpdates]:
        """Copy the orders as they are now: an optimizer may go at any moment."""
        return list(self._known.values())

    def _forget(self, key: int) -> None:
        self._give_up(self._known.pop(key))

    def _give_up(self, order: EarlyUpdates) -> None:
        """Let go of an optimizer. Where its step will not come, what was updated stays guarded while anybody has it."""
        order.detach()
        if order.early and order.due:
            if _torch.step_will_not_come(order.number):
                self._without_step.add(order.number)
            order.due.clear()
        else:
            order.release()

    def around_backward(self, run: Callable[[], Any], roots: Sequence[torch.Tensor], trains: bool) -> Any:
        if not trains or os.getpid() != self._process:
            return run()
        self._begin()
        self._passes += 1
        try:
            return run()
        except BaseException as error:
            self._broke(error)
            if _MODIFIED in str(error) and self._broken:
                raise OrderError(self._broken) from error
            raise
        finally:
            self._passes -= 1
            self._end()

    def _begin(self) -> None:
        """Begin a backward pass, in which no parameter has been updated yet."""
        self._check()
        self._thread = threading.get_ident()
        if is_in_a_mode():
            return  # which would see what is looked at here; no update is early
        compiled = "the backward pass is compiled" if is_compiled() else ""
        parameters = [parameter for order in self._orders() for parameter in order.parameters()]
        owners, overlapping = Counter(map(id, parameters)), overlap(parameters)
        state_is_shared = share_memory(tensor for order in self._orders() if not order.left for tensor in order.state())
        all_have_stepped = all(order.left or order.watched_steps for order in self._orders())
        for order in self._orders():
            if order.left:
                continue
            shared = any(owners[id(parameter)] > 1 for parameter in order.parameters())
            reason = "another optimizer has the same parameters" if shared else order.forbidden() or compiled
            reason = reason or order.changes_gradients()
            if any(id(parameter) in overlapping for parameter in order.parameters()):
                reason = "parameters share memory"
            if state_is_shared:
                reason = "its state shares memory"
            if reason and order.early and order.due:
                raise OrderError(f"{order.name} cannot be updated in the backward pass any more: {reason}")
            if reason:
                self._leave(order, reason)
                continue
            order.begin()
            if not order.early and order.may_begin(all_have_stepped):
                order.early = True
                begins = f"{order.name}: each parameter is updated as soon as its gradient is complete"
                self._tell(begins, self._say)
            order.attach(self._gradient_is_complete)

    def _check(self, own_steps: int = 0) -> None:
        """Raise what has ended training for good: also a step that raised, when parameters had been updated for it."""
        thread = threading.get_ident()
        failed = next((order for order in self._orders() if order.stepping_on == thread and order.due), None)
        if failed is not None and steps_on_stack() <= own_steps:
            self._break(f"step of {failed.name} raised an error, when {len(failed.due)} parameters had been updated")
        if self._broken:
            raise OrderError(self._broken)

    def _end(self) -> None:
        for order in self._orders():
            if order.left:
                order.detach()  # not while its hooks are called
            elif not order.early:
                with torch._C.DisableTorchFunction():  # a mode of the script's hears nothing of it
                    order.watch_gradients()
        self._look_what_is_due()

    def _broke(self, error: BaseException) -> None:
        """Guard parameters that were updated in a pass that raised: the script's order would not have updated them."""
        updated = sum(len(order.due) for order in self._orders() if order.early)
        if updated:
            raised = error.what if isinstance(error, OrderError) else f"the backward pass raised {type(error).__name__}"
            if _MODIFIED in str(error):
                raised = f"{script_line()} needs parameters as they were before their updates"
            self._break(f"{raised}, when {updated} parameters had been updated")

    def _used(self, what: str) -> None:
        """Hear that a gone gradient was used. Before step, no update has what the script would have done to it."""
        if any(order.early and order.due for order in self._orders()):
            self._break(what)

    def _break(self, what: str) -> None:
        """End training for good, even where the script catches the error: the next pass or step raises it again."""
        if not self._broken:
            self._broken = what
            self._tell(f"an error, and training cannot go on: {what}", self._warn)
        self._signals.end()

    def _gradient_is_complete(self, parameter: torch.Tensor) -> None:
        order = next((order for order in self._orders() if order.has(parameter)), None)
        if order is None or order.left:  # None: hooks go along when the contents of tensors are swapped
            return
        if os.getpid() != self._process:
            return
        if self._thread == threading.get_ident():
            if order.stays(parameter):
                return
            reason = order.completed(parameter)
        else:
            reason = "the backward pass is not called through torch.autograd, or on another thread"
        if reason and order.early:
            raise OrderError(f"{script_line()}: {reason}")
        if reason:
            self._leave(order, reason)
        elif order.early:
            self._signals.begin()
            order.update(parameter)
        else:
            order.watch(parameter)

    # ---- up to the script's step ----------------------------------------------------------------------------------

    def _reached(self, number: int) -> BaseException | None:
        """Hear that somebody is about to use what is due. Return what is to be raised there."""
        order = next((order for order in self._orders() if order.number == number), None)
        is_due = order is not None and order.due and not order.left
        if order is not None and is_due and not order.early:
            self._leave(order, _use_before_step())
            return None
        if is_due and order is not None and order.stepping_on is not None:
            if order.stepping_on == threading.get_ident() and steps_on_stack():  # step itself
                return None
            self._break(f"{script_line()} uses what was updated in the backward pass, and step raised an error")
            return OrderError(self._broken)
        if is_due:
            self._break(f"{script_line()} uses a parameter or state before step")
            return OrderError(self._broken)
        if number not in self._without_step:
            return None
        if number not in self._collected:
            self._collected.add(number)
            gc.collect()  # compiled code may use any memory, and a net that a cycle alone keeps is nobody's
        if not _torch.step_will_not_come(number):
            return None
        what = f"{script_line()} uses what was updated in the backward pass for a step that was not made"
        if not self._has_ended:
            self._break(what)
        return OrderError(what)

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        order = self._known.get(id(optimizer))
        if order is None or order.left or os.getpid() != self._process:
            return
        self._check(own_steps=1)
        reason = IN_A_MODE if is_in_a_mode() else order.forbidden() or self._refusal(order, args, kwargs)
        if reason and order.early and (order.due or order.stale()):
            self._break(f"{script_line()}: {reason}")
            raise OrderError(self._broken)
        if reason:
            self._leave(order, reason)
        else:
            order.watched_steps += bool(order.due)
        order.stepping()
        self._look_what_is_due()

    def _refusal(self, order: EarlyUpdates, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """Say why the updates of this step cannot be early, or could not have been."""
        if any(argument is not None for argument in (*args[1:], kwargs.get("closure"))):
            return "step is called with a closure"
        if steps_on_stack() != 1 or is_compiled():
            return "its step is compiled, or lies within another's"
        if torch.is_autocast_enabled("cpu"):
            return "step is called under autocast"
        if torch.is_inference_mode_enabled():
            return "step is called in inference mode"
        if order.due and self._thread != threading.get_ident():
            return "the backward pass and step are on different threads"
        if order.due and (changed := order.changed_settings()):
            return f"{changed} changed between the backward pass and step"
        if order.early and order.stale():
            return "step is called again with gradients that an update has used"
        return "a gradient is changed between the backward pass and step" if order.changed_gradient() else ""

    def after_step(self, optimizer: Optimizer) -> None:
        order = self._known.get(id(optimizer))
        if order is not None:
            order.stepped()
            self._look_what_is_due()
            if not any(each.early and each.due for each in self._orders()):
                self._signals.end()

    def _look_what_is_due(self) -> None:
        if not self._passes and not any(order.due and not order.left for order in self._orders()):
            self._thread = None

    def _leave(self, order: EarlyUpdates, reason: str) -> None:
        order.left = True
        order.release()
        self._tell(f"{order.name} {LEFT}: {reason}", self._warn)

    def _tell(self, text: str, how: Callable[[str], None]) -> None:
        self.told.append(text)
        how(f"updates in backward: {text}")


def _use_before_step() -> str:
    """Say what the script does with what a step works on, between the backward pass and step."""
    forward = outermost_forward() if torch._C._current_graph_task_id() == -1 else None  # else a pass is made again
    if forward is not None:
        called = script_line(forward)
        return f"another forward pass ran between the backward pass and step (gradient accumulation?): {called}"
    return f"{script_line()} uses what its step works on, between the backward pass and step"
