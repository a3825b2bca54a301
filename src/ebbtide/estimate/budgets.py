"""Estimates what a step takes within each budget. Pure functions of a trace, a machine, and what else a process holds.

A row's process holds the arena and the rest (``Rest``). Ebbtide's runtime takes about what fake tensors take in the
process that showed the rest. Left out: holes that the C library leaves between tensors in plain PyTorch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from ebbtide.budget.bounds import arena_within, smallest_process
from ebbtide.errors import InfeasibleBudgetError
from ebbtide.ir.base import Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes, needed_bytes, peak
from ebbtide.ir.trace import Trace
from ebbtide.pipeline.trials import try_policy
from ebbtide.planners.base import budget_of, page_size_of
from ebbtide.planning.plan_job import planning_bytes_for
from ebbtide.units import GIB, seconds

SHARES = ("100%", "75%", "50%", "25%", "10%")
SIZES_GIB = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
"""Memory that people have."""
COMMON_DISK_BYTES = 600 * 10**12
"""What may be written to a common disk before it wears out: the rating of many an SSD of 1 TB."""
PATIENCE_S = 60.0
"""After this long, no further budget is tried; the others are marked as untried."""
SMALL_COST = 1.10
"""A budget is proposed if its steps take at most so many times the unlimited one, unless another limit is named."""

_ROWS_TIMES = 3
"""A run's recording has so many times the rows of a step on fake tensors: it has operators in others, and scratch."""
_DAY_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Rest:
    """Bytes of a process that are no tensors: those of the script's process, and those in which kernels work, at each
    tick or at any."""

    script_bytes: int
    kernel_bytes: int | Ints

    @property
    def nbytes(self) -> int:
        """The most at once: a budget may be full whenever a kernel works."""
        return self.script_bytes + int(np.max(self.kernel_bytes))

    def process_peak(self, trace: Trace, machine: Machine) -> int:
        """Return where the process peaks if all tensors stay in memory."""
        return self.script_bytes + peak(live_bytes(trace, page_size_of(machine)) + self.kernel_bytes)


@dataclass(frozen=True, slots=True)
class Row:
    """A budget: ``fast`` as ``--fast`` takes it, what tensors may use of it, and where the process peaks.

    ``step_ns`` and ``written_bytes`` are a step's, None where there is no plan (``why_not``). ``fits``: the machine has
    the memory. ``wears_bytes`` can be written to the disk before it wears out.
    """

    fast: str
    tensors_bytes: int
    process_bytes: int
    step_ns: int | None
    written_bytes: int | None
    wears_bytes: int
    fits: bool
    why_not: str = ""

    @property
    def written_a_day(self) -> int | None:
        if self.step_ns is None or self.written_bytes is None:
            return None
        return round(self.written_bytes * _DAY_S / max(seconds(self.step_ns), 1e-9))

    @property
    def wears_out_days(self) -> float | None:
        """Days of training until the disk wears out; None where nothing is written."""
        return self.wears_bytes / self.written_a_day if self.written_a_day else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a step needs and takes. The peaks are those of a run in which nothing has to move.

    ``least_fast`` and ``least_process_bytes`` are the smallest budgets that work, as a share and as a size. A budget is
    proposed if its steps take at most ``small_cost`` times ``step_ns``. On a ``device`` the process is not bounded:
    what is said of it is said of the tensors there.
    """

    tensors_bytes: int
    process_bytes: int
    step_ns: int
    least_fast: str
    least_process_bytes: int
    rows: tuple[Row, ...]
    small_cost: float = SMALL_COST
    device: str | None = None

    @property
    def proposed(self) -> Row | None:
        """The smallest budget that fits here and costs little; else the fastest that fits; None if none does. On a
        device always the fastest: what is left there serves nobody else."""
        fitting = [row for row in self.rows if row.fits and row.step_ns is not None]
        if self.device is not None:
            return min(fitting, key=lambda row: (row.step_ns or 0, -row.process_bytes), default=None)
        cheap = [row for row in fitting if (row.step_ns or 0) <= self.small_cost * self.step_ns]
        if cheap:
            return min(cheap, key=lambda row: row.process_bytes)
        return min(fitting, key=lambda row: row.step_ns or 0, default=None)


def estimate(
    trace: Trace,
    machine: Machine,
    rest: Rest,
    begin: Callable[[str], None] = lambda what: None,
    small_cost: float = SMALL_COST,
    device: str | None = None,
) -> Estimate:
    """Plan and simulate the budgets of ``budgets_of``. ``begin`` is told of each. ``device``: its memory is bounded,
    and the machine's second tier is pinned host memory."""
    tensors, least = peak(live_bytes(trace)), peak(needed_bytes(trace, page_size_of(machine)))
    began, rows = perf_counter(), []
    for fast, arena_bytes, process_bytes in budgets_of(trace, machine, rest, device is not None):
        if perf_counter() - began > PATIENCE_S:
            rows.append(_row(fast, arena_bytes, process_bytes, machine, why_not="not tried: took too long"))
            continue
        begin(f"planning for {fast}")
        rows.append(_tried(fast, arena_bytes, process_bytes, trace, machine))
    return Estimate(
        tensors_bytes=tensors,
        process_bytes=rest.process_peak(trace, machine),
        step_ns=trace.step_ns,
        least_fast=f"{min(-(-100 * least // max(tensors, 1)), 100)}%",
        least_process_bytes=_least_process(trace, machine, rest) if device is None else least,
        rows=tuple(rows),
        small_cost=small_cost,
        device=device,
    )


