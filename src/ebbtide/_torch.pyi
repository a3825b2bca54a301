"""Typed face of the native module: the arena behind ``c10::Allocator`` and the recorder.

Sizes are bytes, times are nanoseconds. The arena lives until the process ends.
Every call is made with the GIL held; none of the native threads takes it.
"""

from collections.abc import Callable, Sequence
from typing import TypedDict

from torch import Tensor

from ebbtide.ir.recording import Recording
from ebbtide.planning.load_schedule import ScheduleColumns

KINDS: tuple[str, ...]
"""The order of every per-kind tuple. This and the next four are the names in ``ebbtide.ir.native.WORDS``."""
PHASES: tuple[str, ...]
LANES: tuple[str, ...]
VERBS: tuple[str, ...]
ACCESSES: tuple[str, ...]

MANAGED_BYTES: int
"""The smallest storage that an arena manages, unless ``start`` says otherwise."""

class Counters(TypedDict):
    """Cumulative since the process started, unless said otherwise."""

    # levels, now
    live_bytes: int  # requested bytes of all managed storages, resident or not
    resident_bytes: int  # page-rounded, backing live storages
    clean_bytes: int  # part of resident whose file copy is valid
    dirty_bytes: int  # part of resident whose file copy is not
    reserved_bytes: int  # pages of the arena: resident + pages kept by freed blocks and by the pool
    arena_limit_bytes: int  # the arena's budget now (0 = unbounded)
    process_limit_bytes: int  # the process's bound (0 = none)
    unmanaged_bytes: int  # resident memory of the process outside the arena, as last measured
    slower_memory_bytes: int  # resident memory that lies in tiers between memory and the spill file
    process_peak_bytes: int  # of the process less that, as the governor saw it since reset_peaks()
    # by slower tier, the fastest first, the spill file last
    tier_bytes: tuple[int, ...]  # that lie there; space of the spill file
    tier_peak_bytes: tuple[int, ...]  # of tiers that pack: the most that ever lay there; else 0
    tier_written_bytes: tuple[int, ...]
    tier_read_bytes: tuple[int, ...]
    spill_bytes: int  # file space reserved
    blocks: int  # live managed storages
    # peaks, reset by reset_peaks()
    live_peak_bytes: int
    reserved_peak_bytes: int
    resident_peak_bytes: int
    reserved_byte_ns: float  # integral of reserved_bytes over time since reset_peaks()
    resident_byte_ns: float  # and of resident_bytes
    measured_ns: int  # duration of both integrals
    # traffic by kind (page-rounded bytes); what moved in the step under way counts for the kind that a storage has now
    evicted_bytes: tuple[int, int, int, int, int]  # from fast memory, written or not
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
    looked_at: int  # storages, in search of victims
    memory_areas: int  # of the arena now, at most: a level
    # what an operator needs at once
    largest_operator_bytes: int  # most page-rounded operand bytes of one operator (inputs, outputs, scratch)
    largest_operator_used: int  # of those, what its operands themselves take: they may be slices of large storages
    largest_operand_bytes: int  # of those, the largest storage that it was given
    largest_operator: str
    stuck_at_bytes: int  # most bytes reserved when nothing could be evicted and room was short; 0: never
    # trouble
    over_budget: bool  # the watchdog or an impossible operator went over the arena's budget
    message: str  # first trouble in words ("" when none)

class AskedTier:
    def __init__(self, *, kind: str, capacity_bytes: int, node: int) -> None:
        """``node`` is that of NUMA's, or -1."""

class ArenaSettings:
    """What an arena is to be, made with defaults."""

    spill_dirs: Sequence[str]
    tiers: Sequence[AskedTier]  # between memory and the spill directories, the fastest first
    arena_bytes: int  # the arena's bound; 0: none
    process_bytes: int  # the process's bound; 0: none
    min_bytes: int  # smaller storages are not managed
    piece_bytes: int  # storages of twice as much are in pieces; 0: none is
    policy: str  # who is evicted where no schedule says so: a name in ``_planning.POLICIES``
    io_threads: int  # for each slower tier
    watchdog_ns: int
    chaos_rate: float
    chaos_seed: int

