"""Typed face of the native module: the arena behind ``c10::Allocator`` and the recorder.

Sizes are bytes, times are nanoseconds. The arena lives until the process ends. Every call is made with the GIL held;
none of the native threads takes it.
"""

from collections.abc import Callable, Sequence
from typing import TypedDict

from torch import Tensor, UntypedStorage

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
    """The arena's figures, cumulative since the process started unless said otherwise."""

    # levels, now
    live_bytes: int  # requested bytes of all managed storages, resident or not
    resident_bytes: int  # page-rounded, under live storages
    reserved_bytes: int  # pages of the arena: resident + pages kept by freed blocks and by the pool
    arena_limit_bytes: int  # the arena's budget now (0 = unbounded)
    unmanaged_bytes: int  # resident memory of the process outside the arena, as last measured
    elsewhere_bytes: int  # resident memory that is not fast: in NUMA tiers, and pages of data files that are mapped
    elsewhere_peak_bytes: int  # since reset_peaks()
    process_peak_bytes: int  # of the process less elsewhere_bytes, as the governor saw it since reset_peaks()
    # by slower tier, the fastest first, the spill file last
    tier_bytes: tuple[int, ...]  # bytes there now; for the spill file, its space
    tier_peak_bytes: tuple[int, ...]  # the most that ever lay on a tier that packs; for others 0
    tier_written_bytes: tuple[int, ...]
    tier_read_bytes: tuple[int, ...]
    blocks: int  # live managed storages
    # peaks, reset by reset_peaks()
    live_peak_bytes: int
    step_live_peak_bytes: int  # since the last step began; reset_peaks() leaves it
    reserved_peak_bytes: int
    resident_peak_bytes: int
    reserved_byte_ns: float  # integral of reserved_bytes over time since reset_peaks()
    resident_byte_ns: float  # and of resident_bytes
    measured_ns: int  # duration of both integrals
    # traffic by kind (page-rounded bytes); moves of the open step count for the kind that a storage has now
    evicted_bytes: tuple[int, int, int, int, int]  # from fast memory, written or not
    fetched_bytes: tuple[int, int, int, int, int]
    written_bytes: tuple[int, int, int, int, int]  # part of evicted that had to be written
    resident_bytes_by_kind: tuple[int, int, int, int, int]  # of resident_bytes: a level, now
    # time in which at least one thread stood still, by cause
    stall_room_ns: int
    stall_late_ns: int  # for a prefetch that was under way, or was due to start
    stall_fetch_ns: int
    fetching_ns: int  # time of all threads in reads of the spill file
    evicting_ns: int  # and in writes
    operators: int  # that began on the step's thread; 0 on a device
    faults: int  # demand fetches that a SIGSEGV forced (the rest were served before the operator ran)
    made_anew_bytes: int  # of storages that operators made once more
    made_anew_ns: int  # that this took, without stalls
    ingredient_bytes: int  # of storages that were made once more only for others to be made of them
    looked_at: int  # storages looked at in search of victims
    # what an operator needs at once
    largest_operator_bytes: int  # most page-rounded operand bytes of one operator (inputs, outputs, scratch)
    largest_operator_used: int  # of those, what its operands use: they may be slices of large storages
    largest_operand_bytes: int  # of those, the largest storage that it was given
    largest_operator: str
    stuck_at_bytes: int  # most bytes reserved when nothing could be evicted and room was short; 0: never
    held_bytes: int  # of storages that stay in memory: NumPy or DLPack arrays share them, or keep() names them
    refused: int  # allocations that the machine had no memory for
    # trouble
    over_budget: bool  # the watchdog or an impossible operator went over the arena's budget
    message: str  # first trouble in words ("" when none)
    tables_filled: bool  # the process has locked its memory, so tables that are mostly empty lie there whole

class AskedTier:
    def __init__(self, *, kind: str, capacity_bytes: int, node: int) -> None:
        """``node`` is a NUMA node, or -1."""

class ArenaSettings:
    """The wishes for an arena, made with defaults."""

    spill_dirs: Sequence[str]
    tiers: Sequence[AskedTier]  # between memory and the spill directories, the fastest first
    arena_bytes: int  # the arena's bound; 0: none
    process_bytes: int  # the process's bound; 0: none
    machine_bytes: int  # what it can have at most; 0: not known
    min_bytes: int  # smaller storages are not managed
    piece_bytes: int  # storages of twice as much are in pieces; 0: none is
    policy: str  # who is evicted where no schedule says so: a name in ``_planning.POLICIES``
    io_threads: int  # for each slower tier
    watchdog_ns: int
    chaos_rate: float
    chaos_seed: int