def budgets_of(trace: Trace, machine: Machine, rest: Rest, on_device: bool = False) -> Sequence[tuple[str, int, int]]:
    """Return ``--fast``, the arena's bytes and the process's: shares, and sizes between the least and the peak. On a
    device sizes bound tensors alone, and what it has is one of them."""
    pages = page_size_of(machine)
    most = rest.process_peak(trace, machine)
    least = peak(needed_bytes(trace, pages)) if on_device else _least_process(trace, machine, rest)
    shares = [(share, budget_of(share, trace, machine.with_fast(None))) for share in SHARES]
    found = [(share, nbytes, min(nbytes + rest.nbytes, most)) for share, nbytes in shares]
    known = {*SIZES_GIB, *([(machine.tiers[0].capacity_bytes or 0) // GIB] if on_device else [])}
    sizes = [size * GIB for size in known if least <= size * GIB < most]
    found += [(f"{size // GIB}GiB", size if on_device else arena_within(size, rest.nbytes), size) for size in sizes]
    return sorted(found, key=lambda row: -row[2])


def _least_process(trace: Trace, machine: Machine, rest: Rest) -> int:
    planning = planning_bytes_for(_ROWS_TIMES * (len(trace.ticks) + len(trace.storages)))
    return smallest_process(rest.nbytes, peak(needed_bytes(trace, page_size_of(machine))), planning)


def _tried(fast: str, arena_bytes: int, process_bytes: int, trace: Trace, machine: Machine) -> Row:
    tried = try_policy("ebbtide", trace, machine.with_fast(None), arena_bytes)
    if tried.outcome is None:
        is_too_small = isinstance(tried.failure, InfeasibleBudgetError)
        return _row(fast, arena_bytes, process_bytes, machine, why_not="too small" if is_too_small else tried.why_not)
    written = 0 if tried.costs is None else tried.costs.written_bytes[machine.tiers[-1].name]
    return _row(fast, arena_bytes, process_bytes, machine, tried.outcome.step_ns, written)


def _row(
    fast: str,
    arena_bytes: int,
    process_bytes: int,
    machine: Machine,
    step_ns: int | None = None,
    written_bytes: int | None = None,
    why_not: str = "",
) -> Row:
    capacity = machine.tiers[0].capacity_bytes
    wears = machine.tiers[-1].endurance_bytes or COMMON_DISK_BYTES
    fits = capacity is None or process_bytes <= capacity
    return Row(fast, arena_bytes, process_bytes, step_ns, written_bytes, wears, fits, why_not)
