"""Who leaves first: for each tier, its movable pieces by a key that the policy gives them, smallest first.

Heaps with entries that have become stale: one counts only if the piece still has that key and is valid there.
"""

import heapq
from collections.abc import Callable, Iterator


class Order:
    """``key[p]`` is piece p's; ``is_valid(p, tier)`` says who is there. A tier's heap is made when it is first asked
    for, since most simulations of plans never ask."""

    def __init__(self, n_tiers: int, key: list[float], is_valid: Callable[[int, int], bool]) -> None:
        self.key = key
        self._is_valid = is_valid
        self._heaps: list[list[tuple[float, int]] | None] = [None] * n_tiers
        self.asked = False

    def touch(self, piece: int, key: float) -> None:
        """The piece has a new key, on all tiers."""
        self.key[piece] = key
        if self.asked:
            for tier in range(len(self._heaps)):
                self.arrive(piece, tier)

    def arrive(self, piece: int, tier: int) -> None:
        heap = self._heaps[tier]
        if heap is not None:
            heapq.heappush(heap, (self.key[piece], piece))

    def victims(self, tier: int, may_leave: Callable[[int], bool]) -> Iterator[int]:
        """Those valid on the tier that may leave now, in order. What is taken from the iterator MUST leave."""
        heap = self._heaps[tier]
        if heap is None or len(heap) > 4 * len(self.key) + 1000:
            self.asked = True
            heap = [(key, piece) for piece, key in enumerate(self.key) if self._is_valid(piece, tier)]
            heapq.heapify(heap)
            self._heaps[tier] = heap
        passed: list[tuple[float, int]] = []
        try:
            while heap:
                entry = heapq.heappop(heap)
                key, piece = entry
                if key != self.key[piece] or not self._is_valid(piece, tier) or (passed and entry == passed[-1]):
                    continue
                if may_leave(piece):
                    yield piece
                else:
                    passed.append(entry)
        finally:
            for entry in passed:
                heapq.heappush(heap, entry)
