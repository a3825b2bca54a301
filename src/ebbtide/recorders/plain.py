"""Records the allocations of plain PyTorch: every storage of the CPU, however small, and scratch inside operators."""

from functools import partial
from pathlib import Path

import ebbtide._torch as _torch
from ebbtide.ir.base import Origin
from ebbtide.recorders.step_recorder import StepRecorder


def plain_recorder(path: Path, first: int, count: int, piece_bytes: int, lines: bool) -> StepRecorder:
    """Make the recorder. Storages of at least twice ``piece_bytes`` are recorded in pieces."""
    watch = partial(_torch.watch, piece_bytes=piece_bytes)
    return StepRecorder(_torch, Origin.MEASURED, path, first, count, watch, lines)
