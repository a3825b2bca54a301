"""Typed face of ``native/core/decider.hpp``, which the runtime's arena asks too, of ``native/simulate``, the
simulator's engine, and of ``native/search``, prices and bounds; loads no torch. Sizes are bytes."""

from array import array
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ebbtide.ir.schedule import Schedule

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Flags = npt.NDArray[np.bool_]

BUILT_FOR_TORCH: str
"""The minor version, as "2.13", that this module and ``ebbtide._torch``, which loads with no other, were built for."""

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

class Pieces:
    """What ``simulator.pieces.Pieces`` has, by piece and by tick, as native columns. Raises ValueError for columns that
    do not belong together."""

    def __init__(
        self,
        *,
        nbytes: npt.ArrayLike,
        paged_bytes: npt.ArrayLike,
        packed_bytes: npt.ArrayLike,
        first_use: npt.ArrayLike,
        moves: npt.ArrayLike,
        persistent: npt.ArrayLike,
        scratch: npt.ArrayLike,
        birth: npt.ArrayLike,
        generations: npt.ArrayLike,
        of: npt.ArrayLike,
        uses: tuple[_Ints, _Ints, _Ints, _Ints],
        births: tuple[_Ints, _Ints],
        deaths: tuple[_Ints, _Ints],
        n_used: npt.ArrayLike,
        reads: npt.ArrayLike,
        writes: npt.ArrayLike,
        times: npt.ArrayLike,
    ) -> None:
        """``persistent``, ``scratch`` and ``birth`` are the storage's. ``generations``: how many of it live when a step
        begins. ``of`` is by storage: the piece that is all of it. Uses are (tick, piece, mode, until), births and
        deaths (tick, piece), in order at each tick."""

class Machine:
    """Tiers by rank, and what ``native/simulate/machine.hpp`` says of them, of links and of groups."""

    def __init__(
        self,
        *,
        tiers: Sequence[tuple[int | None, bool, bool, float, float, bool]],
        links: Sequence[tuple[int, int, float, float, int, float]],
        groups: Sequence[tuple[float, bool]],
        chunk_bytes: int | None,
        exclusive: bool,
        overlap: float,
        fast_read_ns: float,
        fast_write_ns: float,
    ) -> None: ...

class Record:
    """Of the last step; see ``simulator.result.Figures``."""

    starts: _Floats
    stalls: _Floats
    by_cause: list[float]
    moved_bytes: list[int]
    rescues: int
    demand_fetches: int
    demand_bytes: int
    n_uses: int
    hits: int
    slower_ns: float
    slow_reads: list[int]
    slow_writes: list[int]
    area: list[float]
    peak: list[int]

def simulate(pieces: Pieces, machine: Machine, schedule: Schedule, n_steps: int) -> Record | int:
    """Runs steps under a schedule, without the GIL. A number is the tick that does not fit. Raises ValueError for a
    schedule of another step."""

class Storages:
    """Of each storage its life, and of all of them the uses, sorted by storage, then tick. Raises ValueError for
    columns that do not belong together."""

    def __init__(
        self, *, n_ticks: int, birth: _Ints, death: _Ints, persistent: _Flags, use_storage: _Ints, use_tick: _Ints
    ) -> None: ...

def lower(
    storages: Storages,
    *,
    n_tiers: int,
    links: Sequence[tuple[int, int]],
    stays: tuple[_Ints, _Ints, _Ints, _Ints, _Ints],
) -> Schedule:
    """The schedule of a plan with these stays (storage, rank of the tier, start, valid from, stop), in which all other
    storages are in the first tier from birth to death. Those of one storage MUST follow each other, and the plan MUST
    have been checked. ``links`` are pairs of the ranks of a source and a target."""

def simulate_stays(
    pieces: Pieces,
    machine: Machine,
    storages: Storages,
    stays: tuple[_Ints, _Ints, _Ints, _Ints, _Ints],
    n_steps: int,
) -> Record | int:
    """``simulate`` under what ``lower`` makes of the stays."""

def find_prices(
    *,
    low: _Ints,
    high: _Ints,
    paged: _Ints,
    cost: _Floats,
    group: _Ints,
    write_cost: _Floats,
    deficit: _Ints,
    rounds: int,
) -> tuple[_Floats, float]:
    """Prices of a byte of room by tick, and a bound on the cost of all choices (``planners.search.choice``), without
    the GIL. Interval i gives ``paged[i]`` bytes to the ticks [low[i], high[i]), of which ``low`` is in the step and
    ``high`` at most two steps on. Raises ValueError for columns that do not belong together."""

def choose(
    *,
    must: tuple[_Ints, _Ints, _Ints],
    wish: tuple[_Ints, _Ints, _Ints],
    paged: _Ints,
    cost: _Floats,
    group: _Ints,
    write_cost: _Floats,
    rounds: int,
) -> npt.NDArray[np.uint8] | None:
    """Which intervals to take (``planners.search.choice``), without the GIL. A demand has low, high and deficit."""

def carried(
    *,
    first: _Ints,
    last: _Ints,
    leaves: _Floats,
    needed: _Floats,
    out_ns: _Floats,
    in_ns: _Floats,
    bin_ns: float,
    n_bins: int,
    order: _Ints,
    others: _Flags,
    write_bins: float,
    fetch_bins: float,
) -> npt.NDArray[np.uint8]:
    """By group of copies, whether the links of a tier carry them in time (``planners.search.slow_tiers``), without the
    GIL."""

def time_moves(
    *,
    after: _Ints,
    until: _Ints,
    ready: _Ints,
    paged: _Ints,
    tier: _Ints,
    pays: _Flags,
    returns: _Flags,
    in_ns: _Floats,
    out_ns: _Floats,
    free: _Ints,
    reached: _Floats,
    step_ns: float,
    lead_ns: float,
    lazy: bool,
) -> tuple[_Ints, _Ints, _Ints, _Ints]:
    """Out, done, gone and back of the moves of chosen intervals (``planners.search.timing``), without the GIL."""

def stays_of(
    *,
    storage: _Ints,
    group: _Ints,
    until: _Ints,
    tier: _Ints,
    returns: _Flags,
    moves: tuple[_Ints, _Ints, _Ints, _Ints],
    birth: _Ints,
    death: _Ints,
    persistent: _Flags,
    dirty: _Flags,
    n_ticks: int,
) -> tuple[_Ints, _Ints, _Ints, _Ints, _Ints]:
    """The stays that ``simulate_stays`` takes, of moves as ``time_moves`` gives them, sorted by storage. ``birth``,
    ``death`` and ``persistent`` are by storage, ``dirty`` is by group."""

def longest_windows(
    *,
    cuts: _Ints,
    begins_ns: _Floats,
    fresh: _Floats,
    uses: tuple[_Ints, _Ints, _Ints],
    rests: tuple[_Ints, _Ints, _Ints],
    walls: Sequence[tuple[int, list[tuple[float, float]], float, float]],
) -> float:
    """The time in ns of the row of windows between cuts that takes longest (``planners.search.bound``), without the
    GIL. Raises ValueError for columns that do not belong together."""
