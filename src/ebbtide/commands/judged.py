"""One policy on one machine, simulated: what ``simulate``, ``compare`` and ``sweep`` show, and their JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ebbtide.errors import InfeasibleBudgetError, PlanError, SettingError
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan
from ebbtide.ir.schedule import lower
from ebbtide.ir.trace import Trace
from ebbtide.planners import DEFAULT, PLANNERS, plan
from ebbtide.planners.absences import absences_of
from ebbtide.planners.base import page_size_of
from ebbtide.planners.bound import lower_bound_ns
from ebbtide.planners.looseness import Looseness, looseness_of
from ebbtide.simulate import POLICIES, Outcome, is_modelled, simulate, simulate_policy
from ebbtide.simulate.costs import Costs, costs_of


@dataclass(frozen=True, slots=True)
class Judged:
    """``outcome`` and ``costs`` are None where the budget cannot be kept; ``why_not`` then says why.

    ``planned`` is the plan that was simulated, None for an online policy.
    """

    policy: str
    budget_bytes: int
    bound_ns: int
    outcome: Outcome | None
    costs: Costs | None
    planned: Plan | None
    took_s: float
    why_not: str = ""

    @property
    def gap(self) -> float | None:
        """By how much a faster plan could beat it at most: 0.05 is 5 % of the bound."""
        return None if self.outcome is None else self.outcome.step_ns / max(self.bound_ns, 1) - 1


def policies() -> list[str]:
    """Online policies and planners."""
    return [*POLICIES, *PLANNERS]


def named(names: str | None) -> list[str]:
    """``lru,ebbtide`` as a list; all without it. Raises SettingError."""
    chosen = policies() if names is None else [name.strip() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in policies()]:
        raise SettingError(f"there is no policy {unknown[0]!r:.80}; there are {', '.join(policies())}")
    return chosen


def judge(policy: str, trace: Trace, machine: Machine, budget_bytes: int, record: bool = False) -> Judged:
    """Plans if it has to, and simulates. An infeasible budget is a result, not an error."""
    bound = bound_ns(trace, machine, budget_bytes)
    began = perf_counter()
    try:
        if policy in POLICIES:
            within = machine.with_budget(budget_bytes)
            outcome = simulate_policy(policy, trace, within, page_size_of(machine), record=record)
            costs = costs_of(outcome, within)
            return Judged(policy, budget_bytes, bound, outcome, costs, None, perf_counter() - began)
        made = plan(policy, trace, machine, budget_bytes)
        return judge_plan(made, trace, machine, budget_bytes, bound, began, record)
    except (InfeasibleBudgetError, PlanError, ValueError) as error:
        return Judged(policy, budget_bytes, bound, None, None, None, perf_counter() - began, str(error))


def judge_plan(
    made: Plan, trace: Trace, machine: Machine, budget_bytes: int, bound: int, began: float, record: bool = False
) -> Judged:
    """Simulates a plan within a budget. ValueError for one that does not fit, whatever leaves."""
    within = machine.with_budget(budget_bytes)
    outcome = simulate(lower(made, trace, machine), trace, within, page_size_of(machine), record=record)
    costs = costs_of(outcome, within)
    return Judged(made.planner, budget_bytes, bound, outcome, costs, made, perf_counter() - began)


def bound_ns(trace: Trace, machine: Machine, budget_bytes: int) -> int:
    """A time that nobody can beat: the compute alone where operations may use a slower tier, and need no moves."""
    if any(tier.in_place.reads for tier in machine.tiers[1:]):
        return trace.step_ns
    absences = absences_of(trace, machine.exclusive, page_size_of(machine))
    return max(lower_bound_ns(trace, machine, absences, budget_bytes), trace.step_ns)


def loosened(row: Judged, trace: Trace, machine: Machine) -> Looseness | None:
    """What makes the bound loose for our own plan, where there is one and its gap is not small."""
    if row.planned is None or row.planned.planner != DEFAULT:
        return None
    return looseness_of(row.planned, trace, machine)


def as_json(row: Judged, trace: Trace, machine: Machine) -> dict[str, Any]:
    """All figures of a row, plain. Everything is simulated; ``compute`` says where operations' times come from."""
    head = {
        "policy": row.policy,
        "machine": machine.name,
        "origin": "simulated",
        "compute": "modelled" if is_modelled(machine) else str(trace.origin),
        "budget_bytes": row.budget_bytes,
        "feasible": row.outcome is not None,
        "resident_ns": trace.step_ns,
        "lower_bound_ns": row.bound_ns,
        "took_s": round(row.took_s, 3),
    }
    if row.outcome is None or row.costs is None:
        return {**head, "why_not": row.why_not}
    outcome, costs = row.outcome, row.costs
    return {
        **head,
        "step_ns": outcome.step_ns,
        "gap": row.gap,
        "planned_ns": None if row.planned is None else row.planned.predicted_ns,
        "status": None if row.planned is None else str(row.planned.status),
        "stalls_ns": {str(kind): spent for kind, spent in outcome.stalls.items()},
        "exposed_share": outcome.exposed_ns / max(outcome.step_ns, 1),
        "in_place_ns": outcome.slower_ns,
        "hit_rate": outcome.hit_rate,
        "demand_fetches": outcome.demand_fetches,
        "demand_fetch_bytes": outcome.demand_bytes,
        "rescues": outcome.rescues,
        "tiers": {
            name: {
                "mean_bytes": use.mean_bytes,
                "peak_bytes": use.peak_bytes,
                "read_bytes": use.read_bytes,
                "written_bytes": use.written_bytes,
                "utilisation": costs.tier_utilisation.get(name),
                "wear_bytes": costs.written_bytes[name],
                "wears_out_years": costs.years.get(name),
            }
            for name, use in outcome.tiers.items()
        },
        "links": {
            name: {"moved_bytes": outcome.moved_bytes.get(name, 0), "utilisation": share}
            for name, share in costs.link_utilisation.items()
        },
        "energy_j": {
            "moves": costs.moves_j,
            "accesses": costs.accesses_j,
            "static": costs.static_j,
            "compute": costs.compute_j,
            "all": costs.energy_j,
        },
        "steps_per_j": costs.steps_per_j,
        "memory_usd": costs.memory_usd,
        "step_usd": costs.step_usd,
    }


def write_json(rows: Sequence[dict[str, Any]] | dict[str, Any], path: Any) -> None:
    """Raises SettingError where it cannot be written."""
    import json

    from ebbtide.whole_file import write_whole

    try:
        write_whole(path, (json.dumps(rows, indent=1, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise SettingError(f"cannot write {path}: {error}") from error
