"""Collectives work on memory that nobody else sees, in threads of their own."""

import os
import socket
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch import distributed

import ebbtide
from ebbtide import _torch
from tests.helpers import child

CHAOS = {"EBBTIDE_POLICY": "demand", "EBBTIDE_CHAOS_RATE": "1", "EBBTIDE_CHAOS_SEED": "3"}
ELEMENTS = 2 << 20


def gather_under_chaos(rank: int, world: int, port: int, rounds: int) -> int:
    """One rank of all-gathers, during which operators move whatever they can; the bytes that left."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with ebbtide.Session(fast="1GiB", progress="off") as session, session.step():
        distributed.init_process_group("gloo")
        others = [torch.zeros(64 << 10) for _ in range(8)]
        for number in range(rounds):
            whole = torch.empty(world * ELEMENTS)
            part = torch.full((ELEMENTS,), float(number * world + rank))
            work = distributed.all_gather_into_tensor(whole, part, async_op=True)
            while not work.is_completed():
                for other in others:
                    other.add_(1)
            work.wait()
            for sender in range(world):
                came = whole[sender * ELEMENTS : (sender + 1) * ELEMENTS]
                assert bool((came == number * world + sender).all())
        distributed.destroy_process_group()
    return sum(step.evicted_bytes.total for step in session.report().steps)


def reduce_over_steps(rank: int, world: int, port: int, steps: int) -> int:
    """One rank of a sum that the first begins some steps before the other; the bytes that left meanwhile."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo")
    store = distributed.distributed_c10d._get_default_store()
    with ebbtide.Session(fast="1GiB", progress="off") as session:
        distributed.all_reduce(torch.ones(64 << 10))
        summed = torch.full((ELEMENTS,), float(rank + 1))
        others = [torch.zeros(64 << 10) for _ in range(8)]
        if rank > 0:
            store.wait(["others have gone on"])
        work = distributed.all_reduce(summed, async_op=True)
        for _ in range(steps if rank == 0 else 0):
            with session.step():
                for other in others * 8:
                    other.add_(1)
        if rank == 0:
            assert not work.is_completed()
            store.set("others have gone on", "")
        work.wait()
        assert bool((summed == sum(range(1, world + 1))).all())
    distributed.destroy_process_group()
    return sum(step.evicted_bytes.total for step in session.report().steps)


@pytest.mark.in_child(CHAOS)
def test_what_a_backend_s_own_method_works_on_stays_as_long_as_that_takes() -> None:
    """Two backends of this process that no ProcessGroup stands before: their methods are no operators."""
    store, backends = distributed.HashStore(), dict[int, Any]()
    make = [
        Thread(target=lambda rank=rank: backends.update({rank: distributed.ProcessGroupGloo(store, rank, 2)}))
        for rank in range(2)
    ]
    for thread in make:
        thread.start()
    for thread in make:
        thread.join()
    with ebbtide.Session(fast="1GiB", progress="off") as session, session.step():
        for number in range(6):
            parts = [torch.full((ELEMENTS,), float(number + rank)) for rank in range(2)]
            wholes = [[torch.empty(ELEMENTS) for _ in range(2)] for _ in range(2)]
            others = [torch.zeros(64 << 10) for _ in range(8)]
            works = [backends[rank].allgather([wholes[rank]], [parts[rank]]) for rank in range(2)]
            works += [backends[rank].allreduce([torch.ones(ELEMENTS)]) for rank in range(2)]
            for other in others:
                other.add_(1)
            for work in works:
                work.wait()
            for whole in wholes:
                assert all(bool((came == number + sender).all()) for sender, came in enumerate(whole))
            with pytest.raises((TypeError, RuntimeError)):
                backends[0].allreduce([parts[0]], "no reduction")
        assert _torch.evict([*parts, *wholes[0], *wholes[1]]) > 0  # nothing stays for good
    assert sum(step.evicted_bytes.total for step in session.report().steps) > 0


def moved_by_two_ranks(case: Callable[[int, int, int, int], int], rounds: int) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    ranks = [child.Child(case, (rank, 2, port, rounds), CHAOS) for rank in range(2)]
    with ranks[0], ranks[1]:
        return [rank.result() for rank in ranks]


def test_what_a_collective_makes_for_itself_stays_in_memory() -> None:
    """Gloo receives into a tensor of its own thread's, and the kernel, which writes there, cannot be made to wait."""
    assert min(moved_by_two_ranks(gather_under_chaos, 40)) > 0


def test_what_a_collective_works_on_stays_for_as_many_steps_as_it_takes() -> None:
    assert moved_by_two_ranks(reduce_over_steps, 4)[0] > 0
