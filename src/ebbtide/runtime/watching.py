"""Whose storages are watched where nothing moves: the CPU's, where a fake GPU's lie, too, or a GPU's."""

from collections.abc import Callable
from functools import partial

import ebbtide._torch as _torch
from ebbtide.host.gpu import Gpu
from ebbtide.runtime import cuda_front


def watching(gpu: Gpu | None, piece_bytes: int) -> Callable[[], None]:
    """Begins it. On the CPU storages of twice ``piece_bytes`` are in pieces. Raises PlatformError where a GPU cannot be
    watched; calling what it returns raises RuntimeError where another device was."""
    if gpu is None or gpu.is_fake:
        return partial(_torch.watch, piece_bytes=piece_bytes if gpu is None else 0)
    face = cuda_front.face(gpu.ordinal)

    def watch() -> None:
        _torch.watch_gpu(cuda_face=face, ordinal=gpu.ordinal)
        cuda_front.run_backward_here(True)

    return watch
