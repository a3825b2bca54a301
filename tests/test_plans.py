"""Recording, planning and replay on real training: traces hold what happened, and a wrong plan changes no bit."""

from pathlib import Path

import child
import pytest

from ebbtide.ir.files import load
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace

SMALLEST = {"EBBTIDE_MIN_STORAGE": "4096"}
GPT = "gpt2-adamw-fused"
READ, WRITE, BOTH = 1, 2, 3


def test_a_trace_holds_the_accesses_that_the_model_makes() -> None:
    stories = child.run("cases_plans:known_accesses", env=SMALLEST)
    assert stories["filled"] == [("", WRITE), ("aten::fill_", BOTH), ("aten::add", READ)]  # born before any operator
    assert stories["parameter"] == [("aten::mul", READ), ("aten::add_", BOTH)]
    assert stories["gradient"] == [("aten::mul", WRITE), ("aten::add_", READ)]
    # mul_ turns its number into a tensor by two operators of its own, and uses its operand throughout
    scaled = [("aten::mul_", BOTH), ("aten::_to_copy", BOTH), ("aten::copy_", BOTH)]
    assert stories["optimizer_state"] == [*scaled, ("aten::add_", BOTH), ("aten::add_", READ)]


@pytest.mark.parametrize("how", ["shifted", "reversed", "inverted", "random"])
def test_a_wrong_plan_costs_time_and_changes_no_bit(how: str) -> None:
    verdict = child.run("cases_plans:compare_under_wrong_plan", GPT, how, env=SMALLEST)
    assert verdict.differences == ()
    assert not verdict.budget_violated
    assert verdict.modes[2:] == ("planned",) * 4
    assert sum(verdict.evicted_bytes.values()) > 0
    assert sum(verdict.fetched_bytes.values()) > 0


def test_a_saved_plan_is_followed_and_one_for_another_model_is_not(tmp_path: Path) -> None:
    plan, trace = tmp_path / "gpt.plan", tmp_path / "gpt.trace"
    child.run("cases_plans:save_plan", GPT, str(plan), str(trace), env=SMALLEST)
    assert load(plan, Plan).signature == load(trace, Trace).signature()
    own, said = child.run("cases_plans:compare_under_plan_in", GPT, str(plan), env=SMALLEST)
    assert (own.differences, said) == ((), 0)
    assert own.modes[2:] == ("planned",) * 4
    assert sum(own.fetched_bytes.values()) > 0
    other, said = child.run("cases_plans:compare_under_plan_in", "vit-adamw-loop", str(plan), env=SMALLEST)
    assert (other.differences, said) == ((), 1)
    assert other.modes[2:] == ("demand",) * 4
    assert sum(other.fetched_bytes.values()) > 0


def test_another_sequence_length_is_noticed_and_planned_when_it_recurs() -> None:
    modes, same, fetched = child.run("cases_plans:lengths_vary", [64, 64, 48, 64, 48, 64, 48, 48, 64], env=SMALLEST)
    assert same
    assert all(fetched)
    assert modes == ("recorded", "recorded", "demand", "planned", "demand", *("planned",) * 4)


def test_evaluation_between_steps_changes_nothing() -> None:
    differences, modes, fetched = child.run("cases_plans:evaluation_between_steps", env=SMALLEST)
    assert differences == ()
    assert all(fetched)
    assert modes[2:] == ("planned",) * 4


def test_a_module_compiled_as_one_graph_can_be_planned() -> None:
    modes = child.run("cases_plans:compiled_whole", env=SMALLEST)
    assert modes[:2] == ("recorded", "recorded")
    assert "planned" in modes


def test_a_planner_that_fails_costs_the_plan_and_not_the_run() -> None:
    verdict, said = child.run("cases_plans:a_planner_that_fails", env=SMALLEST)
    assert (verdict.differences, said) == ((), 1)
    assert verdict.modes[2:] == ("demand",) * 4
    assert sum(verdict.fetched_bytes.values()) > 0
