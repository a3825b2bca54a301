"""A plan of a file, for a step and a machine at hand."""

from dataclasses import replace
from pathlib import Path

from ebbtide.ir.files import save
from ebbtide.planners import plan
from ebbtide.planning.policies import planner_from
from tests.helpers.make_steps import budget_at, disk, network, simulated


def test_a_files_plan_has_the_times_of_the_step_and_the_machine_at_hand(tmp_path: Path) -> None:
    """Its own are of another day, or of another machine."""
    fast, slow = disk(2 * 10**9, 2 * 10**9), disk(10**8, 10**8)
    step = network()
    made = plan("ebbtide", step, fast, budget_at(step, 0.6))
    save(made, tmp_path / "made.plan")
    for machine in (fast, slow):
        found = planner_from(tmp_path / "made.plan")(step, machine, made.budget_bytes)
        expected_ns = simulated(made, step, machine).step_ns
        assert (found.predicted_ns, found.lower_bound_ns) == (expected_ns, step.step_ns)
        assert replace(found, **{name: getattr(made, name) for name in OF_TIMES}) == made
    assert found.predicted_ns > 2 * made.predicted_ns


OF_TIMES = ("status", "predicted_ns", "lower_bound_ns")
