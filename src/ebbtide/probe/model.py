"""Turns findings into the Machine that planners see."""

from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Tier
from ebbtide.probe.figures import Direction, Figure, Findings

DRAM, FILE, GROUP = "dram", "file", "disk"


def machine_of(findings: Findings) -> Machine:
    """Return two tiers, a link each way with the speed of the runtime's own copies, and the rate of both at once."""
    return Machine(
        name=f"{findings.machine}, spilling to {findings.directory}",
        origin=Origin.MEASURED,
        tiers=(
            Tier(DRAM, InPlace.ALL, findings.memory_capacity_bytes, _at_least_1(findings.memory)),
            Tier(FILE, InPlace.NOTHING, findings.file_capacity_bytes),
        ),
        links=(
            _link(findings, Direction.OUT, DRAM, FILE),
            _link(findings, Direction.BACK, FILE, DRAM),
        ),
        groups=(LinkGroup(GROUP, _at_least_1(findings.moves[Direction.BOTH])),),
    )


def _link(findings: Findings, direction: Direction, source: str, target: str) -> Link:
    return Link(
        source,
        target,
        _at_least_1(findings.moves[direction]),
        latency_ns=round(findings.latency_ns[direction].median),
        shares=GROUP,
        slows_compute=round(findings.slowdown[direction].typical, 4),
    )


def _at_least_1(figure: Figure) -> int:
    return max(round(figure.median), 1)
