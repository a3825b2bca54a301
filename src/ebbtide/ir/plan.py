"""Plan: where every storage lies at every tick, and how that was found. Time is [Note: ticks].

Who writes it: planners. Who reads it: ``check``, ``schedule``, the simulator, the report.

[Note: stays]
A stay is room on a tier during ticks [start, stop), with contents valid during [valid_from, stop).
- ``valid_from > start``: a copy in flight during [start, valid_from), with room on both tiers.
- ``valid_from == start``: the storage is born here; or the stay goes on from one on the same tier; or it is a copy
  between two ticks, before ``start``, for which compute waits.
- Valid stays of one storage may overlap on different tiers: a clean replica, which is dropped without a write.
- A write at tick t makes all other replicas invalid, so they stop at t or before, and no copy is in flight.
- A stay is of a whole storage.
From birth to death a storage has a valid replica at every tick. A plan never throws contents away, even if the next
access overwrites them: a plan is advice, and if it is wrong no number may change.
"""

from dataclasses import dataclass
from enum import StrEnum

from ebbtide.ir.base import check_range


@dataclass(frozen=True, slots=True)
class Stay:
    """A storage has room on a tier during ticks [start, stop), valid from ``valid_from``.

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
    """How good a plan is known to be.

    OPTIMAL: no plan is faster, proved. FEASIBLE: keeps the budget. STOPPED: keeps the budget; the search ran out of
    time. OVER_BUDGET: the method has no rule that keeps the budget, and its plan does not.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    STOPPED = "stopped"
    OVER_BUDGET = "over_budget"


@dataclass(frozen=True, slots=True)
class Plan:
    """The stays of every storage of the trace with this ``signature``, and how they were found.

    ``predicted_ns`` is the step's time under the plan, ``lower_bound_ns`` one that no plan can beat, both by the
    planner's own model; ``plan_ns`` is how long the planner took, measured.
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
        check_range(self, "budget_bytes lower_bound_ns plan_ns")
        check_range(self, "predicted_ns", low=self.lower_bound_ns)

    @property
    def gap(self) -> float:
        """How much faster a plan could be at most: 0.05 means 5 % of the lower bound."""
        return (self.predicted_ns - self.lower_bound_ns) / max(self.lower_bound_ns, 1)
