"""Large storages that are resized, sliced, shared, saved, loaded, forked and updated, in pieces: the same bits."""

from pathlib import Path

import pytest

from tests.helpers import child
from tests.training.cases_piecework import CASES

SMALL = {"EBBTIDE_PIECE": "2MiB", "EBBTIDE_PROGRESS": "off"}


@pytest.mark.parametrize("name", CASES)
def test_a_storage_larger_than_the_arena_is_used_as_ever(name: str, tmp_path: Path) -> None:
    child.run("cases_piecework:large_storages_are_used_as_ever", name, str(tmp_path), env=SMALL)


@pytest.mark.alike
@pytest.mark.parametrize("name", ["onto itself", "by threads", "resized", "through workers"])
def test_a_storage_in_pieces_that_come_and_go_at_random_is_used_as_ever(name: str, tmp_path: Path) -> None:
    chaos = {"EBBTIDE_CHAOS_RATE": "0.3", "EBBTIDE_CHECKSUM": "1", "EBBTIDE_REMAKE": "check"}
    child.run("cases_piecework:large_storages_are_used_as_ever", name, str(tmp_path), env=SMALL | chaos)


@pytest.mark.alike
@pytest.mark.parametrize("order", ["in-backward", "deferred"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_parameters_in_pieces_are_updated_in_other_orders(optimizer: str, order: str) -> None:
    child.run("cases_piecework:parameters_in_pieces_are_updated", optimizer, order, env=SMALL)
