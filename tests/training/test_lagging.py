"""The device of the tests' own: networks train on it as on the CPU, and who forgets to wait gets other bytes."""

from pathlib import Path

import pytest

from tests.helpers import child

CASE = "cases_lagging:{}".format
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
FORGOTTEN = [
    "that it is written before it is copied",
    "that it is copied before it is freed",
    "who had the memory before",
    "that it is there before it is read",
]
"""A wait each, of a storage that moves."""


@pytest.mark.alike
@pytest.mark.parametrize("net", ["mlp", "conv", "gpt"])
def test_networks_train_with_the_same_bits_as_on_the_cpu(net: str) -> None:
    child.run(CASE("trains_as_the_cpu_does"), net, env=ONE_THREAD)


@pytest.mark.parametrize("way", ["with_checkpoints", "on_another_stream"])
def test_ways_to_train_have_the_same_bits(way: str) -> None:
    child.run(CASE(f"trains_{way}"), env=ONE_THREAD)


@pytest.mark.parametrize(
    "fault",
    [
        "freed_while_another_stream_reads",
        "given_out_again_when_the_other_stream_has_read",
        "freed_and_read_by_the_same_stream",
        "no_event_between_streams",
        "a_kernel_has_the_pointers_of_its_call",
        "freed_memory_is_garbage",
        "the_host_does_not_wait",
        "pinned_memory_changes_before_its_copy",
    ],
)
def test_what_was_not_waited_for_shows_in_the_bytes(fault: str) -> None:
    child.run(CASE(fault), env=ONE_THREAD)


@pytest.mark.parametrize("forgets", ["", *FORGOTTEN])
def test_a_training_whose_storages_move_must_wait(forgets: str) -> None:
    child.run(CASE("storages_that_move"), forgets, env=ONE_THREAD)


def test_memory_that_went_back_to_the_system_cannot_be_read() -> None:
    with pytest.raises(child.ChildError, match="Segmentation fault"):
        child.run(CASE("read_after_it_went_back_to_the_system"), env=ONE_THREAD)


@pytest.mark.parametrize("claim", ["counts_its_memory", "tells_the_profiler", "is_out_of_memory"])
def test_its_memory_is_given_out_and_counted_as_a_gpus(claim: str) -> None:
    child.run(CASE(claim), env=ONE_THREAD)


@pytest.mark.parametrize(
    "claim",
    [
        "draws_in_the_hosts_order",
        "tells_an_error_where_the_host_waits",
        "events_pass_when_the_work_is_done",
        "its_kernels_are_no_operators",
        "sizes_that_only_the_kernel_knows",
    ],
)
def test_it_behaves_as_a_gpu(claim: str) -> None:
    child.run(CASE(claim), env=ONE_THREAD)


def test_what_was_saved_is_loaded_onto_it(tmp_path: Path) -> None:
    child.run(CASE("saves_and_loads"), str(tmp_path / "net.pt"), env=ONE_THREAD)
