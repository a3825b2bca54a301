"""Steps of real programs: whole iterations whatever optimizers there are, figures that add up, and the same bits."""

from pathlib import Path

import pytest

from tests.helpers import child
from tests.training.cases_steps import ITERATIONS, PROGRAMS

PLANNED = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_PROGRESS": "off"}
PAGES = PLANNED | {"EBBTIDE_POLICY": "demand"}


def test_what_leaves_at_a_steps_beginning_and_is_classified_later_adds_up() -> None:
    steps = child.run("cases_steps:a_block_that_leaves_between_a_steps_beginning_and_its_reading", env=PAGES)
    assert [inconsistent for _, inconsistent in steps] == [""] * 6
    assert steps[5][0] >= 512 * 512 * 4


def test_kinds_that_are_told_late_and_often_add_up() -> None:
    said = child.run("cases_steps:a_block_that_is_classified_after_a_step_and_leaves_before_the_next", env=PAGES)
    assert said == [""] * 12


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_step_is_an_iteration_and_a_percentage_is_of_all_of_it(program: str) -> None:
    report = child.run("cases_steps:followed", program, "60%", env=PAGES)
    assert len(report.steps) == ITERATIONS
    assert report.bounded_as_asked
    assert not report.budget_violated
    weights = 6 * 256 * 256 * 4
    activations = 6 * 512 * 256 * 4
    assert report.unbounded_peak_bytes > weights + activations
    assert report.arena_budget_bytes == pytest.approx(0.6 * report.unbounded_peak_bytes, rel=0.01)
    bounded = report.steps[2:]
    assert sum(step.evicted_bytes.total for step in bounded) > 0
    assert sum(step.fetched_bytes.total for step in bounded) > 0


@pytest.mark.parametrize("program", list(PROGRAMS)[1:])
def test_steps_of_several_optimizers_are_planned(program: str) -> None:
    report = child.run("cases_steps:followed", program, "60%", env=PLANNED)
    assert [step.mode for step in report.steps].count("planned") >= 3
    assert sum(step.fetched_bytes.total for step in report.steps) > 0


@pytest.mark.parametrize("program", ["one_optimizer", "muon_and_adamw"])
def test_a_session_around_a_training_that_knows_of_none_bounds_it(program: str) -> None:
    report = child.run("cases_steps:built_before", program, "60%", env=PAGES)
    assert len(report.steps) == ITERATIONS
    assert report.bounded_as_asked
    assert report.unbounded_peak_bytes > 6 * 256 * 256 * 4 + 6 * 512 * 256 * 4
    assert sum(step.fetched_bytes.total for step in report.steps) > 0


def test_the_first_named_step_ends_following() -> None:
    assert child.run("cases_steps:step_ends_following", env=PAGES) == (2, 4)


@pytest.mark.alike
@pytest.mark.parametrize(("optimizer", "backend"), [("AdamW", "eager"), ("SGD", "eager"), ("AdamW", "aot_eager")])
def test_a_compiled_optimizer_step_is_followed(optimizer: str, backend: str) -> None:
    report = child.run("cases_steps:a_compiled_optimizer_step", optimizer, backend, env=PAGES)
    assert len(report.steps) == ITERATIONS
    assert sum(step.evicted_bytes.total for step in report.steps[2:]) > 0
    assert sum(step.fetched_bytes.total for step in report.steps[2:]) > 0


def test_per_sample_gradients_are_traced(tmp_path: Path) -> None:
    operators = child.run("cases_steps:per_sample_gradients_traced", str(tmp_path / "step.trace"), env=PLANNED)
    assert len(operators) > 20
    assert {"aten::addmm", "aten::bmm", "aten::gelu_backward"} & set(operators)


@pytest.mark.parametrize("program", ["muon_and_adamw", "a_gan"])
def test_a_recorder_without_a_budget_follows_by_the_same_rule(program: str, tmp_path: Path) -> None:
    found = [
        child.run("cases_steps:traced", str(tmp_path / "it.trace"), program, tells, env=PLANNED) for tells in (0, 1)
    ]
    assert found[0] == found[1]
    assert {phase for _, phase in found[0]} >= {"backward", "optimizer"}


def test_what_lies_behind_a_tensor_subclass_is_of_its_kind() -> None:
    state, other = child.run("cases_steps:kinds_of_wrapped_state", env=PAGES)
    assert state >= 2 * 512 * 512 * 4
    assert other == 0


def test_what_lies_behind_a_distributed_tensor_is_of_its_kind() -> None:
    evicted = child.run("cases_steps:kinds_of_distributed_parameters", env=PAGES)
    for kind in ("parameter", "gradient", "optimizer_state"):
        assert evicted[kind] >= 512 * 512 * 4, kind
    assert evicted["other"] == 0


def test_a_followed_step_with_more_operators_than_the_plans_is_passed_over_and_the_next_refines_it() -> None:
    verdict, planned, said = child.run("cases_steps:a_followed_step_that_does_more", [3], env=PLANNED)
    assert verdict.differences == ()
    assert verdict.modes[2:] == ("planned",) * 4
    assert not [text for text in said if "planned anew" in text]
    assert planned == 2  # by the step after it
