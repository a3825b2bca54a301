"""Measures a NUMA node's memory in place: the rates of operations there, and the time of a load.

Left out: the node on which the threads run, which the system chooses.
"""

import ctypes
import mmap
import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from ebbtide.errors import SettingError
from ebbtide.ir.machine import Machine
from ebbtide.probe.figures import Figure
from ebbtide.settings import SlowerTier, TierKind
from ebbtide.units import MIB, format_bytes

_LATENCY_BYTES = _RATE_BYTES = 64 * MIB
_ROUNDS = 9
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class NodeMemory:
    """A tensor of ``nbytes`` whose pages all lie on the node. Raises SettingError."""

    def __init__(self, node: int, nbytes: int) -> None:
        import ebbtide._torch as _torch

        pages = mmap.mmap(-1, nbytes, flags=_PRIVATE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        if error := _torch.place_on_node(address, nbytes, node):
            raise SettingError(
                f"{format_bytes(nbytes)} of NUMA node {node}'s memory cannot be had ({os.strerror(error)}): leave "
                "the tier out, or free memory there"
            )
        self.buffer = torch.frombuffer(pages, dtype=torch.uint8)  # keeps the pages

    def settle(self) -> None:
        """Do nothing: written bytes are there at once."""

    def leave_memory(self) -> None:
        """Do nothing: the bytes lie where they should."""

    def resident_share(self) -> float:
        """Return 0, since nothing of it ever has to leave."""
        return 0.0


def with_nodes(machine: Machine, tiers: Sequence[SlowerTier]) -> Machine:
    """Add the rates of operations in a node's tiers, and the time of a load there and in memory.

    Raises SettingError.
    """
    import ebbtide._torch as _torch

    nodes = {tier.name: tier.node for tier in tiers if tier.kind is TierKind.NUMA}
    dram, *slower = machine.tiers
    if not nodes or dram.bytes_per_s is None:
        return machine
    found = [replace(dram, load_ns=round(_torch.load_latency_ns(-1, _LATENCY_BYTES), 1))]
    for tier in slower:
        if tier.name in nodes:
            node = nodes[tier.name]
            reading, writing = in_place_rates(node, dram.bytes_per_s)
            load_ns = round(_torch.load_latency_ns(node, _LATENCY_BYTES), 1)
            tier = replace(tier, bytes_per_s=reading, write_bytes_per_s=writing, load_ns=load_ns)
        found.append(tier)
    return replace(machine, tiers=tuple(found))


def in_place_rates(node: int, memory_bytes_per_s: int) -> tuple[int, int]:
    """Return the bytes a second at which the node's memory is read, and is written.

    The rates follow from the extra time of a copy with one side there, beyond one within this process's memory. The
    formula for operations in place counts in the same way ([Note: in place]).
    """
    there, here = NodeMemory(node, _RATE_BYTES).buffer, torch.ones(_RATE_BYTES, dtype=torch.uint8)
    target = torch.zeros(_RATE_BYTES, dtype=torch.uint8)
    there.copy_(here)
    ways = {"within": (target, here), "reading": (target, there), "writing": (there, here)}
    took: dict[str, list[float]] = {way: [] for way in ways}
    order = random.Random(0)
    for _ in range(_ROUNDS):
        for way in order.sample(sorted(ways), len(ways)):
            into, source = ways[way]
            began = time.perf_counter_ns()
            into.copy_(source)
            took[way].append(float(time.perf_counter_ns() - began))
    within = Figure.of(took["within"]).median
    return _rate(took["reading"], within, memory_bytes_per_s), _rate(took["writing"], within, memory_bytes_per_s)


def _rate(took_ns: Sequence[float], within_ns: float, memory_bytes_per_s: int) -> int:
    longer_ns = max(0.0, Figure.of(took_ns).median - within_ns) / _RATE_BYTES
    return max(1, round(1e9 / (1e9 / memory_bytes_per_s + longer_ns)))


def render_nodes(machine: Machine) -> str:
    """Return a line for each tier whose time of a load is known: the nodes', and memory beside them."""
    lines = [f"{'in place':<24}{'reading':>13}{'writing':>13}{'a load':>10}"]
    for tier in machine.tiers:
        if tier.load_ns is not None and tier.bytes_per_s is not None:
            reading, writing = tier.bytes_per_s / 1e9, (tier.write_bytes_per_s or tier.bytes_per_s) / 1e9
            lines.append(f"{tier.name:<24}{reading:>8.2f} GB/s{writing:>8.2f} GB/s{tier.load_ns:>7.1f} ns")
    return "\n".join(lines)
