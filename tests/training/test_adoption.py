"""Storages born elsewhere are adopted at a step's end, every view with them, or left alone and reported."""

from pathlib import Path

import pytest

from tests.helpers import child
from tests.training import cases_adoption
from tests.training.same_bits import Verdict

PAGES = {"EBBTIDE_MIN_STORAGE": "4096"}


def check(verdict: Verdict, nbytes: int) -> None:
    assert verdict.differences == ()
    assert verdict.adopted_bytes >= 0.99 * nbytes  # all but storages under one page
    assert all(verdict.evicted_bytes[kind] > 0 for kind in verdict.evicted_bytes)
    assert all(verdict.fetched_bytes[kind] > 0 for kind in verdict.fetched_bytes)


@pytest.mark.alike
@pytest.mark.parametrize("before", [True, False], ids=["before-the-session", "inside-the-session"])
def test_a_from_pretrained_fine_tune_gives_the_same_bits(before: bool, tmp_path: Path) -> None:
    check(*child.run("cases_adoption:from_pretrained", str(tmp_path), before, env=PAGES))


@pytest.mark.parametrize("order", ["as-written", "deferred", "in-backward"])
def test_weights_lie_as_far_from_an_aligned_address_as_before(order: str, tmp_path: Path) -> None:
    before, after, plain, ours, fetched = child.run("cases_adoption:off_alignment", str(tmp_path), order)
    assert any(before)
    assert after == before
    assert ours == plain
    assert fetched > 0


@pytest.mark.parametrize("begin", [0, 4096], ids=["whole", "sliced"])
def test_a_data_set_that_is_mapped_stays_in_its_file(begin: int) -> None:
    """A step reads a few rows, and another process may write the next ones."""
    plain, ours, adopted, reasons = child.run("cases_adoption:mapped_data", begin)
    assert ours == plain
    assert adopted < 64 << 20
    assert any("only read" in reason for reason in reasons), reasons


def test_weights_that_torch_load_mapped_give_the_same_bits(tmp_path: Path) -> None:
    check(*child.run("cases_adoption:load_mmap", str(tmp_path), env=PAGES))


@pytest.mark.parametrize("holder", ["from-numpy", "from-dlpack", "shared-memory", "numpy-view"])
def test_a_parameter_that_others_hold_is_left_alone_and_reported(holder: str) -> None:
    assert "left alone" in child.run("cases_adoption:outside_holder", holder, env=PAGES)


@pytest.mark.alike
@pytest.mark.parametrize("name", cases_adoption.ALIASES)
def test_an_alias_from_before_the_session_is_never_parted(name: str) -> None:
    managed, reasons = child.run("cases_adoption:alias_from_before", name)
    assert not managed
    assert reasons


@pytest.mark.parametrize(
    "case",
    ["views_follow", "freed_aliases", "passing_reference", "alias_of_a_parallel_model", "held_within_a_generator"],
)
def test_what_is_held_is_adopted_as_far_as_it_can_be(case: str) -> None:
    child.run(f"cases_adoption:{case}", env=PAGES)


@pytest.mark.parametrize("name", cases_adoption.ORDINARY)
def test_of_an_ordinary_model_nothing_is_left_alone(name: str) -> None:
    child.run("cases_adoption:ordinary", name, env=PAGES)


def test_what_is_frozen_is_adopted_and_its_optimizer_known() -> None:
    found = child.run("cases_adoption:frozen", env=PAGES)
    assert found.differences == ()
    assert found.adopted_bytes > 0
    assert "as soon as its gradient is complete" in child.run("cases_adoption:frozen_optimizer", env=PAGES)[0]


def test_many_storages_are_adopted_at_once() -> None:
    assert child.run("cases_adoption:many", env=PAGES) == 50_000


@pytest.mark.parametrize(
    "case",
    [
        "gradient_that_is_being_freed",
        "gradient_that_is_added_to",
        "gradients_that_threads_drop",
        "what_another_thread_works_on",
        "variable_that_another_thread_passes_on",
    ],
)
def test_what_other_threads_use_meanwhile_is_left_alone(case: str) -> None:
    child.run(f"cases_adoption:{case}", env=PAGES)
