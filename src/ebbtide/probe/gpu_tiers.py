"""A machine whose fast memory is a GPU's, measured: its link to pinned host memory, and through that to the spill file.

Copies are made by the GPU's copy engines, so they take nothing from the operations beside them. What a map and an unmap
cost is the latency of each move, since they are paid by the storage and not by the byte (docs/gpu.md).
"""

from collections.abc import Sequence
from dataclasses import replace

from ebbtide.errors import PlatformError
from ebbtide.host.gpu import Gpu
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.settings import SlowerTier

GPU = "gpu"


def with_gpu(machine: Machine, gpu: Gpu, tiers: Sequence[SlowerTier]) -> Machine:
    """``machine`` has memory and the spill file. Raises PlatformError where the GPU cannot be measured."""
    dram, file = machine.tiers
    out, back, latency_ns = _measured()
    fast = Tier(GPU, InPlace.ALL, gpu.total_bytes, page_bytes=gpu.page_bytes)
    between = [Tier(tier.name, InPlace.NOTHING, tier.capacity_bytes, page_bytes=gpu.page_bytes) for tier in tiers]
    links = []
    for tier in between:
        links += [Link(GPU, tier.name, out, latency_ns=latency_ns), Link(tier.name, GPU, back, latency_ns=latency_ns)]
    for link in machine.links:
        # To and from the file everything passes through the host, from where it is copied at once.
        leaves = link.source == dram.name
        rate = min(link.bytes_per_s, out if leaves else back)
        slower = replace(link, bytes_per_s=rate, latency_ns=link.latency_ns + latency_ns, bytes_per_s_spread=0)
        links.append(replace(slower, source=GPU) if leaves else replace(slower, target=GPU))
        links += [replace(link, source=tier.name) if leaves else replace(link, target=tier.name) for tier in between]
    name = f"{gpu.name}, {machine.name}"
    return replace(machine, name=name, tiers=(fast, *between, file), links=tuple(links))


def _measured() -> tuple[int, int, int]:
    """Bytes a second out and back, and nanoseconds of a map and an unmap."""
    import ebbtide._torch as _torch

    try:
        found = _torch.measure_device()
    except RuntimeError as error:
        raise PlatformError(str(error)) from error
    return max(1, round(found["out"])), max(1, round(found["back"])), round(found["latency_ns"])
