"""Times transfers between huge pages and a spill file, made and used as ``native/core/spill_file.cpp`` does.

The file never has a name, so nothing is left behind however the process ends. Its space is reserved (``fallocate``) and
then written once. In the steady state of training, every eviction overwrites. Reserved space that was never written is
slower on some file systems and faster on some disks.

Python's ``preadv`` and ``pwritev`` release the interpreter's lock, so threads overlap as native ones do. A call costs
some microseconds more here than there.
"""

import errno
import math
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from time import monotonic, perf_counter_ns

import numpy as np

from ebbtide.errors import SpillError
from ebbtide.host.spill import open_unnamed, reserve
from ebbtide.probe.figures import CHUNK_BYTES, Direction
from ebbtide.probe.pages import HUGE_PAGE_BYTES, Bytes, MovingPages
from ebbtide.units import KIB

PAGE_BYTES = 4 * KIB


class _Until:
    """The time when transfers stop. Callers may change it while they run."""

    def __init__(self, time_ns: float) -> None:
        self.time_ns = time_ns


def _noise() -> Bytes:
    """Return a chunk that no disk can compress."""
    return np.random.default_rng(0).integers(0, 256, CHUNK_BYTES, dtype=np.uint8)


class SpillBench:
    """Unnamed files of ``nbytes`` in all, one in each directory, and ``threads`` threads that move their chunks.

    Several files are addressed as one, in stripes of a chunk ([Note: stripes] in ``native/core/spill_file.hpp``). It is
    a context: on its exit, its threads end and its space is freed. Every method raises SpillError when a directory
    cannot do what is asked. Only one thread may use it.
    """

    def __init__(self, directories: Sequence[Path], nbytes: int, threads: int) -> None:
        self._directories = tuple(directories)
        self.nbytes = nbytes
        self.direct = True
        self.reserved = True
        self._places: dict[bool, Iterator[int]] = {}
        noise = _noise()
        self._memory = [MovingPages(noise) for _ in range(threads)]  # of each thread
        self._pool = ThreadPoolExecutor(threads)
        self._files: list[int] = []
        chunks = -(-nbytes // (CHUNK_BYTES * len(directories)))
        try:
            for directory in directories:
                self._open(directory, chunks * CHUNK_BYTES)
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> "SpillBench":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()  # no transfer may outlive the descriptor
        self._close()

    def write_first(self, limit_s: float) -> list[float]:
        """Write the whole file, or as much as the time allows, at least a sixteenth. Returns bytes/s of each part.

        Callers MUST do this before anything else: the file ends where the writing did.
        """
        part_bytes = max(self.nbytes // 16 // CHUNK_BYTES, 1) * CHUNK_BYTES
        stop = monotonic() + limit_s
        speeds: list[float] = []
        start = 0
        while start < self.nbytes and (not speeds or monotonic() < stop):
            end = min(start + part_bytes, self.nbytes)
            chunks = iter(range(start, end, CHUNK_BYTES))  # shared by the threads
            begin = perf_counter_ns()
            self._wait([self._pool.submit(self._write_all, pages, chunks) for pages in self._memory])
            speeds.append((end - start) * 1e9 / (perf_counter_ns() - begin))
            start = end
        self.nbytes = start
        return speeds

    def speed(self, direction: Direction, seconds: float) -> float:
        """Return bytes/s over about ``seconds``, and at least one chunk a thread."""
        until = _Until(perf_counter_ns() + seconds * 1e9)
        return self._wait(self._begin(direction, until))

    @contextmanager
    def busy(self, direction: Direction) -> Iterator[None]:
        """Move bytes without pause while the block runs."""
        until = _Until(math.inf)
        moving = self._begin(direction, until)
        try:
            yield
        finally:
            until.time_ns = 0
            self._wait(moving)

    def latencies_ns(self, direction: Direction, seconds: float, at_least: int) -> list[float]:
        """Return the times of single pages at random places, one after another."""
        out = direction is Direction.OUT
        choose = random.Random(0)
        page = self._memory[0].data[:PAGE_BYTES]
        times: list[float] = []
        stop = perf_counter_ns() + seconds * 1e9
        while len(times) < at_least or perf_counter_ns() < stop:
            place = choose.randrange(self.nbytes // PAGE_BYTES) * PAGE_BYTES
            begin = perf_counter_ns()
            self._transfer(out, page, place)
            times.append(perf_counter_ns() - begin)
        return times

    def _close(self) -> None:
        for file in self._files:
            os.close(file)

    def _open(self, directory: Path, nbytes: int) -> None:
        try:
            file, direct = open_unnamed(directory)
        except OSError as error:
            raise _refused(directory, "no unnamed file can be made in it", error) from error
        self._files.append(file)
        self.direct &= direct
        try:
            self.reserved &= reserve(file, nbytes)
        except OSError as error:
            raise _refused(directory, "its space cannot be reserved", error) from error

    def _begin(self, direction: Direction, until: _Until) -> list[Future[float]]:
        if not self._places:
            # All threads share one order, as in the runtime's queue. Reads go half a file away from writes.
            starts = range(0, self.nbytes, CHUNK_BYTES)
            half = len(starts) // 2
            self._places = {True: cycle(starts), False: cycle([*starts[half:], *starts[:half]])}
        return [
            self._pool.submit(self._move, direction, index, pages, until) for index, pages in enumerate(self._memory)
        ]

    def _move(self, direction: Direction, index: int, pages: MovingPages, until: _Until) -> float:
        """Return one thread's bytes/s. With both directions, each thread has its own; a single thread takes turns."""
        out = direction is Direction.OUT or (direction is Direction.BOTH and index % 2 == 1)
        takes_turns = direction is Direction.BOTH and len(self._memory) == 1
        moved = 0
        begin = now = perf_counter_ns()
        while moved == 0 or now < until.time_ns:
            with pages.transferred(out) as memory:
                moved += self._transfer(out, memory, next(self._places[out]))
            now = perf_counter_ns()
            out ^= takes_turns
        return moved * 1e9 / (now - begin)

    def _write_all(self, pages: MovingPages, places: Iterator[int]) -> float:
        for place in places:
            self._transfer(True, pages.data, place)
        return 0.0

    def _transfer(self, out: bool, memory: memoryview, place: int) -> int:
        """Return the bytes that the call moved, which may be fewer than asked for. They lie in one stripe.

        It is called as the runtime does: from one range of memory, but into pages one by one.
        """
        stripe, within = divmod(place, CHUNK_BYTES)
        number, at = stripe % len(self._files), stripe // len(self._files) * CHUNK_BYTES + within
        try:
            if out:
                moved = os.pwritev(self._files[number], [memory], at)
            else:
                pages = [memory[page : page + HUGE_PAGE_BYTES] for page in range(0, len(memory), HUGE_PAGE_BYTES)]
                moved = os.preadv(self._files[number], pages, at)
            if moved <= 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        except OSError as error:
            raise _refused(self._directories[number], "moving bytes to and from it failed", error) from error
        return moved

    def _wait(self, moving: list[Future[float]]) -> float:
        """Return the sum of the threads' speeds, once no thread runs any more."""
        wait(moving)
        return sum(future.result() for future in moving)


def _refused(directory: Path, what: str, error: OSError) -> SpillError:
    return SpillError(str(directory), f"{what} ({error.strerror})")
