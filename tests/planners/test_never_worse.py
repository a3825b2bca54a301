"""``ebbtide`` is never slower than another planner: random steps, a network's, and a recorded one, on all machines."""

from dataclasses import replace
from time import perf_counter_ns

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.errors import InfeasibleBudgetError, PlanError
from ebbtide.ir.files import load
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.plan import PlanStatus
from ebbtide.ir.trace import Storages, Trace
from ebbtide.machines import find_machine, names
from ebbtide.planners import BUILT_IN, plan
from ebbtide.planners.base import page_size_of
from ebbtide.planners.rivals import rival_plans
from ebbtide.simulator import simulate
from ebbtide.simulator.lowering import lower
from tests.helpers.make_steps import budget_at, disk, network, page_traces
from tests.helpers.paths import DATA

pytestmark = pytest.mark.slow

RECORDED = DATA / "mlp.trace"
"""Of ``ebbtide trace`` on scripts/train_mlp.py --width 1024 --depth 2 --rows 512."""


def times_ns(trace: Trace, machine: Machine, share: float) -> dict[str, int]:
    """The simulated step of each planner that has a plan within the budget."""
    page_bytes, found = page_size_of(machine), dict[str, int]()
    budget = budget_at(trace, share, page_bytes)
    bounded = machine.with_budget(budget)
    for name in BUILT_IN:
        try:
            made = plan(name, trace, machine, budget)
        except (InfeasibleBudgetError, PlanError):
            continue
        if made.status is not PlanStatus.OVER_BUDGET:
            found[name] = simulate(lower(made, trace, bounded), trace, bounded, page_bytes).step_ns
    return found


def assert_none_is_faster(found: dict[str, int]) -> None:
    ours = found["ebbtide"]
    assert all(ours <= theirs * (1 + 1e-9) for theirs in found.values()), found


@pytest.mark.parametrize("name", names())
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(trace=page_traces(tenants=True), share=st.floats(0, 1))
def test_on_random_steps(name: str, trace: Trace, share: float) -> None:
    larger = replace(trace, storages=Storages.from_rows(replace(row, nbytes=row.nbytes * 32) for row in trace.storages))
    assert_none_is_faster(times_ns(larger, find_machine(name), share))


@pytest.mark.alike
@pytest.mark.parametrize("name", names())
def test_on_a_network(name: str) -> None:
    found = times_ns(network(layers=3, width_bytes=2**20), find_machine(name), 0.3)
    assert len(found) >= 5
    assert_none_is_faster(found)


@pytest.mark.alike
@pytest.mark.parametrize("name", names())
def test_on_a_recorded_step(name: str) -> None:
    found = times_ns(load(RECORDED, Trace), find_machine(name), 0.3)
    assert len(found) >= 5
    assert_none_is_faster(found)


def test_in_larger_steps_the_quickest_are_asked_and_no_solver() -> None:
    trace, machine = network(layers=260), disk()
    assert len(trace.accesses) + len(trace.ticks) > 4_000
    budget = peak(live_bytes(trace, page_size_of(machine))) // 2
    asked = rival_plans(trace, machine, budget, perf_counter_ns() + 60 * 10**9)
    assert {rival.planner for rival in asked} == {"ati-outliers", "g10"}
