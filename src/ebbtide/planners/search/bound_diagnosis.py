"""Finds which constraint that the lower bound leaves out makes it loose: what would a plan's gap be without each?

The simulator has each ``Constraint``; ``bound`` lacks it or counts only a part. For each there is a relaxed machine
without it. The plan's schedule is simulated there, and the bound is computed anew. The decrease of the gap is the
constraint's share. Shares need not add up to one, since constraints act together. ``together`` is the share of all of
them removed at once. The rest of the gap is the search's, or due to what no relaxation here removes: the order of
copies, and windows that lie across the step's end.

The plan is not made anew. A relaxed machine may have a better one, so shares are rather too small. The diagnosis takes
a few simulations and bounds, far less than planning.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import exact, occupancy, peak
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.remakes import split_plan
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.simulator import simulate_plan

TIGHT = 0.02
"""A gap up to this is small, and not examined."""
_FASTEST = 10**18
"""Bytes per s that take no time, where the first tier's speed is unknown."""
_WORTH_NAMING = 0.1
"""A constraint is named if its share of the gap is at least this."""


class Constraint(StrEnum):
    """A constraint that the bound leaves out, or does not count in full."""

    SLOWDOWN = "slowdown"
    SHARING = "sharing"
    LATENCY = "latency"
    PAGES = "pages"
    IN_PLACE = "in_place"


WORDS = {  # what it is, and how the bound treats it
    Constraint.SLOWDOWN: (
        "the slowdown of operations by copies",
        "in each stretch of the step it counts that, or the copies' own time, not both",
    ),
    Constraint.SHARING: ("bandwidth that links share", "its links take turns as suits best"),
    Constraint.LATENCY: ("the copies' latency", "it counts bytes alone"),
    Constraint.PAGES: ("pages that are used in part", "it counts bytes within each stretch of the step"),
    Constraint.IN_PLACE: ("slow operands in place", "it counts the operations' time in fast memory alone"),
}


@dataclass(frozen=True, slots=True)
class Looseness:
    """The constraints' shares of a plan's gap to the bound, each at most 1.

    ``shares`` has each constraint of the machine, the largest share first. ``together`` is the share of all of them. A
    share below 0 hides some of the gap.
    """

    gap: float
    shares: tuple[tuple[Constraint, float], ...]
    together: float

    @property
    def named(self) -> Constraint | None:
        """The constraint that loosens the bound most, or None where none explains a tenth of the gap."""
        return self.shares[0][0] if self.shares and self.shares[0][1] >= _WORTH_NAMING else None

    def as_json(self) -> dict[str, object]:
        """Return plain figures, each a share of the gap."""
        shares = {str(constraint): share for constraint, share in self.shares}
        return {"named": self.named, "shares": shares, "together": self.together, "unexplained": 1 - self.together}

    def sentence(self) -> str:
        """Return the explanation for people, to be shown after the gap."""
        if self.named is None:
            return "nothing that the bound leaves out explains it: it is the search's, or that of the copies' order"
        (what, why), of_the_gap = WORDS[self.named], f"{_percent(self.shares[0][1])} of the gap"
        first = f"the bound does not count {what} in full ({why}): {of_the_gap}"
        if len(self.shares) == 1:
            return first
        others = [f", {WORDS[each][0]} {_percent(share)}" for each, share in self.shares[1:] if share >= _WORTH_NAMING]
        return (
            f"{first}{''.join(others)}, each by itself; all that it leaves out makes {_percent(self.together)} "
            f"together; the other {_percent(1 - self.together)} are the search's, or that of the copies' order"
        )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def looseness_of(plan: Plan, trace: Trace, machine: Machine) -> Looseness | None:
    """Explain a plan's gap. Returns None where the gap is ``TIGHT``, or the plan keeps no budget."""
    if plan.status is PlanStatus.OVER_BUDGET or plan.gap <= TIGHT:
        return None
    machine = machine.with_budget(plan.budget_bytes)
    gap = _gap(plan, trace, machine)
    if gap <= 0:
        return None  # the planner's own model is not the simulator
    shares, everything = [], machine
    for constraint, relax in _RELAX.items():
        if (relaxed := relax(machine, plan, trace)) is not None:
            shares.append((constraint, 1 - _gap(plan, trace, relaxed) / gap))
            everything = relax(everything, plan, trace) or everything
    shares.sort(key=lambda pair: -pair[1])
    return Looseness(gap, tuple(shares), 1 - _gap(plan, trace, everything) / gap if shares else 0.0)


def _gap(plan: Plan, trace: Trace, machine: Machine) -> float:
    page_bytes, budget = page_size_of(machine), machine.tiers[0].capacity_bytes
    assert budget is not None
    step_ns = simulate_plan(plan, trace, machine, page_bytes).step_ns
    bound = lower_bound_ns(trace, machine, budget)
    return step_ns / max(bound, 1) - 1


def _links_without(field: str, nothing: Any, machine: Machine, _plan: Plan, _trace: Trace) -> Machine | None:
    if all(getattr(link, field) == nothing for link in machine.links):
        return None
    return replace(machine, links=tuple(replace(link, **{field: nothing}) for link in machine.links))


def _no_pages(machine: Machine, plan: Plan, trace: Trace) -> Machine | None:
    """Count exact bytes. Capacity is what the plan uses, so its loss to pages makes no room for a better plan."""
    fast, *slower = machine.tiers
    if fast.page_bytes == 1:
        return None
    split, step, _ = split_plan(plan, trace)
    used = peak(occupancy(step, split.stays, [fast.name], exact)[fast.name])
    return replace(machine, tiers=(replace(fast, page_bytes=1, capacity_bytes=used), *slower))


def _no_cost_in_place(machine: Machine, _plan: Plan, _trace: Trace) -> Machine | None:
    fast, *slower = machine.tiers
    if not any(tier.in_place.reads for tier in slower):
        return None
    rate = _FASTEST if fast.bytes_per_s is None else fast.bytes_per_s
    alike = (replace(tier, bytes_per_s=rate, write_bytes_per_s=fast.write_bytes_per_s) for tier in slower)
    return replace(machine, tiers=(fast, *alike))


_RELAX: dict[Constraint, Callable[[Machine, Plan, Trace], Machine | None]] = {
    Constraint.SLOWDOWN: partial(_links_without, "slows_compute", 0.0),
    Constraint.SHARING: partial(_links_without, "shares", None),
    Constraint.LATENCY: partial(_links_without, "latency_ns", 0),
    Constraint.PAGES: _no_pages,
    Constraint.IN_PLACE: _no_cost_in_place,
}
"""Each function returns the machine without its constraint, or None if the machine does not have it."""
