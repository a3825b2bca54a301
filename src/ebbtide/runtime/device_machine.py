"""The machine of a session on a device: its memory, pinned host memory, and the two ways between them, measured."""

import time

import torch

from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.units import KIB, MIB

HOST = "host"
_UNIT_BYTES = 512  # PyTorch's allocators of devices round sizes up to it
_LARGE, _SMALL = 64 * MIB, 64 * KIB
_TIMES = 4


def measure(device: torch.device, fast_bytes: int, host_bytes: int) -> Machine:
    """Measure how fast copies between the device and pinned memory are: the best of a few, in well under a second."""
    large = torch.empty(_LARGE, dtype=torch.uint8, device=device)
    pinned = torch.empty(_LARGE, dtype=torch.uint8, pin_memory=True)
    links = []
    for source, target, to, of in ((device.type, HOST, pinned, large), (HOST, device.type, large, pinned)):
        latency_ns = _copy_ns(device, to[:_SMALL], of[:_SMALL])
        rest_ns = max(_copy_ns(device, to, of) - latency_ns, 1)
        links.append(Link(source, target, (_LARGE - _SMALL) * 1_000_000_000 // rest_ns, latency_ns))
    tiers = (
        Tier(device.type, InPlace.ALL, fast_bytes, page_bytes=_UNIT_BYTES),
        Tier(HOST, InPlace.NOTHING, host_bytes, page_bytes=_UNIT_BYTES),
    )
    return Machine(f"{device.type} here", Origin.MEASURED, tiers, tuple(links))


def _copy_ns(device: torch.device, to: torch.Tensor, of: torch.Tensor) -> int:
    taken = []
    for _ in range(_TIMES):
        _synchronize(device)
        began = time.perf_counter_ns()
        to.copy_(of, non_blocking=True)
        _synchronize(device)
        taken.append(time.perf_counter_ns() - began)
    return min(taken)


def _synchronize(device: torch.device) -> None:
    torch.accelerator.synchronize(device)
