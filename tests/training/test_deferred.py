"""Deferred updates: whoever looks finds them made, and the bits are those of the script's own order."""

from pathlib import Path

import pytest

from tests.helpers.command import EBBTIDE, run
from tests.helpers.training_script import training_script
from tests.training import cases_deferred as cases
from tests.training.cases_in_backward import OPTIMIZERS

QUIET = {"EBBTIDE_PROGRESS": "off"}
pytestmark = pytest.mark.in_child(QUIET)


@pytest.mark.alike
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_whose_parameters_are_independent_ends_with_the_same_bits(name: str) -> None:
    """With accumulated, unscaled and clipped gradients, a scheduler, weight decay, two groups."""
    assert cases.every_optimizer(name)


@pytest.mark.parametrize("name", cases.WAYS)
def test_ways_to_train_end_with_the_same_bits(name: str) -> None:
    cases.way(name)


@pytest.mark.parametrize("way", ["foreach", "lerp_"])
def test_a_moving_average_of_parameters_sees_each_update(way: str) -> None:
    cases.averages(way)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_forward_pass_that_is_made_again_in_the_backward_pass(use_reentrant: bool) -> None:
    cases.checkpointed(use_reentrant)


def test_an_array_of_small_state_shows_what_a_plain_run_has() -> None:
    cases.with_an_array_of_small_state()


@pytest.mark.parametrize("name", cases.LEFT)
def test_what_is_not_deferred_is_left_as_written_and_the_report_says_why(name: str) -> None:
    updates = cases.left(name)
    assert cases.LEFT[name][-1] in updates[-1]
    assert "is left as the script has it" in updates[-1]


def test_gradients_leave_in_one_planned_step_and_return_in_the_next(tmp_path: Path) -> None:
    cases.planned(tmp_path)


@pytest.mark.here
@pytest.mark.nightly
def test_verify_compares_every_bit(tmp_path: Path) -> None:
    clips = "loss.backward()\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)"
    script = training_script("torch.manual_seed(0)").replace("loss.backward()", clips)
    (tmp_path / "script.py").write_text(script)
    done = run(EBBTIDE, "verify", "--fast", "40%", "--optimizer", "deferred", "script.py", cwd=tmp_path, status=0)
    assert "VERIFIED" in done.stdout
    assert "optimizer state" in done.stdout
