"""Records what plain PyTorch allocates: every storage of the CPU or of a GPU, however small, and scratch inside
operators."""

from collections.abc import Callable
from pathlib import Path

import ebbtide._torch as _torch
from ebbtide.ir.base import Origin
from ebbtide.recorders.step_recorder import StepRecorder


def plain_recorder(path: Path, first: int, count: int, watch: Callable[[], None], lines: bool) -> StepRecorder:
    """``watch`` says of which device: it is the native module's, with its arguments."""
    return StepRecorder(_torch, Origin.MEASURED, path, first, count, watch, lines)
