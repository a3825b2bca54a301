"""Ebbtide's allocator in front of PyTorch's on a GPU: put in place by the process's first session there, for good."""

from typing import TYPE_CHECKING

import torch

from ebbtide.errors import PlatformError, SettingError
from ebbtide.host.cuda import require_cuda

if TYPE_CHECKING:
    from typing_extensions import CapsuleType


def face(device: int) -> "CapsuleType":
    """What the arena of that GPU asks PyTorch. Raises PlatformError where the machine cannot."""
    require_cuda(device)
    from ebbtide import _cuda

    torch.cuda.init()  # type: ignore[no-untyped-call]
    return _cuda.face()


def stand_in_front(arena: "CapsuleType", device: int, min_bytes: int) -> None:
    """Off at first. ``arena`` is the face of the arena that serves storages of ``min_bytes`` and more on that GPU.

    Callers MUST have asked for ``face`` before, after which a script cannot put an allocator of its own in place.
    Raises PlatformError where another allocator than PyTorch's native one is in use.
    """
    from ebbtide import _cuda

    try:
        _cuda.install(arena, device, min_bytes)
    except RuntimeError as error:
        raise PlatformError(str(error)) from error


def begin(nbytes: int) -> None:
    """New storages come from the arena; this process may have ``nbytes`` of its GPU in all (0: no bound).

    SettingError where the script allows itself less memory.
    """
    from ebbtide import _cuda

    try:
        _cuda.set_budget(nbytes)
    except RuntimeError as error:
        raise SettingError(str(error)) from error
    run_backward_here(True)
    _cuda.set_on(True)


def end() -> None:
    from ebbtide import _cuda

    _cuda.set_on(False)
    _cuda.set_budget(0)
    run_backward_here(False)


def run_backward_here(here: bool) -> None:
    """On the thread that asks for it, whose operators are the step's (D16 in docs/gpu.md); else on one of PyTorch's."""
    torch.autograd.set_multithreading_enabled(not here)
