"""Tells native code which module runs, while it records a step that may be planned.

A module's path starts at the outermost module that was called: "GPT2LMHeadModel.transformer.h.3.mlp". The hooks are
global and take part in no graph, so a step with them makes the same allocations as one without.
"""

import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

import ebbtide._torch as _torch
from ebbtide.in_front import InFrontOf

_FIRE_TWICE = ("ignore", re.compile(r"Using `torch\.compile\(module\)` when there are global hooks"), Warning, None, 0)
"""A filter of PyTorch's warning of hooks that fire twice. These do nothing in compiled code."""


_TABLES: tuple[dict[Any, Any], ...] = (
    hooks._global_forward_pre_hooks,
    hooks._global_forward_hooks,
    hooks._global_forward_hooks_always_called,
)
_MOST_CALLS = 2**31 - 1  # that Python can be told

_installed: list["ModuleNames"] = []
_exports: list[object] = []  # wrappers, once there are any


def _without_names(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    paused = [*_installed]
    for names in paused:
        names.unregister()
    try:
        return original(*args, **kwargs)
    finally:
        for names in paused:
            if names in _installed:  # another thread's step may have ended
                names.register()


def _paths_in(root: nn.Module) -> dict[int, str]:
    """Name the modules by id, as ``named_modules`` does. That a class may replace, and it hashes modules."""
    paths: dict[int, str] = {}
    ahead: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while ahead:
        path, module = ahead.pop()
        if id(module) in paths or not issubclass(type(module), nn.Module):
            continue
        paths[id(module)] = path
        parts = list(object.__getattribute__(module, "__dict__").get("_modules", {}).items())
        ahead += [(f"{path}.{name}", part) for name, part in reversed(parts)]
    return paths


class ModuleNames:
    """Forward hooks that come and go. One thread uses them. They tell ``native``, or what stands in for it.

    PyTorch numbers hooks as they come, and a pickled net has the numbers of its own. So these take none: their key in
    PyTorch's tables is this object."""

    def __init__(self, native: Any = _torch) -> None:
        self._native = native
        self._registered = False
        self._paths: dict[int, str] = {}
        self._before: list[int] = []
        self._limit = self._raised = 0  # of Python's calls, without these hooks and with them
        if not _exports:
            _exports.extend(InFrontOf.EXPORT.install(_without_names))

    def install(self) -> None:
        if self not in _installed:
            _installed.append(self)
            # Not by ``filterwarnings``: after it, what the script has been warned of once is shown again.
            warnings.filters.insert(0, _FIRE_TWICE)  # type: ignore[attr-defined]
            self.register()

    def remove(self) -> None:
        self.unregister()
        if self in _installed:
            _installed.remove(self)
            if _FIRE_TWICE in warnings.filters:
                warnings.filters.remove(_FIRE_TWICE)  # type: ignore[attr-defined]
        self._paths.clear()
        self._before.clear()

    def register(self) -> None:
        """Take part in each call of a module. With hooks, PyTorch calls one more function for each: four for three."""
        self._limit = sys.getrecursionlimit()
        self._raised = min(self._limit * 3 // 2 + 1, _MOST_CALLS)  # no number that a script would choose
        sys.setrecursionlimit(self._raised)
        for table, entry in zip(_TABLES, (self._enter, self._leave, True), strict=True):
            table[self] = entry
        self._registered = True

    def unregister(self) -> None:
        if not self._registered:
            return
        self._registered = False
        if sys.getrecursionlimit() == self._raised:  # else the script has set another
            with suppress(RecursionError):  # it is deeper than that
                sys.setrecursionlimit(self._limit)
        for table in _TABLES:
            table.pop(self, None)

    def _enter(self, module: nn.Module, _inputs: object) -> None:
        if torch.compiler.is_compiling():
            return
        if not self._before:
            self._paths = _paths_in(module)
        name = self._paths.get(id(module), type(module).__name__)
        self._before.append(self._native.enter_module(name))

    def _leave(self, _module: nn.Module, _inputs: object, _output: Any) -> None:
        if not torch.compiler.is_compiling() and self._before:
            self._native.back_to_module(self._before.pop())
