"""Typed face of ``native/core/decider.hpp``, which the runtime's arena asks too; loads no torch. Sizes are bytes."""

from array import array
from collections.abc import Callable

class Policy:
    """The settings of a policy; comments in the header say what each means."""

    @property
    def name(self) -> str: ...
    @property
    def sees_every(self) -> int:
        """One access in so many counts as a use."""

    @property
    def goes_ahead(self) -> bool:
        """Whether ``ahead_bytes`` is ever above 0."""

    @property
    def ahead_of_pressure(self) -> bool:
        """Also before room has ever been short."""

    @property
    def evicts_some_after_use(self) -> bool:
        """Whether ``evicts_after_use`` is ever true."""

    def evicts_after_use(self, transient: bool) -> bool:
        """Whether it is evicted when its operation has ended. A transient one found no room at birth, or lost it."""

    def batch_bytes(self, budget: int) -> int:
        """How much more than is needed is evicted where room is short."""

    def ahead_bytes(self, budget: int, free: int) -> int:
        """How much to evict ahead of need when so much is or will be free."""

POLICIES: dict[str, Policy]

class Order:
    """Who is evicted from a tier first. The columns are by piece, shared, and may be written at any time.

    Bit r of ``valid`` and ``evicting`` is for the tier of rank r; uses are ticks. Raises ValueError for columns that
    differ in length or type.
    """

    def __init__(
        self,
        policy: Policy,
        n_tiers: int,
        *,
        valid: array[int],
        evicting: array[int],
        nbytes: array[int],
        last_use: array[int],
        next_use: array[int],
        moves: array[int],
        transient: array[int],
    ) -> None: ...
    def changed(self, piece: int) -> None:
        """Callers MUST say so when a column changed for a piece, but for what is evicted or dies."""

    def victims(self, tier: int, needed: int, now: int, evictable: Callable[[int], bool]) -> list[int]:
        """Those on the tier that cover ``needed`` bytes, best first; all evictable ones if that is too little."""
