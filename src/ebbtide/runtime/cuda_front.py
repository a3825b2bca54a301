"""Ebbtide's allocator in front of PyTorch's on a GPU: put in place by the process's first session there, for good."""

from typing import TYPE_CHECKING

import torch

from ebbtide.errors import PlatformError, SettingError
from ebbtide.host.cuda import require_cuda

if TYPE_CHECKING:
    from typing_extensions import CapsuleType


def stand_in_front(arena: "CapsuleType", device: int, min_bytes: int) -> None:
    """Off at first. ``arena`` is the face of the arena that serves storages of ``min_bytes`` and more on that GPU.

    Raises PlatformError where the machine cannot, or another allocator than PyTorch's native one is in use.
    """
    require_cuda(device)
    from ebbtide import _cuda

    # A script cannot put an allocator of its own in place after that.
    torch.cuda.init()  # type: ignore[no-untyped-call]
    try:
        _cuda.install(arena, device, min_bytes)
    except RuntimeError as error:
        raise PlatformError(str(error)) from error


def bound_gpu(nbytes: int) -> None:
    """What this process may have of the arena's GPU in all. SettingError where the script allows itself less."""
    from ebbtide import _cuda

    try:
        _cuda.set_budget(nbytes)
    except RuntimeError as error:
        raise SettingError(str(error)) from error
