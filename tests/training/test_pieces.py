"""Storages in pieces: what is larger than the arena is used part by part, and what nobody touched costs nothing."""

from pathlib import Path

import pytest

from tests.helpers import child

SMALL = {"EBBTIDE_PIECE": "2MiB", "EBBTIDE_PROGRESS": "off"}


@pytest.mark.parametrize("origin", ["loaded", "made", "adopted"])
def test_a_data_set_larger_than_the_arena_is_used_batch_by_batch(origin: str, tmp_path: Path) -> None:
    child.run("cases_pieces:a_data_set_is_used_batch_by_batch", origin, str(tmp_path), env=SMALL)


@pytest.mark.parametrize("how", ["dlpack", "dlpack of numpy", "data_ptr", "empty"])
def test_an_address_of_a_slice_holds_its_pieces(how: str) -> None:
    child.run("cases_pieces:whoever_gets_an_address_holds_the_pieces_of_a_slice", how, env=SMALL)


@pytest.mark.parametrize("what", ["safetensors_writes", "torchscript_saves_and_loads"])
def test_a_tensor_larger_than_the_arena_goes_to_a_file(what: str, tmp_path: Path) -> None:
    child.run(f"cases_pieces:{what}_a_tensor_larger_than_the_arena", str(tmp_path), env=SMALL)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_step_with_storages_in_pieces_follows_its_plan(optimizer: str) -> None:
    child.run("cases_pieces:a_step_in_pieces_follows_its_plan", optimizer, env=SMALL)


@pytest.mark.parametrize(
    "case",
    [
        "a_bucket_costs_what_is_touched",
        "a_buffer_is_written_slice_by_slice",
        "operators_in_order_work_on_more_than_there_is",
        "an_array_holds_the_pieces_that_it_lies_in",
    ],
)
def test_storages_in_pieces(case: str) -> None:
    child.run(f"cases_pieces:{case}", env=SMALL)
