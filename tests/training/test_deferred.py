"""Deferred updates: whoever looks finds them made, and the bits are those of the script's own order."""

from pathlib import Path

import pytest

from tests.helpers import child
from tests.helpers.command import EBBTIDE, run
from tests.helpers.training_script import training_script
from tests.training import cases_deferred as cases
from tests.training import cases_looks
from tests.training.cases_in_backward import OPTIMIZERS

QUIET = {"EBBTIDE_PROGRESS": "off"}
CASE = "cases_deferred:{}".format
AUTO = "cases_automatic_order:{}".format
LOOK = "cases_looks:{}".format
ODD = "cases_odd_updates:{}".format


@pytest.mark.alike
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_whose_parameters_are_independent_ends_with_the_same_bits(name: str) -> None:
    """With accumulated, unscaled and clipped gradients, a scheduler, weight decay, two groups."""
    assert child.run(CASE("every_optimizer"), name, env=QUIET)


@pytest.mark.parametrize("name", cases.WAYS)
def test_ways_to_train_end_with_the_same_bits(name: str) -> None:
    child.run(CASE("way"), name, env=QUIET)


@pytest.mark.parametrize("way", ["foreach", "lerp_"])
def test_a_moving_average_of_parameters_sees_each_update(way: str) -> None:
    child.run(CASE("averages"), way, env=QUIET)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_forward_pass_that_is_made_again_in_the_backward_pass(use_reentrant: bool) -> None:
    child.run(CASE("checkpointed"), use_reentrant, env=QUIET)


@pytest.mark.alike
@pytest.mark.parametrize("name", cases_looks.LOOKS)
@pytest.mark.parametrize("what", ["parameter", "state", "gradient"])
def test_whoever_looks_after_a_step_sees_what_it_changed(what: str, name: str) -> None:
    child.run(LOOK("looked"), what, name, env=QUIET)


@pytest.mark.parametrize("name", ["storage", "alias", "view", "fork", "swapped", "array"])
def test_what_was_there_before_the_step_shows_what_it_changed(name: str) -> None:
    child.run(LOOK("looked_from_before"), name, env=QUIET)


@pytest.mark.alike
@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_between_steps_finds_what_it_would(seed: int) -> None:
    child.run(LOOK("at_random"), seed, env=QUIET)


@pytest.mark.parametrize("faster", [True, False])
def test_what_is_tried_in_mid_training_ends_with_the_same_bits(faster: bool) -> None:
    report, said = child.run(AUTO("automatically"), faster, env=QUIET)
    assert [text.split(":")[0] for text in said] == [
        "updates are deferred from here, to see whether steps are faster",
        f"updates {'stay deferred' if faster else 'are made in the script' + chr(39) + 's order again'}",
    ]
    assert bool(report.updates) == faster
    assert sum(step.fetched_bytes.total for step in report.steps[-4:]) > 0
    assert str(report.steps[-1].mode) == "planned"


@pytest.mark.parametrize("faster", [True, False])
def test_threads_that_step_while_the_order_changes_lose_no_update(faster: bool) -> None:
    child.run(AUTO("other_threads_step"), faster, env=QUIET)


@pytest.mark.parametrize("case", ["a_thread_notes_while_the_session_ends", "looked_at_by_what_was_taken_before"])
def test_no_update_is_missed_where_the_order_changes(case: str) -> None:
    child.run(AUTO(case), env=QUIET)


def test_an_array_of_small_state_shows_what_a_plain_run_has() -> None:
    child.run(CASE("with_an_array_of_small_state"), env=QUIET)


@pytest.mark.parametrize("ends", [False, True])
def test_an_operator_that_went_on_without_an_update_ends_the_training(ends: bool) -> None:
    assert "could not be begun" in child.run(ODD("an_update_that_cannot_be_begun"), ends, env=QUIET)


@pytest.mark.parametrize(
    "name",
    [
        "settings_of_the_process",
        "an_array_as_rate",
        "a_full_stack",
        "handlers_of_signals",
        "a_handler_that_raises",
        "a_handler_that_raises_while_an_operator_looks",
        "what_is_collected_looks",
    ],
)
def test_odd_scripts_end_with_the_same_bits_and_no_update_is_left_half_made(name: str) -> None:
    child.run(ODD(name), env=QUIET)


def test_after_a_step_that_raised_no_update_of_it_is_made() -> None:
    assert "step raised an error" in child.run(ODD("a_step_that_raises"), env=QUIET)


@pytest.mark.parametrize(
    "name", ["listed_twice", "in_the_same_memory", "in_slices_of_the_same_memory", "with_a_post_hook"]
)
def test_odd_optimizers_are_left_as_written(name: str) -> None:
    updates = child.run(ODD(name), env=QUIET)
    assert ("a hook of its step" if "hook" in name else "parameters share memory") in updates[-1]


@pytest.mark.parametrize("name", cases.LEFT)
def test_what_is_not_deferred_is_left_as_written_and_the_report_says_why(name: str) -> None:
    updates = child.run(CASE("left"), name, env=QUIET)
    assert cases.LEFT[name][-1] in updates[-1]
    assert "is left as the script has it" in updates[-1]


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_an_update_that_fails_is_an_error_where_it_is_looked_at_and_ends_training(when: str) -> None:
    said, again = child.run(LOOK("an_update_that_fails"), when, env=QUIET)
    assert "without PyTorch's knowledge" in said
    assert "--optimizer as-written" in said
    assert said == again


def test_an_update_rounds_as_the_thread_of_its_step() -> None:
    child.run(LOOK("on_another_threads_terms"), env=QUIET)


def test_ctrl_c_does_not_leave_an_update_half_made() -> None:
    child.run(LOOK("interrupted"), env=QUIET)


def test_gradients_leave_in_one_planned_step_and_return_in_the_next(tmp_path: Path) -> None:
    child.run(CASE("planned"), str(tmp_path), env=QUIET)


@pytest.mark.nightly
def test_verify_compares_every_bit(tmp_path: Path) -> None:
    clips = "loss.backward()\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)"
    script = training_script("torch.manual_seed(0)").replace("loss.backward()", clips)
    (tmp_path / "script.py").write_text(script)
    done = run(EBBTIDE, "verify", "--fast", "40%", "--optimizer", "deferred", "script.py", cwd=tmp_path, status=0)
    assert "VERIFIED" in done.stdout
    assert "optimizer state" in done.stdout