def start(asked: ArenaSettings) -> None:
    """Manage CPU storages from now on. A later call sets a new budget; the first call's tiers hold.

    Raises RuntimeError when a spill directory cannot be used, and ValueError for a tier that cannot be had, or no such
    policy (the text says why and what to do).
    """

def measure_tier(kind: str, node: int) -> dict[str, float]:
    """Bytes a second of one thread: ``out`` to such a tier and ``back``, and, where it is used in place (else 0),
    ``read`` and ``write`` there, and ``fast_read`` and ``fast_write`` in fast memory. ValueError where there is none.
    """

def check_tier(kind: str, capacity_bytes: int, node: int) -> None:
    """Raises ValueError, which says why, where such a tier cannot be had."""

def load_latency_ns(node: int, nbytes: int) -> float:
    """Of a load that waits for the one before it, from so much of a NUMA node's memory; of -1: of this process's.

    Raises RuntimeError where that cannot be had.
    """

def place_on_node(address: int, nbytes: int, node: int) -> int:
    """All pages of a mapping that nobody has touched. 0, or the errno of why not."""

def stop() -> None:
    """New storages go to the previous allocator again; those managed stay valid, under the same budget."""

def set_checksum(on: bool) -> None:
    """Whether what is written to the spill file gets a checksum, and what is read is compared with it if it has one."""

def set_limits(*, arena_bytes: int, process_bytes: int) -> None: ...
def watch(*, piece_bytes: int = ...) -> None:
    """See every CPU storage of this process from now on, without an arena: steps can be recorded, nothing moves.

    Raises RuntimeError where an arena has been started, or another allocator cannot be stood in front of.
    """

def unwatch() -> None:
    """From here allocations without an arena are not noted."""

def notice(tensors: Sequence[Tensor]) -> None:
    """Without an arena: these storages exist, whether or not an operator of the step uses them."""

def begin_step(*, record: bool = False) -> Counters:
    """A step begins on this thread: storages born from now on are activations unless classified.

    Returns the counters as they are at that moment; without an arena, all are 0.
    """

def end_step(*, completed: bool = True) -> Counters:
    """A step ends: unclassified survivors become "other"; per-storage traffic is added to its kind's counters.

    Returns the counters as they are then, so that between two edges of steps none is less than it was.
    """

def note_lines(rules: Sequence[tuple[str, bool, int, str]]) -> None:
    """From now on: recorded steps note which line of the user's program made each storage; with no rules, they do not.

    A rule is (text, anywhere, rank, shown), as [Note: lines] (native/torch/lines.hpp) says. Raises nothing.
    """

def line_here(of_node: str) -> str:
    """The line that runs now, "" if none is noted; ``of_node`` stands for what lies around the engine of autograd."""

def enter_module(name: str) -> int:
    """The module that runs from now on in the step that is recorded; returns the number of the one before."""

def back_to_module(number: int) -> None: ...
def enter_optimizer(enters: bool) -> None:
    """What runs on this thread is an optimizer's, until it is told otherwise or a step begins."""

def defer(number: int, own: Sequence[Tensor], gradient: Tensor) -> bool:
    """Update ``number`` uses these tensors and ``gradient``; before anybody else does, the updater makes it, in the
    modes that this thread is in now. False, and nothing is deferred: another deferred update has some of that memory.
    """

def carried_out(number: int) -> None:
    """The update has been made."""

def set_updater(updater: Callable[[int], type[BaseException] | None] | None) -> None:
    """Who makes updates, by their numbers, on the thread that looks. A type that it returns is raised there."""

def make_in_its_modes(number: int, make: Callable[[], None]) -> None:
    """Runs what makes an update in the modes in which it was deferred; its own operators are not looked at."""

