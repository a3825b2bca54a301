"""Collectives work on memory that nobody else sees, in threads of their own."""

import socket

from tests.helpers import child

CHAOS = {"EBBTIDE_POLICY": "demand", "EBBTIDE_CHAOS_RATE": "1", "EBBTIDE_CHAOS_SEED": "3"}


def test_what_a_collective_makes_for_itself_stays_in_memory() -> None:
    """Gloo receives into a tensor of its own thread's, and the kernel, which writes there, cannot be made to wait."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    ranks = [child.Child("cases_collectives:gather_under_chaos", (rank, 2, port, 40), CHAOS) for rank in range(2)]
    with ranks[0], ranks[1]:
        moved = [rank.result() for rank in ranks]
    assert min(moved) > 0
