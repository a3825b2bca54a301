"""Records what plain PyTorch allocates: every storage of the CPU or of a GPU, however small, and scratch inside
operators."""

from functools import partial
from pathlib import Path

import ebbtide._torch as _torch
from ebbtide.host.gpu import Gpu
from ebbtide.ir.base import Origin
from ebbtide.recorders.step_recorder import StepRecorder
from ebbtide.runtime import cuda_front


def plain_recorder(
    path: Path, first: int, count: int, lines: bool, piece_bytes: int, gpu: Gpu | None = None
) -> StepRecorder:
    """Of the storages on ``gpu``, or on the CPU, where a fake GPU's lie, too. Raises PlatformError."""
    watch = partial(_torch.watch, piece_bytes=0 if gpu is not None else piece_bytes)
    if gpu is not None and not gpu.is_fake:
        watch = partial(_torch.watch_gpu, cuda_face=cuda_front.face(gpu.ordinal), ordinal=gpu.ordinal)
        cuda_front.run_backward_here(True)
    return StepRecorder(_torch, Origin.MEASURED, path, first, count, watch, lines)
