"""The end of a step in a program that names none: every optimizer in use has stepped.

With one optimizer, each of its steps ends one. With several, a step ends once in an iteration, after the last of them.
One optimizer may step up to ``MOST`` times for each step of another (the discriminator of a GAN). So hooks on
parameters, each with an optimizer of its own, also make one step of an iteration.

An optimizer is in use from the moment it takes parameters, or from its first step if it was built before anybody
looked. Three things end that: it is gone; it steps within another's step, or for another training, on another thread;
or another one makes more than ``MOST`` steps in one step without it. Then training is in its next phase, or it steps
rarely. The first optimizer that makes so many steps is followed from then on, with those that stepped meanwhile.

A training may move to another thread, or step on any thread of a pool. Its optimizers tell it from another training
that runs beside it.

A program may train several times and keep what it trained (folds, searches). Optimizers that were met after others had
stepped, and together make more than ``MOST`` steps without them, are the next trainings'. From then on two steps are
enough to tell, until one that was left steps again, as an outer optimizer does.

An optimizer may be given other parameters for each of several steps (DeepSpeed's ZeRO-3, a group of them at a time). It
counts as one optimizer for each group for which it keeps state. Their first parameters tell them apart. Only their
identities are kept: ``torch.utils.swap_tensors`` refuses a tensor to which anybody else refers, even weakly.

An optimizer that is gone takes its keys out at any time, on any thread. So keys are copied before a loop over them.

Left out: an optimizer that steps more rarely than that. Its work belongs to whatever step it falls into. This module
knows nothing of native code, so that whoever only looks (``ebbtide verify``) follows the same rule.
"""

import sys
import threading
import weakref
from types import FrameType

import torch
from torch.optim import Optimizer

MOST = 16
"""The most steps of one optimizer for each step of another, in an iteration."""

# Every optimizer's step runs inside this wrapper, so its frames mark the optimizer steps on a stack.
_STEP_CODE = Optimizer.profile_hook_step(lambda: None).__code__


_Key = tuple[int, int]
"""The identities of an optimizer and of its first parameter; 0 until it has stepped."""


class Iterations:
    """Counts optimizers' steps. Those of the first thread that steps an optimizer end steps. Another thread takes over
    once that one has ended, or its optimizers are gone, or one of them steps there, while none steps here."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._known: dict[_Key, weakref.ref[Optimizer]] = {}
        self._in_use: set[_Key] = set()
        self._awaited: set[_Key] = set()  # in use, and not stepped since the program's step began
        self._made: dict[_Key, int] = {}  # outermost steps since the program's step began
        self._met: dict[_Key, int] = {}  # how many outermost steps there had been
        self._last: dict[_Key, int] = {}  # which outermost step was its last
        self._steps = 0
        self._left: set[_Key] = set()  # by the next training
        self._one_by_one: bool | None = None  # trainings follow one another; None: it is not known

    def built(self, optimizer: Optimizer) -> None:
        """Note that it took parameters. A second call changes nothing."""
        if not any(known == id(optimizer) for known, _ in [*self._known]):
            self._meet((id(optimizer), 0), True, optimizer, self._steps)

    def stepped(self, optimizer: Optimizer) -> bool:
        """Note that its step ended, while its hooks run. Return whether the program's step ends with it."""
        built, key = (id(optimizer), 0), (id(optimizer), id(_first_parameter(optimizer)))
        in_use = built in self._in_use or built not in self._known
        met = self._met.get(built, self._steps)
        self._forget(built)
        self._forget_groups_without_state(optimizer, key)
        if key not in self._known:
            self._meet(key, in_use, optimizer, met)
        if not is_outermost() or not self._is_ours(key):
            self._in_use.discard(key)
            self._awaited.discard(key)
            return False
        self._steps += 1
        self._last[key] = self._steps
        self._made[key] = self._made.get(key, 0) + 1
        self._awaited.discard(key)
        if key in self._left:
            self._left.discard(key)
            self._in_use.add(key)
            self._one_by_one = False
        if self._made[key] > 1 and self._trains_one_by_one():
            self._leave({other for other in [*self._awaited] if 0 < self._last.get(other, 0) <= self._met[key]})
        if self._made[key] > MOST:
            self._in_use = set(self._made)
            self._awaited.clear()
        if self._awaited or key not in self._in_use:
            return False
        self._made.clear()
        self._awaited = set(self._in_use)
        return True

    def _is_ours(self, key: _Key) -> bool:
        """Tell whether this thread ends steps, or does so from now on."""
        trains_here = key in self._last or not self._last
        if self._thread is None or not self._thread.is_alive() or (trains_here and not _is_stepping(self._thread)):
            self._thread = threading.current_thread()
        return self._thread is threading.current_thread()

    def _trains_one_by_one(self) -> bool:
        return sum(self._made.values()) > MOST if self._one_by_one is None else self._one_by_one

    def _leave(self, keys: set[_Key]) -> None:
        if keys:
            self._one_by_one = True
        self._left |= keys
        self._in_use -= keys
        self._awaited -= keys

    def _meet(self, key: _Key, in_use: bool, optimizer: Optimizer, met: int) -> None:
        """Make it known for as long as the optimizer lives. It was met after so many outermost steps."""
        self._met[key] = met
        self._known[key] = weakref.ref(optimizer, lambda _: self._forget(key))
        if in_use:
            self._in_use.add(key)
            self._awaited.add(key)

    def _forget_groups_without_state(self, optimizer: Optimizer, stepped: _Key) -> None:
        """Forget its other groups that it keeps nothing of. They may be gone."""
        others = [key for key in [*self._known] if key[0] == id(optimizer) and key != stepped]
        kept = {*map(id, optimizer.state)} if others else set()
        for key in others:
            if key[1] not in kept:
                self._forget(key)

    def _forget(self, key: _Key) -> None:
        self._known.pop(key, None)
        self._in_use.discard(key)
        self._awaited.discard(key)
        self._made.pop(key, None)
        self._met.pop(key, None)
        self._last.pop(key, None)
        self._left.discard(key)


def _first_parameter(optimizer: Optimizer) -> torch.Tensor | None:
    return next((parameter for group in optimizer.param_groups for parameter in group["params"]), None)


def is_outermost() -> bool:
    """Tell whether the optimizer's step whose hook is running lies in no other's."""
    return steps_on_stack() <= 1


def _is_stepping(thread: threading.Thread) -> bool:
    """Tell whether an optimizer steps on that thread, or its hooks run."""
    return steps_on_stack(sys._current_frames().get(thread.ident or 0)) > 0


def steps_on_stack(frame: FrameType | None = None) -> int:
    """Count the optimizers' steps that run on this thread, or on that of a frame, one within another, from the stack.

    A counter would be wrong after a step that raised, and every thread has its own stack. The frames of a compiled step
    may not be there.
    """
    frame = frame or sys._getframe()
    steps = 0
    while frame is not None:
        steps += frame.f_code is _STEP_CODE
        frame = frame.f_back
    return steps


def is_compiled() -> bool:
    """Tell whether Dynamo compiles backward passes, or compiled what this thread runs. By the call stack that is the
    caller itself, or what calls the optimizer's step whose hook is running."""
    compiles = sys.modules.get("torch._dynamo.compiled_autograd")
    if getattr(compiles, "compiled_autograd_enabled", False):
        return True
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and frame.f_code.co_filename.endswith("_dynamo/eval_frame.py"):
            return True
        frame = frame.f_back
    return False
