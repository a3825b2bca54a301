"""Collectives work on memory that nobody else sees, in threads of their own."""

import socket

from tests.helpers import child

CHAOS = {"EBBTIDE_POLICY": "demand", "EBBTIDE_CHAOS_RATE": "1", "EBBTIDE_CHAOS_SEED": "3"}


def moved_by_two_ranks(case: str, rounds: int) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    ranks = [child.Child(f"cases_collectives:{case}", (rank, 2, port, rounds), CHAOS) for rank in range(2)]
    with ranks[0], ranks[1]:
        return [rank.result() for rank in ranks]


def test_what_a_collective_makes_for_itself_stays_in_memory() -> None:
    """Gloo receives into a tensor of its own thread's, and the kernel, which writes there, cannot be made to wait."""
    assert min(moved_by_two_ranks("gather_under_chaos", 40)) > 0


def test_what_a_collective_works_on_stays_for_as_many_steps_as_it_takes() -> None:
    assert moved_by_two_ranks("reduce_over_steps", 4)[0] > 0


def test_what_a_backend_s_own_method_works_on_stays_as_long_as_that_takes() -> None:
    assert child.run("cases_collectives:on_backends", 6, env=CHAOS) > 0
