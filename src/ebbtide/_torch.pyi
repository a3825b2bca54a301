"""Typed face of the native module: the arena behind ``c10::Allocator`` and the recorder.

Sizes are bytes, times are nanoseconds. The arena lives until the process ends.
Every call is made with the GIL held; none of the native threads takes it.
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

KINDS: tuple[str, ...]
"""("parameter", "gradient", "optimizer_state", "activation", "other"): the order of every per-kind tuple."""

class Counters(TypedDict):
    """Cumulative since the process started, unless said otherwise."""

    # levels, now
    live_bytes: int  # requested bytes of all managed storages, resident or not
    resident_bytes: int  # page-rounded, backing live storages
    clean_bytes: int  # part of resident whose file copy is valid
    dirty_bytes: int  # part of resident whose file copy is not
    held_bytes: int  # pages held by the arena: resident + pages kept by freed blocks and by the pool
    arena_limit_bytes: int  # the arena's budget now (0 = unbounded)
    process_limit_bytes: int  # the process's bound (0 = none)
    rest_bytes: int  # resident memory of the process outside the arena, as last measured
    spill_bytes: int  # file space reserved
    blocks: int  # live managed storages
    # peaks, reset by reset_peaks()
    live_peak_bytes: int
    held_peak_bytes: int
    held_byte_ns: float  # integral of held_bytes over time since reset_peaks()
    held_ns: int  # duration of that integral
    # traffic by kind (page-rounded bytes)
    evicted_bytes: tuple[int, int, int, int, int]  # left fast memory, written or dropped
    fetched_bytes: tuple[int, int, int, int, int]
    written_bytes: tuple[int, int, int, int, int]  # part of evicted that had to be written
    # time at least one thread stood still, by cause
    stall_room_ns: int
    stall_late_ns: int  # for a prefetch that was under way, or had been due to start
    stall_fetch_ns: int
    fetching_ns: int  # time of all threads in reads of the spill file
    evicting_ns: int  # and in writes
    faults: int  # demand fetches that a SIGSEGV forced (the rest were served before the operator ran)
    cancelled: int  # evictions cancelled by a write
    # what an operator needs at once
    largest_operator_bytes: int  # most page-rounded operand bytes of one operator (inputs, outputs, scratch)
    largest_operator: str
    # trouble
    over_budget: bool  # the watchdog or an impossible operator went over the arena's budget
    message: str  # first trouble in words ("" when none)

def start(
    *,
    spill_dirs: Sequence[str],
    arena_bytes: int,
    process_bytes: int,
    min_bytes: int,
    io_threads: int,
    watchdog_ns: int,
    chaos_rate: float,
    chaos_seed: int,
    policy: str,
    userfaultfd: bool,
) -> None:
    """Manage CPU storages of ``min_bytes`` and more from now on (0 = no bound). A later call sets a new budget.

    ``policy`` says who is evicted where no schedule does: a name in ``_decider.POLICIES``, else ValueError.
    ``userfaultfd`` asks that system calls wait for storages that are away; what the process's first call says holds.
    Raises RuntimeError when a spill directory cannot be used (the text says why and what to do).
    """

def serves_system_calls() -> bool:
    """Whether userfaultfd was asked for and is permitted."""

def stop() -> None:
    """New storages go to the previous allocator again; those managed stay valid, under the same budget."""

def set_limits(*, arena_bytes: int, process_bytes: int) -> None: ...
def watch() -> None:
    """See every CPU storage of this process from now on, without an arena: steps can be recorded, nothing moves.

    Raises RuntimeError where an arena has been started, or another allocator cannot be stood in front of.
    """

def unwatch() -> None:
    """Allocations without an arena are no longer noted."""

def notice(tensors: Sequence[Tensor]) -> None:
    """Without an arena: these storages exist, whether or not an operator of the step uses them."""

def begin_step(*, record: bool = False) -> None:
    """A step begins on this thread: storages born from now on are activations unless classified."""

def end_step(*, completed: bool = True) -> None:
    """A step ends: unclassified survivors become "other"; per-storage traffic is added to its kind's counters."""

Column = Sequence[int] | NDArray[np.int64]

