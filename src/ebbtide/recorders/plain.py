"""Records what plain PyTorch allocates: every CPU storage, however small, and scratch inside operators."""

from pathlib import Path

import ebbtide._torch as _torch
from ebbtide.ir.base import Origin
from ebbtide.recorders.step_recorder import StepRecorder


def plain_recorder(path: Path, first: int, count: int, lines: bool, piece_bytes: int) -> StepRecorder:
    return StepRecorder(_torch, Origin.MEASURED, path, first, count, lines, piece_bytes)
