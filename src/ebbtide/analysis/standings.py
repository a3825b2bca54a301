"""How policies stand over many simulated steps: their places, and medians of what they take over the bound."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median
from typing import TypeAlias

OverBound: TypeAlias = Mapping[str, float | None]
"""A step's time over its bound, by policy. None: the policy has no plan."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One step on one machine within one budget, which is ``fast`` as it was asked for. ``noisy`` has as many draws of
    operations' times as were made."""

    fast: str
    over_bound: OverBound
    noisy: tuple[OverBound, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy. ``plans`` is the number of cells in which it has one. ``place`` is its mean place, where 1 is the
    fastest. ``over_bound`` has the median by budget; None says that in half of the cells it has no plan.

    ``noisy_place`` and ``noisy_over_bound`` are the same over all draws of all cells; None without draws.
    """

    policy: str
    plans: int
    place: float
    over_bound: Mapping[str, float | None]
    noisy_place: float | None
    noisy_over_bound: float | None


def places(found: OverBound) -> dict[str, float]:
    """Give each policy its place. Equal ones share the mean of theirs, and those without a plan share the last."""
    times = {policy: inf if over is None else over for policy, over in found.items()}
    return {
        policy: sum(other < time for other in times.values()) + (1 + sum(other == time for other in times.values())) / 2
        for policy, time in times.items()
    }


def standings(cells: Sequence[Cell], budgets: Sequence[str]) -> list[Standing]:
    """Return how the policies of the cells stand, the best place first. Each cell MUST have the same policies.
    ``budgets`` is their order; one without cells is left out."""
    if not cells:
        return []
    budgets = [fast for fast in budgets if any(cell.fast == fast for cell in cells)]
    recorded = [cell.over_bound for cell in cells]
    noisy = [draw for cell in cells for draw in cell.noisy]
    found = [
        Standing(
            policy,
            sum(over[policy] is not None for over in recorded),
            _mean_place(policy, recorded),
            {fast: _median(policy, [cell.over_bound for cell in cells if cell.fast == fast]) for fast in budgets},
            _mean_place(policy, noisy) if noisy else None,
            _median(policy, noisy) if noisy else None,
        )
        for policy in recorded[0]
    ]
    return sorted(found, key=lambda standing: (standing.place, standing.policy))


def _mean_place(policy: str, found: Sequence[OverBound]) -> float:
    return fmean(places(over)[policy] for over in found)


def _median(policy: str, found: Sequence[OverBound]) -> float | None:
    """Of an even number the mean of both in the middle, as long as both are plans."""
    middle = median(inf if (over := one[policy]) is None else over for one in found)
    return None if middle == inf else middle