class Recording(TypedDict):
    """One step. Ticks count operators on the step's thread from 1, tick 0 is what lies before; -1 is "never"."""

    time_ns: int  # of the whole step
    stalled_ns: int  # of which were stalls
    names: list[str]
    tick_name: NDArray[np.int64]  # in names
    tick_module: NDArray[np.int64]  # in names
    tick_arguments: NDArray[np.int64]  # in names: the call as JSON, see docs/format.md
    tick_depth: NDArray[np.int64]  # how many operators it runs in
    tick_phase: NDArray[np.int64]  # 1 backward pass, 2 optimizer
    tick_begin_ns: NDArray[np.int64]  # since the step began
    tick_stalled_ns: NDArray[np.int64]  # stalls between the step's and the tick's beginning
    tick_held: NDArray[np.int64]  # bytes that the arena held when the tick began
    serial: NDArray[np.int64]  # of storages: of the allocation, unique in the process
    nbytes: NDArray[np.int64]
    kind: NDArray[np.int64]
    birth: NDArray[np.int64]  # tick; -1: before the step
    allocation: NDArray[np.int64]  # within tick birth; -1: not by the step's thread
    death: NDArray[np.int64]  # first tick without it; -1: it outlived the step
    scratch: NDArray[np.int64]  # 1: born and gone within one operator
    thread: NDArray[np.int64]  # that allocated it
    freed_after: NDArray[np.int64]  # of one that died within the step: the serial given last before that
    module: NDArray[np.int64]  # in names: where it was born
    use_storage: NDArray[np.int64]  # an operator used this storage
    use_first: NDArray[np.int64]  # in ticks [use_first, use_last]
    use_last: NDArray[np.int64]
    use_access: NDArray[np.int64]  # 1 reads, 2 writes, 3 does both
    use_moved: NDArray[np.int64]  # bytes
    span_storage: NDArray[np.int64]  # a move of this storage, or a wait for it; -1: a wait for room for a new one
    span_tick: NDArray[np.int64]  # when it was asked for
    span_lane: NDArray[np.int64]  # 0 out, 1 back; a stall: 2 for room, 3 for a late prefetch, 4 for a demand fetch
    span_asked_ns: NDArray[np.int64]  # since the step began, as are the others
    span_begin_ns: NDArray[np.int64]
    span_end_ns: NDArray[np.int64]

def enter_module(name: str) -> int:
    """The module that runs from now on in the step that is recorded; returns the number of the one before."""

def back_to_module(number: int) -> None: ...
def enter_optimizer(enters: bool) -> None:
    """What runs on this thread is an optimizer's, until it is told otherwise or a step begins."""

def take_recording() -> Recording:
    """What the last recorded step left behind, once; no ticks when there is none."""

VERBS: tuple[str, ...]
"""("leave", "write", "fetch"): what ``command_verb`` counts."""

def load_schedule(
    *,
    tick_ns: Column,
    room: Column,
    nbytes: Column,
    serial: Column,
    birth: Column,
    allocations: Column,
    use_storage: Column,
    use_tick: Column,
    command_tick: Column,
    command_verb: Column,
    command_storage: Column,
    command_earliest: Column,
) -> int:
    """Follow this schedule in every step that allocates like it; returns its number.

    ``tick_ns`` are the beginnings of the ticks and the end of the last, ``room`` the bytes that the plan leaves free at
    each tick. By storage: its bytes, the serial of a live
    allocation that has its part (0: none), the tick of its birth (-1: it is not allocated in the step).
    ``allocations`` are the storages in the order of their births. Uses are sorted by tick within a storage, commands
    by tick; a late fetch may move to ``command_earliest``, through ticks with room for it. Raises ValueError for
    anything else.
    """

def unload_schedules() -> None: ...
def followed() -> int | None:
    """The schedule that the last step followed from its beginning to its end."""

def classify(tensors: Sequence[Tensor], kind: int) -> None:
    """Name the kind (index into KINDS) of the storages behind these tensors; unmanaged ones are skipped."""

def counters() -> Counters: ...
def reset_peaks() -> None: ...
def remeasure_rest() -> None:
    """What the process holds outside the arena counts as it is now: what was passing since the step ended is over."""

def is_managed(tensor: Tensor) -> bool: ...
def is_resident(tensor: Tensor) -> bool:
    """False for a managed storage whose pages are away; reading this does not fetch it."""

def evict(tensors: Sequence[Tensor]) -> int:
    """Evict these storages now and wait; returns the bytes that left (for tests and tools)."""

def hold(address: int) -> bool:
    """Fetch the storage this address lies in, make it writable, and keep it; False when it is not a managed one."""

def let_go(address: int) -> None:
    """Undo one ``hold``."""

def adopt(tensor: Tensor) -> tuple[int, str]:
    """Move a storage born elsewhere into the arena; every view follows.

    Returns (bytes adopted, "") or (0, why it was left alone); (0, "") when there is nothing to do.
    """

def install_fault_handler() -> bool:
    """Put the SIGSEGV safety net on top again, chained to whoever took it; True when it had to."""
