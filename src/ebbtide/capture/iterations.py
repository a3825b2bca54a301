"""Where a step ends in a program that names none: when every optimizer in use has stepped.

With one optimizer that is the end of each of its steps. With several it is once in an iteration: after the last of
them, however often one steps for each step of another (the discriminator of a GAN), up to ``MOST`` times. So a hook
per parameter, each with an optimizer of its own, makes one step of an iteration too.

An optimizer is in use from the moment it takes parameters, or from its first step if it was built before anybody
looked. It is in use no more when it is gone, when it steps within another's step or on another thread, and when another
has made more than ``MOST`` steps in one step without it: the next phase of a training, or one that steps rarely. The
first optimizer that makes so many becomes the one that is followed, with those that stepped meanwhile.

An optimizer that is given other parameters for each of several steps (DeepSpeed's ZeRO-3, a group of them at a time)
counts as one optimizer for each: they are told apart by their first parameters.

Left out: an optimizer that steps more rarely than that, whose work belongs to whatever step it falls into.
This module knows nothing of native code, so that whoever only looks (``ebbtide verify``) follows the same rule.
"""

import sys
import threading
import weakref
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer

MOST = 16
"""Steps of one optimizer for each step of another, in an iteration."""

# Every optimizer's step runs inside this wrapper, so its frames mark the optimizer steps on a stack.
_STEP_CODE = Optimizer.profile_hook_step(lambda: None).__code__


_Key = tuple[int, int]
"""An optimizer and the first of its parameters, by identity; 0 until it has stepped."""


class Iterations:
    """Counts what optimizers do. Those of the first thread that steps one end steps; others do once it has ended."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._known: dict[_Key, list[weakref.ref[Any]]] = {}
        self._in_use: set[_Key] = set()
        self._awaited: set[_Key] = set()  # in use, and not stepped since the program's step began
        self._made: dict[_Key, int] = {}  # outermost steps since then

    def built(self, optimizer: Optimizer) -> None:
        """It took parameters; to say so again changes nothing."""
        if not any(known == id(optimizer) for known, _ in self._known):
            self._meet((id(optimizer), 0), True, optimizer)

    def stepped(self, optimizer: Optimizer) -> bool:
        """Its step ended, and its hooks are running: whether the program's step ends with it."""
        parameter = _first_parameter(optimizer)
        built, key = (id(optimizer), 0), (id(optimizer), id(parameter))
        in_use = built in self._in_use or built not in self._known
        self._forget(built)
        if key not in self._known:
            self._meet(key, in_use, optimizer, *([] if parameter is None else [parameter]))
        if not is_outermost() or not self._is_ours():
            self._in_use.discard(key)
            self._awaited.discard(key)
            return False
        self._made[key] = self._made.get(key, 0) + 1
        self._awaited.discard(key)
        if self._made[key] > MOST:
            self._in_use = set(self._made)
            self._awaited.clear()
        if self._awaited or key not in self._in_use:
            return False
        self._made.clear()
        self._awaited = set(self._in_use)
        return True

    def _is_ours(self) -> bool:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.current_thread()
        return self._thread is threading.current_thread()

    def _meet(self, key: _Key, in_use: bool, *live: object) -> None:
        """It is known as long as all of these live."""
        self._known[key] = [weakref.ref(one, lambda _: self._forget(key)) for one in live]
        if in_use:
            self._in_use.add(key)
            self._awaited.add(key)

    def _forget(self, key: _Key) -> None:
        self._known.pop(key, None)
        self._in_use.discard(key)
        self._awaited.discard(key)
        self._made.pop(key, None)


def _first_parameter(optimizer: Optimizer) -> torch.Tensor | None:
    return next((parameter for group in optimizer.param_groups for parameter in group["params"]), None)


def is_outermost() -> bool:
    """Whether the optimizer's step whose hook is running lies in no other's."""
    return steps_on_stack() <= 1


def steps_on_stack() -> int:
    """How many steps of optimizers are running on this thread, one within another, read from the call stack.

    Not counted, because a step that raised would leave a count behind; and every thread has its own stack. Of a
    compiled step the frames may not be there.
    """
    frame: FrameType | None = sys._getframe()
    steps = 0
    while frame is not None:
        steps += frame.f_code is _STEP_CODE
        frame = frame.f_back
    return steps


def is_compiled() -> bool:
    """Whether Dynamo compiles what this thread is running, read from the call stack: the caller itself, or what calls
    the optimizer's step whose hook is running."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and frame.f_code.co_filename.endswith("_dynamo/eval_frame.py"):
            return True
        frame = frame.f_back
    return False