def start(asked: ArenaSettings) -> None:
    """Manage CPU storages from now on. A later call sets a new budget; the first call's tiers stay.

    Raises RuntimeError when a spill directory cannot be used. Raises ValueError for a tier that cannot be had, or an
    unknown policy. The text says why and what to do.
    """

class DeviceSettings:
    """The wishes for an accelerator's memory, made with defaults."""

    device: str  # such as "cuda:0"
    fast_bytes: int  # for managed tensors there; 0: no bound
    host_bytes: int  # of pinned memory, at most
    spill_dirs: list[str]  # for what finds none; none: then it stays
    io_threads: int  # for each way from and to the file
    min_bytes: int  # smaller storages are not managed
    policy: str  # who leaves where no schedule says so
    chaos_rate: float
    chaos_seed: int

def start_device(asked: DeviceSettings) -> None:
    """Manage an accelerator's storages from now on: those that operators use. A later call sets new bounds; the first
    call's device and smallest size stay.

    Raises RuntimeError where this process bounds its own memory, or has another device. Raises ValueError for an
    unknown policy.
    """

def set_device_limit(bytes: int) -> None: ...
def suspend_device(suspends: bool) -> None:
    """Bring all back, and move nothing until it is called with False."""

def stop_device() -> tuple[int, str]:
    """Bring all back that fits, and move nothing more. Return the bytes that could not come, and why those that cannot
    be read cannot."""

def pin_on_device(what: Tensor | UntypedStorage, for_good: bool = False) -> bool:
    """Bring a tensor or a storage back and keep it on the device until the step ends, or for good. Return whether it
    stayed anyway."""

def keep_on_device(what: Tensor | UntypedStorage) -> None:
    """Bring a tensor or a storage back and keep it on the device until the session ends."""

def unpin_on_device(what: Tensor | UntypedStorage) -> None:
    """Let it leave again. It may have other memory by now, or another size."""

def device_memory(device: str) -> tuple[int, int]:
    """Return a device's free and its whole memory."""

def allocator_bytes(device: str, reset_peak: bool = False) -> tuple[int, int, int]:
    """Return what PyTorch's allocator has given away on a device, what it has reserved, and the peak of the first."""

def measure_tier(kind: str, node: int) -> dict[str, float]:
    """Measure the bytes per second of one thread: ``out`` to such a tier and ``back``.

    Where a tier is used in place, ``read`` and ``write`` are measured there, and ``fast_read`` and ``fast_write`` in
    fast memory; else they are 0. Raises ValueError where there is no such tier.
    """

def check_tier(kind: str, capacity_bytes: int, node: int) -> None:
    """Raise ValueError, which says why, where such a tier cannot be had."""

def stop() -> None:
    """Give new storages to the previous allocator again. Managed ones stay valid, under the same budget."""

def set_checksum(on: bool, pages: bool = False) -> None:
    """Switch checksums of the spill file on or off. A read compares them if the write had one. ``pages``: so are random
    clean storages in memory, now and then."""

def set_limits(*, arena_bytes: int, process_bytes: int) -> None: ...
def set_machine(nbytes: int) -> None: ...
def watch(*, piece_bytes: int = ...) -> None:
    """See every CPU storage of this process from now on, without an arena: steps can be recorded, and nothing moves.

    Raises RuntimeError where an arena has been started, or where another allocator is in the way.
    """

def unwatch() -> None:
    """Note no more allocations without an arena."""

def notice(tensors: Sequence[Tensor]) -> None:
    """Tell the recorder, without an arena, that these storages exist, even if no operator of the step uses them."""

def begin_step(*, record: bool = False, modules: bool = False) -> Counters:
    """Begin a step on this thread: storages born from now on are activations unless classified.

    ``modules``: what is recorded names modules, for which each operator looks at Python's frames. Returns the counters
    of that moment; without an arena, all are 0.
    """

def end_step(*, completed: bool = True) -> Counters:
    """End a step: unclassified survivors become "other"; per-storage traffic is added to its kind's counters.

    Returns the counters of that moment. So between two edges of steps no counter falls.
    """

def threads_now() -> tuple[int, int]:
    """Return how many threads share this one's work: in OpenMP's loops, and in MKL's products (0 without MKL)."""

def give_threads(here: tuple[int, int], to_new: tuple[int, int]) -> None:
    """Give this thread such numbers, and those whose first operator is yet to come."""

def note_lines(rules: Sequence[tuple[str, bool, int, str]]) -> None:
    """Note from now on, in recorded steps, which line of the user's program made each storage. No rules: note none.

    A rule is (text, anywhere, rank, shown), as [Note: lines] (native/torch/lines.hpp) says. Raises nothing.
    """

