"""A batch that does not fit is refused before the optimizer changes anything, by an error that batch finders know."""

from pathlib import Path

import pytest

from tests.helpers import child
from tests.training import cases_batches as cases

CASE = "cases_batches:{}".format


@pytest.mark.alike
@pytest.mark.parametrize("name", cases.SCRIPTS)
def test_after_a_batch_that_did_not_fit_training_goes_on_as_in_plain_pytorch(name: str) -> None:
    held, most, moved, report = child.run(CASE("compare"), name)
    assert 0 < held <= most
    assert moved > 0
    assert report.bounded_as_asked
    found_one = name in ("looks_for_one", "accelerates")  # before any step had fitted
    assert report.budget_violated != (found_one or name == "evaluates"), report.trouble


@pytest.mark.parametrize("name", ["skips", "looks_for_one", "skips_with_a_scaler", "accelerates"])
def test_a_batch_that_the_machine_has_no_memory_for_is_refused_by_the_operator(name: str) -> None:
    """Rather than exceed the budget until the kernel ends the process."""
    peak, there, evicted, report = child.run(CASE("on_a_full_machine"), name)
    assert peak <= there
    assert evicted > 0
    assert report.bounded_as_asked


def test_what_the_machine_has_is_not_refused(tmp_path: Path) -> None:
    assert child.run(CASE("what_has_gone_counts_no_more"), str(tmp_path)) == (False, False, True, False)


def test_the_error_names_a_budget_that_works_and_says_it_in_pytorchs_words_too() -> None:
    said, fast = child.run(CASE("what_it_says"))
    assert fast.endswith("MiB")
    assert fast in said
    assert "or a smaller batch" in said
    assert "DefaultCPUAllocator: can't allocate memory" in said


def test_what_came_between_steps_is_not_said_of_a_batch_that_fits() -> None:
    assert not child.run(CASE("after_an_evaluation_that_is_too_large"))


def test_a_batch_that_exceeds_a_percentage_raises_no_share_and_is_told() -> None:
    shares, report = child.run(CASE("with_a_percentage"))
    assert shares[1] == shares[2] == shares[3]
    assert report.budget_violated
    assert "or a smaller batch" in report.trouble
