"""Every policy on real training: the same bits, its schedule followed, and bytes that moved.

``docs/planners.md`` says how each maps onto memory and a file.
"""

import json
import sys
from pathlib import Path

import pytest

from ebbtide.planners import BUILT_IN
from ebbtide.planning.policies import DEMAND
from tests.helpers import child
from tests.helpers.command import EBBTIDE, TRAIN_MLP, run
from tests.training.test_plans import compare_over_directories, compare_under_policy

SMALLEST = {"EBBTIDE_MIN_STORAGE": "4096"}
FAST = dict.fromkeys((*BUILT_IN, DEMAND), "50%") | {
    "10cache": "70%",  # leaves activations in memory
    "autotm-static": "93%",  # leaves in memory what any operation uses
    "resident": "100%",
    "zero-infinity": "70%",  # leaves activations in memory
}
MAY_EXCEED = (
    "ati-outliers",
    "tiertrain",
)  # whose sources have no rule that keeps a budget: the arena keeps it for them


@pytest.mark.alike
@pytest.mark.parametrize("policy", FAST)
def test_a_policy_trains_a_model_to_the_same_bits(policy: str) -> None:
    verdict, report, evicted_bytes, said = child.run(compare_under_policy, policy, FAST[policy], env=SMALLEST)
    assert verdict.differences == ()
    assert said == []
    assert not verdict.budget_violated
    assert verdict.modes == ("recorded",) * 2 + ("demand" if policy == DEMAND else "planned",) * 4
    if policy != DEMAND:
        assert report.plan.planner == policy
        assert report.plan.status in ("optimal", "feasible", "stopped", *(["over_budget"] * (policy in MAY_EXCEED)))
    fetched_bytes = sum(verdict.fetched_bytes.values())
    if policy == "resident":  # nothing moves, which is all it does
        assert (evicted_bytes, fetched_bytes) == (0, 0)
    elif policy == "autotm-static":  # what no operation uses leaves once and for all
        assert (evicted_bytes, fetched_bytes) == (4 * 512 * 512 * 4, 0)
    else:
        assert min(evicted_bytes, fetched_bytes) > 8 * 2**20


def test_a_plan_made_from_a_saved_trace_is_followed(tmp_path: Path) -> None:
    policy = "g10"
    size = ["--width", "512", "--depth", "4", "--rows", "512", "--steps", "5"]
    trace, plan, report, *results = (tmp_path / name for name in ("step.trace", "step.plan", "report", "0", "1", "2"))
    commands = [
        [sys.executable, TRAIN_MLP, *size, "--result", results[0]],
        [EBBTIDE, "run", "--fast", "50%", "--save-trace", trace, TRAIN_MLP, *size, "--result", results[1]],
        [EBBTIDE, "plan", trace, "--fast", "45%", "--policy", policy, "-o", plan],
        [EBBTIDE, "run", "--fast", "50%", "--plan", plan, "--report", report, TRAIN_MLP, *size, "--result", results[2]],
    ]
    for command in commands:
        run(*map(str, command), status=0)
    assert results[0].read_text() == results[1].read_text() == results[2].read_text()
    found = json.loads(report.read_text())
    assert found["plan"]["planner"] == policy
    assert [step["mode"] for step in found["steps"]] == ["recorded"] * 2 + ["planned"] * 3
    assert all(step["fetched_bytes"]["total"] > 0 for step in found["steps"][2:])


def test_several_spill_directories_share_what_moves_and_change_no_bit(tmp_path: Path) -> None:
    directories = [str(tmp_path.resolve() / name) for name in ("one", "two", "three")]
    for directory in directories:
        Path(directory).mkdir()
    verdict, pages = child.run(compare_over_directories, directories, env=SMALLEST)
    assert verdict.differences == ()
    assert verdict.modes[2:] == ("planned",) * 4
    assert sum(verdict.fetched_bytes.values()) > 0
    assert all(count > 256 for count in pages.values()), pages
    assert [list(Path(directory).iterdir()) for directory in directories] == [[], [], []]
