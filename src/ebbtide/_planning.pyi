"""Typed face of the native code of planning. ``native/core/decider.hpp`` is also the arena's, ``native/simulate`` is
the simulator's engine, and ``native/search`` has prices and bounds. Loads no torch. Sizes are bytes."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ebbtide.ir.schedule import Schedule

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Flags = npt.NDArray[np.bool_]

BUILT_FOR_TORCH: str
"""The minor version, as "2.13", for which this module and ``ebbtide._torch`` were built. They load with no other."""

class Policy:
    """The settings of a policy: the header explains them."""

    @property
    def name(self) -> str: ...

POLICIES: dict[str, Policy]

class Pieces:
    """Columns by piece (``simulator.step_columns``) and by tick. Raises ValueError for columns that do not belong
    together."""

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
        storage: npt.ArrayLike,
        of: npt.ArrayLike,
        uses: tuple[_Ints, _Ints, _Ints, _Ints],
        births: tuple[_Ints, _Ints],
        deaths: tuple[_Ints, _Ints],
        n_used: npt.ArrayLike,
        reads: npt.ArrayLike,
        writes: npt.ArrayLike,
        times: npt.ArrayLike,
    ) -> None:
        """``moves``: whether the piece may move at all. ``packed_bytes``: what it takes on a tier that packs, -1 where
        it may not lie there. ``persistent``, ``scratch`` and ``birth`` are those of ``storage``. ``generations``: how
        many of it live when a step begins. ``of`` has by storage the piece that it belongs to.

        ``n_used`` counts by tick the uses of pieces that were there before. A tick's operation touches ``reads`` and
        ``writes`` bytes. Uses are (tick, piece, mode, until), births and deaths (tick, piece), in order at each
        tick."""

    @property
    def storage(self) -> _Ints: ...

class Tier:
    """One tier: ``native/simulate/machine.hpp`` explains the fields. None is without a bound."""

    def __init__(
        self,
        *,
        capacity_bytes: int | None,
        reads: bool,
        writes: bool,
        read_ns: float,
        write_ns: float,
        packs: bool,
    ) -> None: ...

class Link:
    """A link between two tiers, by number. ``group`` is a place among the machine's groups."""

    def __init__(
        self,
        *,
        source: int,
        target: int,
        bytes_per_ns: float,
        latency_ns: float,
        group: int | None,
        slows_compute: float,
        beside_bytes_per_ns: float,
    ) -> None: ...

class LinkGroup:
    def __init__(self, *, bytes_per_ns: float, in_order: bool) -> None: ...

class Machine:
    """A machine; tiers have numbers. Raises ValueError for a link that names what is not there."""

    def __init__(
        self,
        *,
        tiers: Sequence[Tier],
        links: Sequence[Link],
        groups: Sequence[LinkGroup],
        chunk_bytes: int | None,
        exclusive: bool,
        overlap: float,
        fast_read_ns: float,
        fast_write_ns: float,
    ) -> None: ...

class Asked:
    """The settings of a simulation. Under a policy the schedule MUST be empty; None follows the schedule.

    ``score`` says who leaves the first tier, in place of the policy: it is called with columns by candidate, and the
    highest leaves first. What it raises ends the simulation."""

    def __init__(
        self,
        *,
        policy: Policy | None,
        score: Callable[[dict[str, _Ints]], npt.ArrayLike] | None = None,
        n_steps: int,
        keeps_spans: bool,
        checks_state: bool,
    ) -> None: ...

class Record:
    """The last step, unrounded; times are ns. Columns are by tick, by cause (room, late, demand), by link and by tier.
    ``area`` is of reserved bytes, in byte ns."""

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

    def spans(self) -> dict[str, _Ints]:
        """Return lane (a link, or -1: operations), kind, start_ns, stop_ns, tick, storage, nbytes; else nothing."""

    def levels(self) -> dict[str, _Ints]:
        """Return rank (of the tier), time_ns, nbytes."""

    def queued(self) -> dict[str, _Ints]:
        """Return the copies in the order in which links got them: tick, storage, source, target."""

def simulate(pieces: Pieces, machine: Machine, schedule: Schedule, asked: Asked) -> Record | int:
    """Run steps without the GIL. A number is the tick that does not fit. Raises ValueError for a schedule of another
    step, KeyError for a command along no link, and RuntimeError where a checked state is wrong."""

class Storages:
    """The life of each storage, and the uses of all, sorted by storage, then tick. Raises ValueError for columns that
    do not belong together."""

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
    """Make the schedule of a plan with these stays: storage, tier, start, valid from, stop. All other storages are in
    the first tier from birth to death. The stays of one storage MUST follow each other, and the plan MUST have been
    checked. ``links`` are pairs of source and target."""

def simulate_stays(
    pieces: Pieces,
    machine: Machine,
    storages: Storages,
    stays: tuple[_Ints, _Ints, _Ints, _Ints, _Ints],
    asked: Asked,
) -> Record | int:
    """Run ``simulate`` under the schedule that ``lower`` makes of the stays."""

def find_prices(
    *,
    low: _Ints,
    high: _Ints,
    paged: _Ints,
    cost: _Floats,
    group: _Ints,
    write_cost: _Floats,
    deficit: _Ints,
    anew: _Floats = ...,
) -> tuple[_Floats, float]:
    """Find the prices of a byte of room by tick, and a bound on the cost of all choices (``planners.search.choice``).
    Runs without the GIL. Interval i gives ``paged[i]`` bytes to the ticks [low[i], high[i]). ``low`` is in the step,
    and ``high`` at most two steps on. It costs ``anew[i]``, without a write, where that is less. Raises ValueError for
    columns that do not belong together."""

def choose(
    *,
    must: tuple[_Ints, _Ints, _Ints],
    wish: tuple[_Ints, _Ints, _Ints],
    paged: _Ints,
    cost: _Floats,
    group: _Ints,
    write_cost: _Floats,
) -> npt.NDArray[np.uint8] | None:
    """Choose the intervals to take (``planners.search.choice``), without the GIL. A demand is low, high, deficit."""

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
    """Return for each group of copies whether a tier's links carry them in time (``planners.search.slow_tiers``). Runs
    without the GIL."""

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
    """Time the moves of chosen intervals: out, done, gone and back (``planners.search.timing``), without the GIL."""

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
    """Make stays for ``simulate_stays`` from the moves of ``time_moves``, sorted by storage. ``birth``, ``death`` and
    ``persistent`` are by storage, ``dirty`` is by group."""

def longest_windows(
    *,
    cuts: _Ints,
    begins_ns: _Floats,
    fresh: _Ints,
    held: _Ints,
    held_before: _Ints,
    uses: tuple[_Ints, _Ints, _Ints],
    rests: tuple[_Ints, _Ints, _Ints],
    used: tuple[_Ints, _Ints, _Ints],
    outlived: tuple[_Ints, _Ints, _Ints],
    walls: Sequence[tuple[int, list[tuple[float, float]], float, float]],
) -> float:
    """Return the time in ns of the row of windows between cuts that takes longest (``planners.search.bound``). Runs
    without the GIL. Raises ValueError for columns that do not belong together."""
