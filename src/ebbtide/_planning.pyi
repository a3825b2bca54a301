"""Typed face of ``native/core/decider.hpp``, which the runtime's arena asks too, of ``native/simulate``, the
simulator's engine, and of ``native/search``, prices and bounds; loads no torch. Sizes are bytes."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ebbtide.ir.schedule import Schedule

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Flags = npt.NDArray[np.bool_]

BUILT_FOR_TORCH: str
"""The minor version, as "2.13", that this module and ``ebbtide._torch``, which loads with no other, were built for."""

class Policy:
    """The settings of a policy: see the header."""

    @property
    def name(self) -> str: ...
POLICIES: dict[str, Policy]

class Pieces:
    """Columns by piece (``simulator.step_columns``) and by tick. Raises ValueError for those that do not belong
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
        """``moves``: whether it may move at all. ``packed_bytes``: what it takes on a tier that packs, -1 where it may
        not lie there. ``persistent``, ``scratch`` and ``birth`` are those of ``storage``. ``generations``: how many of
        it live when a step begins. ``of`` is by storage: the piece that is all of it. ``n_used``: of the uses of a
        tick, so many were there before; its operation touches ``reads`` and ``writes`` bytes. Uses are (tick, piece,
        mode, until), births and deaths (tick, piece), in order at each tick."""

class Tier:
    """``native/simulate/machine.hpp`` says what these mean; None is without a bound."""

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
    """Between the tiers of two ranks; ``group`` is a place among the machine's groups."""

    def __init__(
        self,
        *,
        source: int,
        target: int,
        bytes_per_ns: float,
        latency_ns: float,
        group: int | None,
        slows_compute: float,
    ) -> None: ...

class LinkGroup:
    def __init__(self, *, bytes_per_ns: float, in_order: bool) -> None: ...

class Machine:
    """Tiers by rank. Raises ValueError for a link that names what is not there."""

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

class Kernels:
    """Measured operations in place, by tick and rank of the slower tier (``simulator.measured_in_place``)."""

    def __init__(self) -> None: ...
    def add(self, *, tick: int, rank: int, adds_up: bool, extra_ns: Mapping[int, float]) -> None:
        """How much longer the operation takes by the placement of its operands, a sum of 2**i. ``adds_up``: the table
        has one operand each."""

    def add_operand(self, *, tick: int, rank: int, storage: int, operand: int) -> None:
        """Which operand of the tick's operation the storage is."""

class Asked:
    """What a simulation is asked for. Under a policy the schedule MUST be empty; None is what the schedule says."""

    def __init__(self, *, policy: Policy | None, n_steps: int, keeps_spans: bool, checks_state: bool) -> None: ...

class Record:
    """Of the last step, unrounded: times are ns. By tick, by cause (room, late, demand), by link, by tier; ``area`` is
    of reserved bytes, in byte ns."""

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
        """lane (a link, or -1: operations), kind, start_ns, stop_ns, tick, storage, nbytes; empty unless asked for."""

    def levels(self) -> dict[str, _Ints]:
        """rank, time_ns, nbytes."""

    def queued(self) -> dict[str, _Ints]:
        """The copies in the order in which they were put on their links: tick, storage, source, target."""

def simulate(
    pieces: Pieces, machine: Machine, kernels: Kernels, schedule: Schedule, asked: Asked
) -> Record | int:
    """Runs steps, without the GIL. A number is the tick that does not fit. Raises ValueError for a schedule of another
    step, KeyError for a command along no link, and RuntimeError where a state that is checked is wrong."""

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
    kernels: Kernels,
    storages: Storages,
    stays: tuple[_Ints, _Ints, _Ints, _Ints, _Ints],
    asked: Asked,
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
