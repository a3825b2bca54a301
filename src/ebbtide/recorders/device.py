"""Records an accelerator in plain PyTorch: every storage there, however small, and the device's own times.

It is a session's memory of the device without a bound, so nothing moves. Left out: scratch inside operators, and
storages that another library made.
"""

from functools import partial
from pathlib import Path

import torch

import ebbtide._torch as _torch
from ebbtide.ir.base import Origin
from ebbtide.recorders.step_recorder import StepRecorder


def device_recorder(device: torch.device, path: Path, first: int, count: int, lines: bool) -> StepRecorder:
    asked = _torch.DeviceSettings()
    asked.device, asked.min_bytes = str(device), 1
    start = partial(_torch.start_device, asked)
    return StepRecorder(_torch, Origin.MEASURED, path, first, count, start, lines, device)
