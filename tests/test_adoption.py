"""Storages born elsewhere are adopted at a step's end, every view with them, or left alone and reported."""

from pathlib import Path

import child
import pytest
from same_bits import Verdict

PAGES = {"EBBTIDE_MIN_STORAGE": "4096"}


def check(verdict: Verdict, nbytes: int) -> None:
    assert verdict.differences == ()
    assert verdict.adopted_bytes >= 0.99 * nbytes  # all but storages under one page
    assert all(verdict.evicted_bytes[kind] > 0 for kind in verdict.evicted_bytes)
    assert all(verdict.fetched_bytes[kind] > 0 for kind in verdict.fetched_bytes)


@pytest.mark.parametrize("before", [True, False], ids=["before-the-session", "inside-the-session"])
def test_a_from_pretrained_fine_tune_gives_the_same_bits(before: bool, tmp_path: Path) -> None:
    check(*child.run("cases_adoption:from_pretrained", str(tmp_path), before, env=PAGES))


def test_weights_that_torch_load_mapped_give_the_same_bits(tmp_path: Path) -> None:
    check(*child.run("cases_adoption:load_mmap", str(tmp_path), env=PAGES))


def test_views_from_before_the_session_follow_their_storage() -> None:
    child.run("cases_adoption:views_follow", env=PAGES)


@pytest.mark.parametrize("holder", ["from-numpy", "from-dlpack", "shared-memory", "numpy-view"])
def test_a_parameter_that_others_hold_is_left_alone_and_reported(holder: str) -> None:
    assert "left alone" in child.run("cases_adoption:outside_holder", holder, env=PAGES)
