"""Carries out a probe: its parts, their order, and their times.

[Note: interleaving] Disks and virtual machines drift by factors within seconds. So every figure's samples are spread
over the whole time, in rounds that visit all directions in a new order. Whatever is compared is measured in pairs, one
right after the other: a kernel alone, and beside a busy link.
"""

import os
import platform
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from ebbtide.errors import SpillError
from ebbtide.host.kernel_files import text_of
from ebbtide.host.mounts import find_mount, read_mounts
from ebbtide.host.process import PROC, memory_limit
from ebbtide.host.spill import checked_spill_directories, usable_bytes
from ebbtide.probe.figures import CHUNK_BYTES, Direction, Figure, Findings, Slowdown
from ebbtide.probe.kernels import Copying, Kernel, Matmul
from ebbtide.probe.spill_bench import SpillBench
from ebbtide.units import GIB, MIB, format_bytes

# Shares of a probe's time. The rest is for setting up.
_FIRST_WRITE, _MEMORY, _LATENCY, _MOVES, _SLOWDOWN = 0.12, 0.05, 0.05, 0.48, 0.22

_VISITS = 2  # of each direction, in a round
_LEAST_LATENCIES = 16
_WAYS = (Direction.OUT, Direction.BACK)


@dataclass(frozen=True, slots=True)
class Effort:
    """The thoroughness of a probe. It takes about ``seconds``, or more where one chunk alone takes long."""

    seconds: float
    file_bytes: int
    memory_bytes: int
    rounds: int


THOROUGH = Effort(seconds=12.0, file_bytes=GIB, memory_bytes=512 * MIB, rounds=5)
QUICK = Effort(seconds=1.2, file_bytes=256 * MIB, memory_bytes=128 * MIB, rounds=3)


def parts_of(effort: Effort) -> int:
    """Count the parts that ``measure`` announces."""
    return 2 + effort.rounds + len(_WAYS)


def measure(
    asked: Sequence[Path], effort: Effort, io_threads: int = 2, begin: Callable[[str], None] = lambda what: None
) -> Findings:
    """Probe spill directories and memory. Raises SpillError when one cannot serve.

    ``begin`` is told of each part before it begins.
    """
    started = monotonic()
    load = os.getloadavg()[0]
    directories = checked_spill_directories(asked)
    free_bytes = usable_bytes(directories)
    file_bytes = min(effort.file_bytes, free_bytes // 2) // CHUNK_BYTES * CHUNK_BYTES
    if file_bytes < min(2 * io_threads * CHUNK_BYTES, effort.file_bytes):
        raise SpillError(
            ", ".join(map(str, asked)), f"only {format_bytes(free_bytes)} are free, too little to measure with"
        )
    limit = memory_limit()
    with (
        SpillBench(directories, file_bytes, io_threads) as bench,
        Copying(min(effort.memory_bytes, limit.nbytes // 8)) as copying,
    ):
        begin("writing a file")
        first_write = Figure.of(bench.write_first(_FIRST_WRITE * effort.seconds))
        begin("copying memory")
        memory = Figure.of([copying.speed(_MEMORY * effort.seconds / 8) for _ in range(8)])
        moves, latency = _moves(bench, effort, begin)
        matmul, slowdown = Matmul(), {}
        for way in _WAYS:
            begin("computing beside a busy disk")
            slowdown[way] = Slowdown(*(_slowdown(bench, way, kernel, effort) for kernel in (matmul, copying)))
    return Findings(
        machine=_machine_in_words(limit.nbytes),
        directory=" and ".join(map(_directory_in_words, directories)),
        notes=_notes(bench, effort, file_bytes, load),
        disturbed=_disturbing(load),
        took_s=monotonic() - started,
        file_bytes=bench.nbytes,
        memory_capacity_bytes=limit.nbytes,
        file_capacity_bytes=free_bytes,
        io_threads=io_threads,
        memory_threads=copying.threads,
        memory=memory,
        first_write=first_write,
        moves=moves,
        latency_ns=latency,
        slowdown=slowdown,
    )


def _moves(
    bench: SpillBench, effort: Effort, begin: Callable[[str], None]
) -> tuple[dict[Direction, Figure], dict[Direction, Figure]]:
    """Return the speeds, and the latency each way in ns. [Note: interleaving]"""
    visits = [*Direction] * _VISITS
    slice_s = _MOVES * effort.seconds / effort.rounds / len(visits)
    samples: dict[Direction, list[float]] = {direction: [] for direction in Direction}
    waits: dict[Direction, list[float]] = {way: [] for way in _WAYS}
    wait_s = _LATENCY * effort.seconds / effort.rounds / len(_WAYS)
    order = random.Random(0)
    for number in range(effort.rounds):
        begin(f"writing and reading, round {number + 1} of {effort.rounds}")
        order.shuffle(visits)
        for direction in visits:
            samples[direction].append(bench.speed(direction, slice_s))
        for way in _WAYS:
            waits[way] += bench.latencies_ns(way, wait_s, -(-_LEAST_LATENCIES // effort.rounds))
    speeds = {direction: Figure.of(found) for direction, found in samples.items()}
    return speeds, {way: Figure.of(found) for way, found in waits.items()}


def _slowdown(bench: SpillBench, way: Direction, kernel: Kernel, effort: Effort) -> Figure:
    """Return the extra time of the kernel beside the busy link, from pairs [Note: interleaving]."""
    pairs = 2 * effort.rounds
    slice_s = _SLOWDOWN * effort.seconds / (4 * 2 * pairs)  # four kernels and links, each alone and beside

    def beside() -> float:
        with bench.busy(way):
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


def _notes(bench: SpillBench, effort: Effort, asked_bytes: int, load: float) -> tuple[str, ...]:
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
    return tuple(notes)
