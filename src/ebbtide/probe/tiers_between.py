"""Measures a machine with a run's tiers between memory and the spill file.

The arena's I/O threads make their copies, so they take a core from the operations beside them. Compressed memory packs;
the trace tells the packed bytes of storages. Memory of another NUMA node is used in place, and its pages move. Contents
then lie on one tier only, so such a machine is exclusive.
"""

import os
from collections.abc import Sequence
from dataclasses import replace

from ebbtide.errors import SettingError
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.settings import SlowerTier, TierKind


def with_tiers(machine: Machine, tiers: Sequence[SlowerTier]) -> Machine:
    """Add tiers to ``machine``, which has memory and the spill file.

    Raises SettingError for a tier that this machine does not have.
    """
    dram, file = machine.tiers
    between: list[Tier] = []
    links = list(machine.links)
    to_file, from_file = machine.link(dram.name, file.name), machine.link(file.name, dram.name)
    slows = 1 / len(os.sched_getaffinity(0))
    rates: dict[str, tuple[int, int]] = {}
    for tier in tiers:
        measured = _measured(tier)
        out, back = rates[tier.name] = measured["out"], measured["back"]
        links.append(Link(dram.name, tier.name, out, slows_compute=slows))
        links.append(Link(tier.name, dram.name, back, slows_compute=slows))
        for other in between:
            links.append(Link(other.name, tier.name, min(rates[other.name][1], out), slows_compute=slows))
            links.append(Link(tier.name, other.name, min(back, rates[other.name][0]), slows_compute=slows))
        for link, source, target in ((to_file, tier.name, file.name), (from_file, file.name, tier.name)):
            if link is not None:
                rate = min(link.bytes_per_s, back if source == tier.name else out)
                links.append(replace(link, source=source, target=target, bytes_per_s=rate))
        packs = tier.kind is TierKind.COMPRESSED
        between.append(Tier(tier.name, InPlace.NOTHING, tier.capacity_bytes, packs=packs))
        if tier.kind is TierKind.NUMA:
            if dram.bytes_per_s is None:
                dram = replace(dram, bytes_per_s=measured["fast_read"], write_bytes_per_s=measured["fast_write"])
            reads = _slower(dram.ns_per_byte(False), measured["read"], measured["fast_read"])
            writes = _slower(dram.ns_per_byte(True), measured["write"], measured["fast_write"])
            between[-1] = Tier(tier.name, InPlace.ALL, tier.capacity_bytes, reads, write_bytes_per_s=writes)
    exclusive = machine.exclusive or any(tier.kind is TierKind.NUMA for tier in tiers)
    return replace(machine, tiers=(dram, *between, file), links=tuple(links), exclusive=exclusive)


def render_between(machine: Machine) -> str:
    """Return the rates of tiers between the first and the last, a line each: of copies, and of operations in place."""
    between = {tier.name: tier for tier in machine.tiers[1:-1]}
    links = [link for link in machine.links if between.keys() & {link.source, link.target}]
    rows = [(link.name, f"{_gb_per_s(link.bytes_per_s)}, one at a time") for link in links]
    for tier in between.values():
        if tier.bytes_per_s is not None and tier.write_bytes_per_s is not None:
            rates = f"read at {_gb_per_s(tier.bytes_per_s)}, written at {_gb_per_s(tier.write_bytes_per_s)}"
            rows.append((f"{tier.name} in place", rates))
    return "\n".join(f"{label:<24}{rates}" for label, rates in rows)


def _gb_per_s(bytes_per_s: int) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s"


def _slower(memory_ns_per_byte: float, there: int, fast: int) -> int:
    """Return the bytes a second there. A byte takes as much longer than in memory as one thread measured."""
    return max(1, round(1e9 / (memory_ns_per_byte + max(0.0, 1e9 / there - 1e9 / fast))))


def _measured(tier: SlowerTier) -> dict[str, int]:
    import ebbtide._torch as _torch

    try:
        rates = _torch.measure_tier(tier.kind, tier.node)
    except (RuntimeError, ValueError) as error:
        raise SettingError(f"the tier {tier.name} cannot be had: {error}") from error
    return {name: max(1, round(rate)) for name, rate in rates.items()}
