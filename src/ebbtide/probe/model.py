"""Turns findings into the Machine that planners see."""

from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Tier
from ebbtide.probe.figures import Direction, Figure, Findings

DRAM, FILE, GROUP = "dram", "file", "disk"


def machine_of(findings: Findings) -> Machine:
    """Return two tiers, a link each way with the speed of the runtime's own copies, and the rate of both at once."""
    memory, both = findings.memory, findings.runtime_moves(Direction.BOTH)
    return Machine(
        name=f"{findings.machine}, spilling to {findings.directory}",
        origin=Origin.MEASURED,
        tiers=(
            Tier(DRAM, InPlace.ALL, findings.memory_capacity_bytes, _at_least_1(memory), _spread(memory)),
            Tier(FILE, InPlace.NOTHING, findings.file_capacity_bytes),
        ),
        links=(
            _link(findings, Direction.OUT, DRAM, FILE),
            _link(findings, Direction.BACK, FILE, DRAM),
        ),
        groups=(LinkGroup(GROUP, _at_least_1(both), _spread(both)),),
    )


def _link(findings: Findings, direction: Direction, source: str, target: str) -> Link:
    moves, latency = findings.runtime_moves(direction), findings.latency_ns[direction]
    return Link(
        source,
        target,
        _at_least_1(moves),
        latency_ns=round(latency.median),
        shares=GROUP,
        slows_compute=round(findings.slowdown[direction].typical, 4),
        bytes_per_s_spread=_spread(moves),
        latency_ns_spread=_spread(latency),
    )


def _at_least_1(figure: Figure) -> int:
    return max(round(figure.median), 1)


def _spread(figure: Figure) -> int:
    return round(figure.spread)
