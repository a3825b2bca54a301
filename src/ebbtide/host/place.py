"""Reads from the launcher's variables which rank of a job this process is, and how many ranks its node has.

DeepSpeed, torchrun and what is built on it set all variables. mpirun and srun have names of their own for them.
Lightning and accelerate start ranks themselves and tell the rank on the node; torch.multiprocessing.spawn tells
nothing. The process group knows the rank in the job once it exists. Such ranks count as all on this node, so that they
share what it has. A process that no launcher started, without a group, is one rank of one.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_SIZE")
"""The variables of torchrun, Open MPI, MPICH and Intel MPI, and DeepSpeed. torchrun is first: it may run under
another."""
_SLURM = "SLURM_STEP_TASKS_PER_NODE"
"""A variable that srun sets for its tasks, as ``4`` or ``4(x2)``. (SLURM_NTASKS_PER_NODE is set for a batch script,
too.)"""
_RANKS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables of Open MPI, MPICH and Intel MPI, and srun, until the process group knows."""


@dataclass(frozen=True, slots=True)
class Place:
    """Rank ``rank`` of ``size``, and the ``local_rank``-th of ``local_size`` on its node."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    def name(self) -> str:
        """Return ``rank 1``, say, or "" where there is no other."""
        return f"rank {self.rank}" if self.size > 1 else ""

    def of_the_node(self) -> range:
        """Return the ranks on this node, which have consecutive numbers."""
        first = self.rank - self.local_rank
        return range(first, first + self.local_size)


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """Read the variables. One that is no number counts as unset."""
    size = max(_number(environment, "WORLD_SIZE") or 1, 1)
    rank = _number(environment, "RANK") or 0
    local_size = next((found for name in _LOCAL_SIZES if (found := _number(environment, name))), None)
    if local_size is None and (slurm := re.fullmatch(r"(\d+)(\(x\d+\))?", environment.get(_SLURM, ""))):
        local_size = int(slurm[1])
    local_rank = _number(environment, "LOCAL_RANK")
    if "RANK" not in environment:  # srun, mpirun and Lightning number ranks in variables of their own
        rank, size = _in_group() or _in_job(environment)
    if local_size is None and (local_rank is not None or "RANK" not in environment):
        local_size = size  # as if they were all on this node
    local_size = max(local_size or 1, 1)
    return Place(rank, size, local_rank if local_rank is not None else rank % local_size, local_size)


def _in_group() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _in_job(environment: Mapping[str, str]) -> tuple[int, int]:
    for names in _RANKS:
        rank, size = (_number(environment, name) for name in names)
        if rank is not None and size is not None and rank < size:
            return rank, size
    return 0, 1


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdigit() else None