def memory_of(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Of the storages, address and bytes; nobody looks there."""

def is_unshared(tensor: Tensor) -> bool:
    """No array or library shares its memory with PyTorch, as far as is known, or it is too small to be managed."""

def look_at(tensors: Sequence[Tensor]) -> None:
    """Somebody is about to use these: updates of them that are deferred are made."""

def look_at_memory(address: int, nbytes: int) -> None: ...
def carry_out(numbers: Sequence[int]) -> None:
    """Makes these updates, as far as they are deferred still."""

def carry_out_all() -> None: ...
def deferred_count() -> int:
    """Updates that have not been made yet."""

def abandon_deferred() -> None:
    """In a forked child: nobody looks any more."""

def take_recording() -> Recording:
    """What the last recorded step left behind, once; no ticks when there is none."""

def touches_nothing(name: str, overload: str) -> bool:
    """The operator makes a view, or memory that nobody has written. ValueError for one that is not registered."""

def over_lists(name: str) -> bool:
    """The operator does the same to each element of its lists, and is seen as one operator per element or group."""

def cut_groups(elements: list[list[int]]) -> list[int]:
    """How many elements of a fused optimizer's lists make each group; of each element the sizes of its storages."""

def uses_of(name: str, overload: str, leaves_gradients: bool) -> list[tuple[int, bool]]:
    """By argument, what the operator does with it: ``ir.trace.Access``, and whether it writes without reading.

    ``leaves_gradients``: in this call a fused optimizer unscales no gradients, so it only reads them.
    """

def load_schedule(columns: ScheduleColumns) -> int:
    """Follow this schedule in every step that allocates like it; returns its number.

    Raises ValueError for columns that make no schedule for the tiers that there are.
    """

def unload_schedules() -> None: ...
def followed() -> int | None:
    """The schedule that the last step followed from its beginning to its end."""

def gone() -> int:
    """Of that schedule's storages from before a step, how many have gone since the first step that followed it."""

def classify(tensors: Sequence[Tensor], kind: int) -> None:
    """Name the kind (index into KINDS) of the storages behind these tensors; unmanaged ones are skipped."""

def counters() -> Counters: ...
def reset_peaks() -> None: ...
def reset_needs() -> None:
    """What operators needed so far, and where room was short, is forgotten."""

def set_aside(bytes: int, process: int = 0) -> None:
    """The process's bound leaves so much to another process, or what that holds of its own where it is more."""

def remeasure_unmanaged() -> None:
    """What the process holds outside the arena counts as it is now: what was passing since the step ended is over."""

def read_record(reader: object, name: str, nbytes: int) -> Tensor:
    """A record of a file of torch.save, as bytes: they are copied to memory, not read by the kernel."""

def is_managed(tensor: Tensor) -> bool: ...
def is_resident(tensor: Tensor) -> bool:
    """False for a managed storage whose pages are away; reading this does not fetch it."""

def evict(tensors: Sequence[Tensor]) -> int:
    """Evict these storages now and wait; returns the bytes evicted (for tests and tools)."""

def pin(address: int, nbytes: int = 0) -> bool:
    """Fetch the storage this address lies in, make it writable, and keep it there; False when it is not a managed one.

    In a forked child it is brought and False returned. RuntimeError when it cannot be read, or is not the child's.
    """

def unpin(address: int, nbytes: int = 0) -> None:
    """Undo one ``pin``."""

def adopt_all(objects: list[object], owners: list[object], locals: list[object]) -> tuple[int, list[tuple[int, str]]]:
    """Move into the arena the storages that these objects reach and that nobody else holds; every view follows.

    ``objects`` is what ``gc.get_objects()`` lists, ``owners`` are reducers and modules of ``torch.jit``, which hold
    tensors in C++, ``locals`` is what running functions hold besides, each reference once.
    Returns the bytes adopted, and of each storage left alone its bytes and why.
    """

def install_fault_handler() -> bool:
    """Put the SIGSEGV safety net on top again, chained to whoever took it; True when it had to."""
