"""Which rank this process is, by the variables of its launcher."""

import pytest
import torch.distributed as dist

from ebbtide.host.place import Place, place

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}

MPIRUN, SRUN = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Place()),
        (TORCHRUN, Place(5, 8, 1, 4)),
        (TORCHRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "16"}, Place(5, 8, 1, 4)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, Place(3, 4, 0, 1)),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, Place(1, 2, 1, 2)),  # accelerate's notebook_launcher
        (MPIRUN, Place(local_size=2)),
        ({"MPI_LOCALNRANKS": "2"}, Place(local_size=2)),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_SIZE": "2"}, Place(1, 2, 1, 2)),  # DeepSpeed's
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, Place(local_size=4)),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, Place()),  # which node this is is not said
        ({"SLURM_NTASKS_PER_NODE": "4"}, Place()),  # a batch script's, too
        (
            {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
            Place(3, 4, 1, 2),
        ),
        ({"MPI_LOCALNRANKS": "2", "PMI_RANK": "1", "PMI_SIZE": "2"}, Place(1, 2, 1, 2)),
        (SRUN | {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, Place(5, 8, 1, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Place()),  # a batch script's
        (SRUN | {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "4"}, Place(local_size=4)),
        ({"WORLD_SIZE": "4"}, Place()),  # no rank: nobody launched this
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "many"}, Place(5, 8, 1, 8)),
    ],
)
def test_a_launcher_says_where_this_is(environment: dict[str, str], expected: Place) -> None:
    assert place(environment) == expected


def test_ranks_that_no_launcher_told_of_share_this_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.multiprocessing.spawn starts them."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert place({}) == Place(1, 2, 1, 2)
    assert place({"RANK": "1", "WORLD_SIZE": "2"}) == Place(1, 2, 0, 1)


def test_ranks_of_a_node_have_consecutive_numbers() -> None:
    assert list(place(TORCHRUN).of_the_node()) == [4, 5, 6, 7]
    assert (place(TORCHRUN).name(), place({}).name()) == ("rank 5", "")
