"""The machine of a session on a device: its memory, pinned host memory, a file, and the ways between, measured."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns

import torch

from ebbtide.host.accelerator import HOST
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.probe.quick import probe_quick
from ebbtide.units import KIB, MIB

_UNIT_BYTES = 512  # PyTorch's allocators of devices round sizes up to it
_LARGE, _SMALL = 64 * MIB, 64 * KIB
_TIMES = 4
_PASSING_PART = 4  # the runtime has an eighth to a quarter free (native/torch/host_copies.cpp)


def machine_of_device(
    device: torch.device,
    fast_bytes: int,
    host_bytes: int,
    spill: Sequence[Path],
    io_threads: int,
    say: Callable[[str], None],
) -> Machine:
    """Measure the machine. Without spill directories it has no file."""
    machine = _measure(device, fast_bytes, host_bytes)
    return _with_file(machine, probe_quick(spill, io_threads, say=say)) if spill else machine


def _measure(device: torch.device, fast_bytes: int, host_bytes: int) -> Machine:
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


def _with_file(machine: Machine, disk: Machine) -> Machine:
    """Add the spill file of ``disk``, which has memory and that. A copy is made on the way to host memory, then on its
    way to the file, or the other way round; so it takes the time of both."""
    fast, host = machine.tiers
    memory, file = disk.tiers
    links = list(machine.links)
    for source, target, on_bus, on_disk in (
        (fast, file, machine.link(fast.name, host.name), disk.link(memory.name, file.name)),
        (file, fast, machine.link(host.name, fast.name), disk.link(file.name, memory.name)),
    ):
        if on_bus is not None and on_disk is not None:
            rate = on_bus.bytes_per_s * on_disk.bytes_per_s // (on_bus.bytes_per_s + on_disk.bytes_per_s)
            latency_ns = on_bus.latency_ns + on_disk.latency_ns
            links.append(
                replace(
                    on_disk,
                    source=source.name,
                    target=target.name,
                    bytes_per_s=max(rate, 1),
                    latency_ns=latency_ns,
                    slows_compute=0.0,
                )
            )
    passing = (host.capacity_bytes or 0) // _PASSING_PART  # what comes and goes passes through so much of it
    host = replace(host, capacity_bytes=(host.capacity_bytes or 0) - passing)
    file = replace(file, page_bytes=fast.page_bytes)
    return replace(machine, tiers=(fast, host, file), links=tuple(links), groups=disk.groups)


def _copy_ns(device: torch.device, to: torch.Tensor, of: torch.Tensor) -> int:
    taken = []
    for _ in range(_TIMES):
        _synchronize(device)
        began = perf_counter_ns()
        to.copy_(of, non_blocking=True)
        _synchronize(device)
        taken.append(perf_counter_ns() - began)
    return min(taken)


def _synchronize(device: torch.device) -> None:
    torch.accelerator.synchronize(device)
