"""Plan: the place of every storage at every tick, and how it was found. Time is [Note: ticks].

Planners write it. ``check``, ``schedule``, the simulator and the report read it.

[Note: stays]
A stay reserves space on a tier during ticks [start, stop). Its contents are valid during [valid_from, stop).
- ``valid_from > start``: a copy is in flight during [start, valid_from), with space on both tiers.
- ``valid_from == start``: the storage is born here; or the stay continues one on the same tier; or it is a copy
  between two ticks, before ``start``, for which compute waits.
- Valid stays of one storage may overlap on different tiers. Then one is a clean replica, dropped without a write.
- A write at tick t makes all other replicas invalid. So they stop at t or before, and no copy is in flight.
- A stay is of a whole storage.
From birth to death a storage has a valid replica at every tick, or it is made anew (``remakes``): after a use no tier
has it, until a stay begins at its next use, with ``valid_from == start`` and without a source. Other contents a plan
never throws away, even if the next access overwrites them. A plan is advice: if it is wrong, no number may change.
"""

from dataclasses import dataclass
from enum import StrEnum

from ebbtide.ir.base import check_range


@dataclass(frozen=True, slots=True)
class Stay:
    """Space for a storage on a tier during ticks [start, stop); the contents are valid from ``valid_from``.

    Ticks are those of the step in which the storage was born. A persistent storage's stay starts in [0, T) and lasts
    at most T, so it may run past the step's end.
    """

    storage: int
    tier: str
    start: int
    valid_from: int
    stop: int

    def __post_init__(self) -> None:
        check_range(self, "storage start valid_from stop")
        if not self.start <= self.valid_from < self.stop:
            check_range(self, "valid_from", low=self.start)
            check_range(self, "stop", low=self.valid_from + 1)


class PlanStatus(StrEnum):
    """The quality that is known of a plan.

    OPTIMAL: proved that no plan is faster. FEASIBLE: keeps the budget. STOPPED: keeps the budget, but the search ran
    out of time. OVER_BUDGET: exceeds the budget, because the method has no rule that keeps it.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    STOPPED = "stopped"
    OVER_BUDGET = "over_budget"


@dataclass(frozen=True, slots=True)
class Plan:
    """The stays of every storage of the trace with this ``signature``, and how they were found.

    ``predicted_ns`` is the step's time under the plan, and ``lower_bound_ns`` a time that no plan can beat. Both are by
    the planner's own model. ``plan_ns`` is the measured time of planning.
    """

    planner: str
    status: PlanStatus
    signature: str
    budget_bytes: int
    predicted_ns: int
    lower_bound_ns: int
    plan_ns: int
    stays: tuple[Stay, ...]

    def __post_init__(self) -> None:
        if not self.planner.isprintable():
            raise ValueError("the planner's name must be printable")
        check_range(self, "budget_bytes lower_bound_ns plan_ns")
        check_range(self, "predicted_ns", low=self.lower_bound_ns)

    @property
    def gap(self) -> float:
        """The most that a plan could be faster: 0.05 means 5 % of the lower bound."""
        return (self.predicted_ns - self.lower_bound_ns) / max(self.lower_bound_ns, 1)
