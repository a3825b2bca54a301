"""Simulates one policy or plan on one machine, for ``simulate``, ``compare`` and ``sweep``."""

from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from ebbtide import simulator
from ebbtide.errors import InfeasibleBudgetError, PlanError, SettingError, TiersTooSmallError, unknown_name
from ebbtide.ir.check import require_tiers
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace
from ebbtide.planners import BUILT_IN, PLANNERS, plan
from ebbtide.planners.base import page_size_of
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.simulator import POLICIES, SCORES, Outcome, simulate_policy
from ebbtide.simulator.costs import Costs, costs_of


@dataclass(frozen=True, slots=True)
class Trial:
    """A simulated policy or plan. ``outcome`` and ``costs`` are None where the budget cannot be kept; ``failure`` then
    says why. ``planned`` is the plan that was simulated, None for an online policy.
    """

    policy: str
    budget_bytes: int
    bound_ns: int
    outcome: Outcome | None
    costs: Costs | None
    planned: Plan | None
    took_s: float
    failure: Exception | None = None

    @property
    def why_not(self) -> str:
        """The reason in words, "" where there is an outcome."""
        return "" if self.failure is None else str(self.failure)

    @property
    def least_bytes(self) -> int | None:
        """The smallest budget that can work, if this one cannot and that one is known."""
        return getattr(self.failure, "minimum_bytes", None)

    @property
    def over_bound(self) -> float | None:
        """The step's time over the bound."""
        return None if self.outcome is None else self.outcome.step_ns / max(self.bound_ns, 1)

    @property
    def gap(self) -> float | None:
        """The most that a faster plan could beat it by: 0.05 is 5 % of the bound."""
        return None if self.over_bound is None else self.over_bound - 1


def policies() -> list[str]:
    """List online policies and planners."""
    return [*POLICIES, *(name for name in SCORES if name not in PLANNERS and name not in POLICIES), *PLANNERS]


def named(names: str | None) -> list[str]:
    """Split ``lru,ebbtide`` into a list; None gives all. Raises SettingError for an unknown name."""
    chosen = policies() if names is None else [name.strip() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in policies()]:
        raise unknown_name("policy", unknown[0], policies())
    return chosen


def simulate_plan(plan: Plan, trace: Trace, machine: Machine, budget_bytes: int, record: bool = False) -> Outcome:
    """Simulate a plan within a budget, whatever it was made for. Raises PlanError for a plan of other tiers, and
    ValueError for one that does not fit whatever is evicted."""
    require_tiers(plan, machine)
    within = machine.with_budget(budget_bytes)
    return simulator.simulate_plan(plan, trace, within, page_size_of(machine), record=record)


def simulate_named(
    policy: str, trace: Trace, machine: Machine, budget_bytes: int, record: bool = False
) -> tuple[Outcome, Plan | None]:
    """Simulate an online policy, or a planner's plan, which it makes first. Raises what planning raises."""
    if policy not in PLANNERS:
        within = machine.with_budget(budget_bytes)
        return simulate_policy(policy, trace, within, page_size_of(machine), record=record), None
    made = plan(policy, trace, machine, budget_bytes)
    return simulate_plan(made, trace, machine, budget_bytes, record), made


def try_policy(policy: str, trace: Trace, machine: Machine, budget_bytes: int, record: bool = False) -> Trial:
    """Plan if it has to, and simulate. An infeasible budget is a result, not an error, and so is whatever another
    package's planner or policy raises."""
    bound = lower_bound_ns(trace, machine, machine.within(budget_bytes))
    began = perf_counter()
    try:
        outcome, made = simulate_named(policy, trace, machine, budget_bytes, record)
    except (InfeasibleBudgetError, TiersTooSmallError, PlanError, ValueError) as error:
        if isinstance(error, SettingError) and (policy in POLICIES or policy in BUILT_IN):
            raise  # of a machine: no budget mends it
        return Trial(policy, budget_bytes, bound, None, None, None, perf_counter() - began, error)
    costs = costs_of(outcome, machine.with_budget(budget_bytes))
    return Trial(policy, budget_bytes, bound, outcome, costs, made, perf_counter() - began)


def try_plan(made: Plan, trace: Trace, machine: Machine, budget_bytes: int, record: bool = False) -> Trial:
    """Simulate a plan within a budget. Raises ValueError for one that does not fit whatever is evicted."""
    bound = lower_bound_ns(trace, machine, machine.within(budget_bytes))
    began = perf_counter()
    outcome = simulate_plan(made, trace, machine, budget_bytes, record)
    costs = costs_of(outcome, machine.with_budget(budget_bytes))
    return Trial(made.planner, budget_bytes, bound, outcome, costs, made, perf_counter() - began)


def noisy(trace: Trace, share: float, seed: int) -> Trace:
    """Return the step with each operation's time longer or shorter by up to ``share`` of it, evenly drawn."""
    times = trace.ticks.time_ns
    factors = 1 + share * np.random.default_rng(seed).uniform(-1, 1, len(times))
    return replace(trace, ticks=replace(trace.ticks, time_ns=np.rint(times * factors).astype(np.int64)))


def again(row: Trial, trace: Trace, machine: Machine) -> float | None:
    """Simulate the same plan or policy on the step with other times. Return its time over the bound of that step."""
    if row.outcome is None:
        return None
    if row.planned is not None:
        outcome = simulate_plan(row.planned, trace, machine, row.budget_bytes)
    else:
        outcome, _ = simulate_named(row.policy, trace, machine, row.budget_bytes)
    return outcome.step_ns / max(lower_bound_ns(trace, machine, machine.within(row.budget_bytes)), 1)
