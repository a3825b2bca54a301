"""Carries out a probe: its parts, their order, and their times.

[Note: interleaving] Disks and virtual machines drift by factors within seconds. So every figure's samples are spread
over the whole time, in rounds that visit all cells in a new order. Whatever is compared is measured in pairs, one right
after the other: a kernel alone, and beside a busy link.
"""

import os
import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ebbtide.errors import SpillError
from ebbtide.host.kernel_files import text_of
from ebbtide.host.mounts import find_mount, read_mounts
from ebbtide.host.process import PROC, memory_limit
from ebbtide.host.spill import checked_spill_directories, usable_bytes
from ebbtide.probe.figures import CHUNK_BYTES, Cell, Direction, Figure, Findings, Slowdown
from ebbtide.probe.kernels import Copying, Kernel, Matmul
from ebbtide.probe.spill_bench import SpillBench
from ebbtide.units import GIB, KIB, MIB, format_bytes

# Shares of a probe's time. The rest is for setting up.
_FIRST_WRITE, _MEMORY, _LATENCY, _MOVES, _SLOWDOWN = 0.12, 0.05, 0.05, 0.48, 0.22

_RUNTIME_CELL_WEIGHT = 2  # the runtime's own cells are measured twice a round, and this many times as long
_LEAST_LATENCIES = 16
_WAYS = (Direction.OUT, Direction.BACK)


@dataclass(frozen=True, slots=True)
class Effort:
    """The thoroughness of a probe. It takes about ``seconds``, or more where one block alone takes long.

    The runtime's own cells (4 MiB, its number of threads) are always measured.
    """

    seconds: float
    file_bytes: int
    memory_bytes: int
    blocks: tuple[int, ...]
    threads: tuple[int, ...]
    rounds: int


THOROUGH = Effort(
    seconds=12.0,
    file_bytes=GIB,
    memory_bytes=512 * MIB,
    blocks=(64 * KIB, MIB, CHUNK_BYTES, 16 * MIB),
    threads=(1, 2, 4),
    rounds=5,
)
QUICK = Effort(seconds=1.2, file_bytes=256 * MIB, memory_bytes=128 * MIB, blocks=(), threads=(), rounds=3)


def parts_of(effort: Effort) -> int:
    """Count the parts that ``measure`` announces."""
    return 2 + effort.rounds + len(_WAYS)