def line_here(of_node: str) -> str:
    """Return the line that runs now, "" if none is noted. ``of_node`` stands for frames around autograd's engine."""

def module_here() -> str:
    """Return the path of the module that runs now, "" for none ([Note: modules], native/torch/modules.hpp)."""

def enter_optimizer(enters: bool) -> None:
    """Count what runs on this thread as an optimizer's, until the next call or until a step begins."""

def defer(number: int, own: Sequence[Tensor], gradient: Tensor) -> bool:
    """Defer update ``number`` of these tensors with ``gradient``. The updater makes it before anybody else uses them,
    in this thread's modes of now. Returns False, and defers nothing, if another deferred update has some of that
    memory.
    """

def guard(number: int, tensors: Sequence[Tensor], reached: Callable[[int], BaseException | None], alone: bool) -> bool:
    """Guard these tensors, besides those that ``number`` has already. ``reached`` gets it when somebody is about to use
    one. An error that it returns is raised there. Returns False, and guards none, if others lie across one, or, with
    ``alone``, if another thread is in an operator.
    """

def make_early(make: Callable[[], None]) -> None:
    """Make an update of the backward pass. Its own operators are not looked at."""

def carried_out(number: int) -> None:
    """Note that the update has been made, or is guarded no more."""

def step_will_not_come(number: int) -> bool:
    """Note that what ``number`` guards was updated for a step that is not made. Returns False if it guards nothing."""

def set_updater(updater: Callable[[int], BaseException | None] | None) -> None:
    """Set who makes updates, by number, on the thread that looks. An error that it returns is raised there."""

def make_in_its_scene(number: int, make: Callable[[], None]) -> None:
    """Make an update in the modes in which it was deferred, and as that thread rounds and shares its work. Its own
    operators are not looked at."""

