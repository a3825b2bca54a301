"""Online policies: what a policy of the native decider leaves open, seen from one moment of a simulation.

Who leaves when room is short, what counts as a use, what leaves on its own and how much is kept free: all that is
``native/core/decider.hpp``, which the runtime asks too. Here is what only machines with several tiers have: where
births go, and what is promoted. Policies know the past, except for ``lru-next-use``. All but those that work in place
bring every operand to the first tier on demand, as a hardware-managed cache would.
"""

from collections.abc import Callable, Mapping
from functools import partial

from ebbtide._planning import POLICIES as RULES
from ebbtide._planning import Policy as Rule
from ebbtide.simulator.shortage import Shortage


class Policy:
    """The base of all: everything comes to the first tier. ``rule`` is the decider's.

    ``uses_in_place`` says whether operations may use a slower tier that allows it, instead of a fetch.
    """

    uses_in_place = False

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def home(self, run: Shortage, piece: int) -> int:
        """The rank of the tier on which a piece is born, or is at the beginning."""
        return 0

    def sees(self, run: Shortage, piece: int) -> None:
        """An access that counts as a use."""

    def after(self, run: Shortage, tick: int) -> None:
        """When its operation has ended."""


class Plan(Policy):
    """Under a plan operations work in place where the plan has it so; the safety net knows the next uses."""

    uses_in_place = True

    def __init__(self) -> None:
        super().__init__(RULES["lru-next-use"])


class FirstTouch(Policy):
    """Whatever finds room on the first tier when it is born stays there for life, the rest on the next tier with room.

    AutoTM's NUMA baseline. What operations cannot use where it is is transient, and leaves after its operation.
    """

    uses_in_place = True

    def home(self, run: Shortage, piece: int) -> int:
        rank = next((rank for rank in range(run.n_tiers) if run.has_room(piece, rank)), 0)
        run.transient[piece] = rank > 0
        return rank if not run.is_born(piece) or run.writes_in_place(rank) else 0


class Reactive(Policy):
    """After TPP (ASPLOS'23): samples accesses, promotes what is seen twice, demotes in the background.

    The decider has it that one access in four is seen, in turn, as page-protection faults would, and how much of the
    first tier is kept free. What is seen on a slow tier for the second time within a step is promoted beside the
    compute, once there is room for it; for a promotion that lacks room what was seen least recently is demoted.
    Reconstructed from the paper's abstract design: pages, active lists and their ageing are left out. Where a slow tier
    cannot be used in place, absent storages come on demand, and this is the kernel's swap with its background reclaim.
    """

    uses_in_place = True

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self._seen: dict[int, int] = {}
        self._hot: set[int] = set()

    def home(self, run: Shortage, piece: int) -> int:
        if run.fits(0, run.pieces.paged_bytes[piece]):
            return 0
        return next((rank for rank in range(1, run.n_tiers) if run.writes_in_place(rank)), 0)

    def sees(self, run: Shortage, piece: int) -> None:
        before = self._seen.get(piece)
        self._seen[piece] = run.at
        if before is not None and run.at - before <= run.n_ticks:
            self._hot.add(piece)

    def after(self, run: Shortage, tick: int) -> None:
        for piece in sorted(self._hot):
            paged = run.pieces.paged_bytes[piece]
            if run.is_only_slow(piece) and not run.fits(0, paged):
                run.make_room(paged, forced=False)
                if run.evicting_bytes:
                    continue  # until it has left
            self._hot.discard(piece)
            run.promote(piece)


_OTHERS: Mapping[str, Callable[[Rule], Policy]] = {"first-touch": FirstTouch, "reactive": Reactive}

POLICIES: Mapping[str, Callable[[], Policy]] = {
    name: partial(_OTHERS.get(name, Policy), rule) for name, rule in RULES.items()
}
"""By name; each simulation has one of its own."""