def measure(
    asked: Sequence[Path], effort: Effort, io_threads: int = 2, begin: Callable[[str], None] = lambda what: None
) -> Findings:
    """Probe spill directories and memory. Raises SpillError when one cannot serve.

    ``begin`` is told of each part before it begins.
    """
    started = time.monotonic()
    load = os.getloadavg()[0]
    directories = checked_spill_directories(asked)
    free_bytes = usable_bytes(directories)
    file_bytes = min(effort.file_bytes, free_bytes // 2) // CHUNK_BYTES * CHUNK_BYTES
    if file_bytes < min(2 * io_threads * CHUNK_BYTES, effort.file_bytes):
        raise SpillError(
            ", ".join(map(str, asked)), f"only {format_bytes(free_bytes)} are free, too little to measure with"
        )
    limit = memory_limit()
    runtime = {direction: Cell(direction, CHUNK_BYTES, io_threads) for direction in Direction}
    cells = _cells(effort, io_threads)
    most_threads, largest = max(cell.threads for cell in cells), max(cell.block_bytes for cell in cells)
    with (
        SpillBench(directories, file_bytes, most_threads, largest) as bench,
        Copying(min(effort.memory_bytes, limit.nbytes // 8)) as copying,
    ):
        begin("writing a file")
        first_write = Figure.of(bench.write_first(io_threads, _FIRST_WRITE * effort.seconds))
        begin("copying memory")
        memory = Figure.of([copying.speed(_MEMORY * effort.seconds / 8) for _ in range(8)])
        fitting = [cell for cell in cells if cell in runtime.values() or bench.fits(cell)]
        kept = affordable_cells(fitting, set(runtime.values()), first_write.median, effort)
        moves, latency = _moves(bench, kept, set(runtime.values()), effort, begin)
        matmul, slowdown = Matmul(), {}
        for way in _WAYS:
            begin("computing beside a busy disk")
            slowdown[way] = Slowdown(*(_slowdown(bench, runtime[way], kernel, effort) for kernel in (matmul, copying)))
    return Findings(
        machine=_machine_in_words(limit.nbytes),
        directory=" and ".join(map(_directory_in_words, directories)),
        notes=_notes(bench, effort, file_bytes, len(cells) - len(kept), load),
        disturbed=_disturbing(load),
        took_s=time.monotonic() - started,
        file_bytes=bench.nbytes,
        memory_capacity_bytes=limit.nbytes,
        file_capacity_bytes=free_bytes,
        io_threads=io_threads,
        memory_threads=copying.threads,
        memory=memory,
        first_write=first_write,
        latency_ns=latency,
        slowdown=slowdown,
        moves=moves,
    )


def _cells(effort: Effort, io_threads: int) -> list[Cell]:
    threads = sorted({*effort.threads, io_threads})
    blocks = sorted({*effort.blocks, CHUNK_BYTES})
    return [Cell(direction, block, count) for block in blocks for count in threads for direction in Direction]


def affordable_cells(cells: Sequence[Cell], needed: set[Cell], bytes_per_s: float, effort: Effort) -> list[Cell]:
    """Leave out the dearest rows until the rest fits its time. On a slow disk, a block for each thread may take
    long."""
    kept = list(cells)
    while _least_bytes(kept) * effort.rounds / bytes_per_s > _MOVES * effort.seconds:
        optional = [cell for cell in kept if replace(cell, direction=Direction.OUT) not in needed]
        if not optional:
            break
        dearest = max(optional, key=lambda cell: (cell.block_bytes * cell.threads, cell.block_bytes))
        row = (dearest.block_bytes, dearest.threads)
        kept = [cell for cell in kept if (cell.block_bytes, cell.threads) != row]
    return kept


def _least_bytes(cells: Sequence[Cell]) -> int:
    return sum(cell.block_bytes * cell.threads for cell in cells)


def _moves(
    bench: SpillBench, cells: Sequence[Cell], runtime: set[Cell], effort: Effort, begin: Callable[[str], None]
) -> tuple[dict[Cell, Figure], dict[Direction, Figure]]:
    """Return the speeds of the cells, and the latency each way in ns. [Note: interleaving]"""
    visits = [cell for cell in cells for _ in range(_RUNTIME_CELL_WEIGHT if cell in runtime else 1)]
    weight = {cell: _RUNTIME_CELL_WEIGHT if cell in runtime else 1 for cell in cells}
    slice_s = _MOVES * effort.seconds / effort.rounds / sum(weight[cell] for cell in visits)
    samples: dict[Cell, list[float]] = {cell: [] for cell in cells}
    waits: dict[Direction, list[float]] = {way: [] for way in _WAYS}
    wait_s = _LATENCY * effort.seconds / effort.rounds / len(_WAYS)
    order = random.Random(0)
    for number in range(effort.rounds):
        begin(f"writing and reading, round {number + 1} of {effort.rounds}")
        order.shuffle(visits)
        for cell in visits:
            samples[cell].append(bench.speed(cell, slice_s * weight[cell]))
        for way in _WAYS:
            waits[way] += bench.latencies_ns(way, wait_s, -(-_LEAST_LATENCIES // effort.rounds))
    speeds = {cell: Figure.of(found) for cell, found in samples.items()}
    return speeds, {way: Figure.of(found) for way, found in waits.items()}


def _slowdown(bench: SpillBench, cell: Cell, kernel: Kernel, effort: Effort) -> Figure:
    """Return the extra time of the kernel beside the busy cell, from pairs [Note: interleaving]."""
    pairs = 2 * effort.rounds
    slice_s = _SLOWDOWN * effort.seconds / (4 * 2 * pairs)  # four kernels and links, each alone and beside

    def beside() -> float:
        with bench.busy(cell):
            return kernel.speed(slice_s)

    def alone() -> float:
        return kernel.speed(slice_s)

    ratios = []
    for pair in range(pairs):
        first, second = _both(alone, beside, swap=pair % 2 == 1)
        ratios.append(first / second - 1)
    return Figure.of(ratios)


def _both(one: Callable[[], float], other: Callable[[], float], *, swap: bool) -> tuple[float, float]:
    """Return both results in the order of the arguments. They run in the other order if ``swap``."""
    if swap:
        later = other()
        return one(), later
    return one(), other()


def _disturbing(load: float) -> bool:
    """Say whether a load average from before the probe means that the probe had to share the CPUs."""
    return load > len(os.sched_getaffinity(0)) / 2


def _machine_in_words(memory_bytes: int) -> str:
    cpus = len(os.sched_getaffinity(0))
    return f"{cpus} CPUs ({_cpu_model()}), {format_bytes(memory_bytes)} of memory"


def _cpu_model() -> str:
    try:
        lines = text_of(PROC / "cpuinfo").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0].isprintable() else platform.machine()


def _directory_in_words(directory: Path) -> str:
    mount = find_mount(read_mounts(PROC), directory)
    words = f"{directory} ({mount.kind} on {mount.source})"
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def _notes(bench: SpillBench, effort: Effort, asked_bytes: int, left_out: int, load: float) -> tuple[str, ...]:
    notes = []
    if _disturbing(load):
        notes.append(f"other programs were running (load {load:.1f}): measure again on a quiet machine")
    if not bench.direct:
        notes.append("a directory has no O_DIRECT: moves went through the page cache, as a run's will")
    if not bench.reserved:
        notes.append("the file system cannot reserve space, so a full disk would be noticed late")
    if bench.nbytes < min(asked_bytes, effort.file_bytes):
        notes.append(f"slow disk: only {format_bytes(bench.nbytes)} of the file could be written in the time")
    elif asked_bytes < effort.file_bytes:
        notes.append(f"little space is free: the file had only {format_bytes(asked_bytes)}")
    if left_out:
        notes.append(f"{left_out} ways of moving were left out: the file is too small for them, or the disk too slow")
    return tuple(notes)