def memory_of(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return address and bytes of the storages. This is no look at them."""

def note_array(address: int, begins: bool) -> None:
    """Note an array in small memory, or that it has gone: ``is_unshared`` is False there."""

def is_unshared(tensor: Tensor) -> bool:
    """Return whether no array or library is known to share its memory with PyTorch, or it is too small to manage."""

def look_at(tensors: Sequence[Tensor]) -> None:
    """Make deferred updates of these tensors, which somebody is about to use, or tell who guards them."""

def look_at_memory(address: int, nbytes: int) -> None: ...
def enter_backend(tensors: Sequence[Tensor]) -> None:
    """Hold tensors that a collective of a backend's own is about to get. What it makes meanwhile stays, too."""

def exit_backend(work: object) -> None:
    """Let them go as soon as ``work`` has ended, which the collective returned; at once where it is None."""

def look_at_all() -> None: ...
def look_before_a_setting() -> None:
    """Look at all before a setting of operators changes, but for what was updated for a step that is not made."""

def carry_out(numbers: Sequence[int]) -> None:
    """Make these updates, as far as they are still deferred."""

def carry_out_all() -> None:
    """Make all deferred updates. Who guards memory is not told."""

def gave_up() -> bool:
    """Return whether an operator went on without an update that it needed, since the updater was set."""

def deferred_count() -> int:
    """Return the number of updates that have not been made yet."""

def abandon_deferred() -> None:
    """Stop looking, in a forked child."""

def take_recording() -> Recording:
    """Take the recording of the last recorded step, once. It has no ticks when there is none."""

def touches_nothing(name: str, overload: str) -> bool:
    """Return whether the operator makes a view, or memory that nobody has written.

    Raises ValueError for an operator that is not registered.
    """

def over_lists(name: str) -> bool:
    """Return whether the operator does the same to each element of its lists. It is seen as one operator for each
    element or group."""

def repeatable_operators() -> tuple[list[str], list[str], list[str]]:
    """Return the names of the operators that make the same bits when they run again: those that allocate their result,
    and those that write to their first argument. As ``torch.ops`` has them: ``aten::mm``, ``aten::mul.Tensor``. The
    third are those of them that may run again on an accelerator: names without overloads and final underscores."""

def repeats(operator: str, overload: str) -> bool:
    """Return whether it is one of them, such as ("aten::mul", "Tensor"), not left out. The default overload is ""."""

def change_repeatable(without: set[str], added: set[str]) -> None:
    """Have the first count as none of them, and the others as some of them: "aten::mul" is each of its overloads."""

def look_again_what_repeats() -> None:
    """Have every operator looked at anew: whether it may run again, with the kernels that it has now."""

def want_all_recipes(all: bool, one_in: int = 2) -> None:
    """Have everything that can be made anew be ready for that, and not what a schedule names alone. For tests.

    ``one_in`` so many of them, by their addresses, is an ingredient of what is made of it; 0: none is.
    """

def check_what_is_made(check: bool) -> None:
    """Have the bytes of what is made anew compared with what they were. The process ends where they differ."""

def make_all() -> None:
    """Make all that is to be made anew, and let go of what that takes."""

def begin_change() -> None:
    """Make all that, before settings or kernels change. Operators before ``end_change`` cannot be made anew."""

def end_change() -> None: ...
def all_have_rounded_as_usual() -> None:
    """Note that no thread of this process has ever flushed denormal numbers or rounded in another way."""

def recipes() -> int:
    """Return the number of storages that can be made anew."""

def cut_groups(elements: list[list[int]]) -> list[int]:
    """Return the number of elements in each group of a fused optimizer's lists, from the sizes of their storages."""

def uses_of(name: str, overload: str, leaves_gradients: bool) -> list[tuple[int, bool]]:
    """Return for each argument what the operator does with it: ``ir.trace.Access``, and whether it only overwrites.

    ``leaves_gradients``: in this call a fused optimizer unscales no gradients, so it only reads them.
    """

def load_schedule(columns: ScheduleColumns) -> int:
    """Follow this schedule in every step that allocates like it. Returns its number.

    Raises ValueError for columns that make no schedule for the present tiers.
    """

def unload_schedule(number: int) -> None:
    """Follow it no more. The next one that is loaded may get its number."""

def unload_schedules() -> None: ...
def followed() -> int | None:
    """Return the schedule that the last step followed from its beginning to its end."""

def gone() -> int:
    """Count that schedule's storages from before a step that were freed since the first step that followed it."""

def standing() -> int:
    """Count those of them that are left."""

def classify(tensors: Sequence[Tensor], kind: int) -> None:
    """Name the kind (index into KINDS) of the storages behind these tensors. Unmanaged ones are skipped."""

def counters() -> Counters: ...
def reset_peaks() -> None: ...
def reset_needs() -> None:
    """Forget what operators needed so far, and where room was short."""

def reset_trouble() -> None:
    """Forget the needs, and that the budget was exceeded."""

def set_aside(bytes: int, process: int = 0) -> None:
    """Leave ``bytes`` of the process's bound to another process, or what that one holds where it is more."""

def look_at_data_files() -> None:
    """A file has been mapped whose pages are about to come: they do not count as the process's."""

def remeasure_unmanaged() -> None:
    """Measure the unmanaged bytes anew: what was passing since the step ended is over."""

def read_record(reader: object, name: str, nbytes: int) -> Tensor:
    """Read a record of a file of torch.save as bytes. They are copied to memory, not read by the kernel."""

def is_managed(tensor: Tensor) -> bool: ...
def is_resident(tensor: Tensor) -> bool:
    """Return False for a managed storage whose pages are away. The call does not fetch it."""

def evict(tensors: Sequence[Tensor]) -> int:
    """Evict these storages now and wait. Returns the bytes evicted (for tests and tools)."""

def prefetch(tensors: Sequence[Tensor]) -> None:
    """Have these storages on their way back, as far as there is room (for tests and tools)."""

def pin(address: int, nbytes: int = 0) -> bool:
    """Fetch the storage that this address lies in, make it writable, and keep it there. False: it is not managed.

    In a forked child it is fetched and False returned. Raises RuntimeError when it cannot be read, or is not the
    child's.
    """

def unpin(address: int, nbytes: int = 0) -> None:
    """Undo one ``pin``."""

def dlpack_table(theirs: object, before: Callable[[Tensor, bool], object]) -> object:
    """Return a capsule with a table of C functions like ``theirs``, ``torch.Tensor.__dlpack_c_exchange_api__``.

    Its exports call ``before`` first, with the tensor, and with whether its memory is the caller's from then on (else
    until the export's user returns). There is one such table. Further calls add to what is called, the newest first.
    """

def adopt_all(
    attributes: dict[type, str], locals: list[object], roots: list[object]
) -> tuple[int, list[tuple[int, str]]] | None:
    """Move into the arena the storages that Python reaches and that nobody else holds; every view follows.

    ``attributes`` has, of kinds of objects whose C++ halves hold tensors, the attribute that is this half. ``locals``
    is what this thread's running functions hold besides the collector's objects, each reference once. ``roots`` is as
    for ``_objects.instances``.
    Returns the bytes adopted, and the bytes and reason of each storage left alone; None where nothing was looked at,
    because another thread stays in an operator.
    """

def install_fault_handler() -> bool:
    """Put the SIGSEGV safety net on top again, chained to whoever took it. Returns True when it had to.

    The calling thread no longer blocks the signal.
    """

def let_faults_into_pool() -> None:
    """Have no thread that shares an operator's work with this one block SIGSEGV. It makes these threads."""
