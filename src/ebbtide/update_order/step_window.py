"""Watches a script's calls between a backward pass and ``optimizer.step()``, where parameters are updated early.

It is a torch function mode. Every call of PyTorch from Python comes by before it is made, with its tensors, on the
thread that called ``backward``. Calls from C++ (autograd's own formulas) do not. The window is open only from the
backward pass up to ``step``, where a script makes few calls.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _len_torch_function_stack, _pop_torch_function_stack, _push_on_torch_function_stack
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from ebbtide.capture.storage_parts import tensors_in
from ebbtide.update_order.gone_gradient import METADATA, called


class StepWindow(TorchFunctionMode):
    """``look`` gets every call that names a tensor: the call's name and the tensor. It may raise."""

    def __init__(self, look: Callable[[str, torch.Tensor], None]) -> None:
        super().__init__()
        self._look = look
        self._quiet = False
        self._thread: int | None = None

    @property
    def is_open(self) -> bool:
        return self._thread is not None

    @property
    def is_ours(self) -> bool:
        """True on the thread that opened it."""
        return self._thread == threading.get_ident()

    @property
    def watches(self) -> bool:
        """True if a call that is made now, on this thread, is the script's and is looked at."""
        return self.is_ours and not self._quiet

    def open(self) -> None:
        """Open it below the script's own modes, which take the uppermost one away where they end. It stays above a
        default device's mode, which must be the lowest."""
        stack = self._others()
        if stack and isinstance(stack[-1], DeviceContext):
            _push_on_torch_function_stack(stack.pop())
        _push_on_torch_function_stack(self)
        for mode in reversed(stack):
            _push_on_torch_function_stack(mode)
        self._thread = threading.get_ident()

    def close(self) -> None:
        """Close it. On another thread than the one that opened it, the mode stays there and looks at nothing."""
        if self.is_ours:
            for mode in reversed(self._others()):
                _push_on_torch_function_stack(mode)
        self._thread = None

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Let calls pass in here unseen: they are ours, not the script's."""
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    def _others(self) -> list[TorchFunctionMode]:
        """Take all modes off the stack and return the others, the uppermost first."""
        modes = [_pop_torch_function_stack() for _ in range(_len_torch_function_stack())]
        return [mode for mode in modes if mode is not self]

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        compiles = torch.compiler.is_compiling()  # the doors tell of compiled code when it runs
        if not compiles and not self._quiet and self._thread is not None and (name := called(func)) not in METADATA:
            for tensor in tensors_in((*args, *kwargs.values())):
                self._look(name, tensor)
        return func(*args, **kwargs)
