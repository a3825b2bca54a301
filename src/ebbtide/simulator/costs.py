"""Costs of a simulated step beside time: energy, money and wear. It also shows how busy tiers and links were.

The energy of a move is 8 * bytes * (read of its source + link + write of its target). An operation's access costs that
of the tier where it lies. Added to both is power over the step's time: at rest for all that the tiers have, and for
what computes. Money is the price of the tiers, and the total cost of ownership of a step. That is the whole machine
written off over its years, and the electricity, for the step's time. It is AutoTM's argument: a slower step on cheaper
memory occupies the same CPUs for longer. A tier counts with its capacity, and one without a bound with the most that it
held.

What the machine does not say is None. Left out: cooling, and energy of operations beside ``busy_w``.
"""

from dataclasses import dataclass

from ebbtide.ir.machine import Machine
from ebbtide.simulator.result import Outcome
from ebbtide.units import seconds

_GB = 10**9
_PJ_PER_J = 1e12
_YEAR_S = 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one step; None where the machine does not say enough.

    ``moves_j`` and ``accesses_j`` are dynamic, ``static_j`` is at rest, and ``compute_j`` is for what computes.
    ``steps_per_j`` is the throughput per watt. ``memory_usd`` is the price of the tiers, and ``step_usd`` the total
    cost of ownership of one step. ``written_bytes`` are by tier, of copies and operations. ``years`` is how long each
    tier that wears out lasts at this rate.
    """

    moves_j: float | None
    accesses_j: float | None
    static_j: float | None
    compute_j: float
    memory_usd: float | None
    step_usd: float | None
    written_bytes: dict[str, int]
    years: dict[str, float]
    tier_utilisation: dict[str, float]
    link_utilisation: dict[str, float]

    @property
    def energy_j(self) -> float | None:
        """The total energy."""
        if self.moves_j is None or self.accesses_j is None or self.static_j is None:
            return None
        return self.moves_j + self.accesses_j + self.static_j + self.compute_j

    @property
    def steps_per_j(self) -> float | None:
        """Steps a second for each watt."""
        return 1 / self.energy_j if self.energy_j else None


def costs_of(outcome: Outcome, machine: Machine) -> Costs:
    """Add up the costs. ``machine`` is the simulated one, so fast memory counts with the budget."""
    step_s = seconds(outcome.step_ns)
    held = {
        tier.name: outcome.tiers[tier.name].peak_bytes if tier.capacity_bytes is None else tier.capacity_bytes
        for tier in machine.tiers
    }
    memory_usd = _sum([None if tier.usd_per_gb is None else held[tier.name] / _GB * tier.usd_per_gb
                       for tier in machine.tiers])  # fmt: skip
    power_w = _sum([None if tier.static_mw_per_gb is None else held[tier.name] / _GB * tier.static_mw_per_gb / 1e3
                    for tier in machine.tiers])  # fmt: skip
    waiting_s = seconds(outcome.exposed_ns)
    compute_j = machine.compute.busy_w * (step_s - waiting_s) + machine.compute.idle_w * waiting_s
    written = {name: use.written_bytes for name, use in outcome.tiers.items()}
    for link in machine.links:
        written[link.target] += outcome.moved_bytes.get(link.name, 0)
    moves_j, accesses_j = _moves_j(outcome, machine), _accesses_j(outcome, machine)
    static_j = None if power_w is None else power_w * step_s
    energy = _sum([moves_j, accesses_j, static_j, compute_j])
    return Costs(
        moves_j,
        accesses_j,
        static_j,
        compute_j,
        memory_usd,
        _step_usd(machine, memory_usd, energy, step_s),
        written,
        {
            tier.name: tier.endurance_bytes / written[tier.name] * step_s / _YEAR_S
            for tier in machine.tiers
            if tier.endurance_bytes is not None and written[tier.name]
        },
        {
            tier.name: outcome.tiers[tier.name].mean_bytes / tier.capacity_bytes
            for tier in machine.tiers
            if tier.capacity_bytes
        },
        {
            link.name: outcome.moved_bytes.get(link.name, 0) / (link.bytes_per_s * step_s) if step_s else 0.0
            for link in machine.links
        },
    )


def _sum(parts: list[float | None]) -> float | None:
    """Add up parts; None as soon as one is unknown."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _moves_j(outcome: Outcome, machine: Machine) -> float | None:
    total = 0.0
    for link in machine.links:
        nbytes = outcome.moved_bytes.get(link.name, 0)
        read, write = machine.tier(link.source).read_pj_per_bit, machine.tier(link.target).write_pj_per_bit
        if nbytes and (read is None or write is None):
            return None
        total += 8 * nbytes * ((read or 0.0) + link.pj_per_bit + (write or 0.0)) / _PJ_PER_J
    return total


def _accesses_j(outcome: Outcome, machine: Machine) -> float | None:
    total = 0.0
    for tier in machine.tiers:
        use = outcome.tiers[tier.name]
        for nbytes, pj in ((use.read_bytes, tier.read_pj_per_bit), (use.written_bytes, tier.write_pj_per_bit)):
            if nbytes and pj is None:
                return None
            total += 8 * nbytes * (pj or 0.0) / _PJ_PER_J
    return total


def _step_usd(machine: Machine, memory_usd: float | None, energy_j: float | None, step_s: float) -> float | None:
    if memory_usd is None or machine.cost.rest_usd is None:
        return None
    owned = (memory_usd + machine.cost.rest_usd) * step_s / (machine.cost.years * _YEAR_S)
    return owned + (energy_j or 0.0) / 3.6e6 * machine.cost.usd_per_kwh
