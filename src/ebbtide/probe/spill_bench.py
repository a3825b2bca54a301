"""Times transfers between huge pages and a spill file, made and used as ``native/core/spill_file.cpp`` does.

The file never has a name, so nothing is left behind however the process ends. Its space is reserved (``fallocate``) and
then written once. In the steady state of training, every eviction overwrites. Reserved space that was never written is
slower on some file systems and faster on some disks.

Python's ``preadv`` and ``pwritev`` release the interpreter's lock, so threads overlap as native ones do. A call costs
some microseconds more here than there, which shows only with small blocks.
"""

import errno
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import numpy as np

from ebbtide.errors import SpillError
from ebbtide.host.spill import open_unnamed, reserve
from ebbtide.probe.figures import CHUNK_BYTES, Cell, Direction
from ebbtide.probe.pages import HUGE_PAGE_BYTES, Bytes, MovingPages
from ebbtide.units import KIB, MIB

PAGE_BYTES = 4 * KIB


class _Until:
    """The time when transfers stop. Callers may change it while they run."""

    def __init__(self, time_ns: float) -> None:
        self.time_ns = time_ns


def _noise(nbytes: int) -> Bytes:
    """Return bytes that no disk can compress."""
    return np.resize(np.random.default_rng(0).integers(0, 256, MIB, dtype=np.uint8), nbytes)


class SpillBench:
    """Unnamed files of ``nbytes`` in all, one in each directory, and up to ``threads`` threads that move their chunks.

    Several files are addressed as one, in stripes of a chunk ([Note: stripes] in ``native/core/spill_file.hpp``). It is
    a context: on its exit, its threads end and its space is freed. Every method raises SpillError when a directory
    cannot do what is asked. Only one thread may use it.
    """

    def __init__(self, directories: Sequence[Path], nbytes: int, threads: int, largest_block_bytes: int) -> None:
        self._directories = tuple(directories)
        self.nbytes = nbytes
        self.direct = True
        self.reserved = True
        self._places: dict[tuple[bool, int], Iterator[int]] = {}
        self._noise = _noise(max(largest_block_bytes, CHUNK_BYTES))
        self._memory: dict[tuple[int, int], MovingPages] = {}  # of each thread, for each size of blocks
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

    def write_first(self, threads: int, limit_s: float) -> list[float]:
        """Write the whole file, or as much as the time allows, at least a sixteenth. Returns bytes/s of each part.

        Callers MUST do this before anything else: the file ends where the writing did.
        """
        part_bytes = max(self.nbytes // 16 // CHUNK_BYTES, 1) * CHUNK_BYTES
        stop = time.monotonic() + limit_s
        speeds: list[float] = []
        start = 0
        while start < self.nbytes and (not speeds or time.monotonic() < stop):
            end = min(start + part_bytes, self.nbytes)
            chunks = iter(range(start, end, CHUNK_BYTES))  # shared by the threads
            memory = [self._pages(index, CHUNK_BYTES) for index in range(threads)]
            begin = time.perf_counter_ns()
            self._wait([self._pool.submit(self._write_all, pages, chunks) for pages in memory])
            speeds.append((end - start) * 1e9 / (time.perf_counter_ns() - begin))
            start = end
        self.nbytes = start
        return speeds

    def fits(self, cell: Cell) -> bool:
        """Say whether each thread of the cell has a place of its own."""
        return 2 * cell.block_bytes * cell.threads <= self.nbytes

    def speed(self, cell: Cell, seconds: float) -> float:
        """Return bytes/s over about ``seconds``, and at least one block a thread."""
        until = _Until(time.perf_counter_ns() + seconds * 1e9)
        return self._wait(self._begin(cell, until))

    @contextmanager
    def busy(self, cell: Cell) -> Iterator[None]:
        """Move bytes without pause while the block runs."""
        until = _Until(math.inf)
        moving = self._begin(cell, until)
        try:
            yield
        finally:
            until.time_ns = 0
            self._wait(moving)

    def latencies_ns(self, direction: Direction, seconds: float, at_least: int) -> list[float]:
        """Return the times of single pages at random places, one after another."""
        out = direction is Direction.OUT
        choose = random.Random(0)
        page = self._pages(0, CHUNK_BYTES).data[:PAGE_BYTES]
        times: list[float] = []
        stop = time.perf_counter_ns() + seconds * 1e9
        while len(times) < at_least or time.perf_counter_ns() < stop:
            place = choose.randrange(self.nbytes // PAGE_BYTES) * PAGE_BYTES
            begin = time.perf_counter_ns()
            self._transfer(out, page, place)
            times.append(time.perf_counter_ns() - begin)
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

    def _begin(self, cell: Cell, until: _Until) -> list[Future[float]]:
        for out in (False, True):
            if (out, cell.block_bytes) not in self._places:
                # All threads share one order, as in the runtime's queue. Reads go half a file away from writes.
                starts = range(0, self.nbytes - cell.block_bytes + 1, cell.block_bytes)
                half = len(starts) // 2
                order = starts if out else [*starts[half:], *starts[:half]]
                self._places[out, cell.block_bytes] = cycle(order)
        pages = [self._pages(index, cell.block_bytes) for index in range(cell.threads)]
        return [self._pool.submit(self._move, cell, index, pages[index], until) for index in range(cell.threads)]

    def _move(self, cell: Cell, index: int, pages: MovingPages, until: _Until) -> float:
        """Return one thread's bytes/s. With both directions, each thread has its own; a single thread takes turns."""
        out = cell.direction is Direction.OUT or (cell.direction is Direction.BOTH and index % 2 == 1)
        takes_turns = cell.direction is Direction.BOTH and cell.threads == 1
        moved = 0
        begin = now = time.perf_counter_ns()
        while moved == 0 or now < until.time_ns:
            with pages.transferred(out) as memory:
                moved += self._transfer(out, memory, next(self._places[out, cell.block_bytes]))
            now = time.perf_counter_ns()
            out ^= takes_turns
        return moved * 1e9 / (now - begin)

    def _write_all(self, pages: MovingPages, places: Iterator[int]) -> float:
        for place in places:
            self._transfer(True, pages.data, place)
        return 0.0

    def _pages(self, index: int, nbytes: int) -> MovingPages:
        """Return a thread's memory. Only the caller's thread makes it, before it is needed."""
        if (index, nbytes) not in self._memory:
            self._memory[index, nbytes] = MovingPages(self._noise[:nbytes])
        return self._memory[index, nbytes]

    def _transfer(self, out: bool, memory: memoryview, place: int) -> int:
        """Return the bytes that a call for each stripe moved, which may be fewer than asked for."""
        done = 0
        while done < len(memory):
            number, at, room = self._stripe(place + done)
            part = memory[done : done + room]
            moved = self._call(out, part, number, at)
            done += moved
            if moved < len(part):
                break
        return done

    def _stripe(self, place: int) -> tuple[int, int, int]:
        """Return the file of a byte, its place there, and the length from there to the stripe's end."""
        count = len(self._files)
        if count == 1:
            return 0, place, sys.maxsize
        stripe, within = divmod(place, CHUNK_BYTES)
        return stripe % count, stripe // count * CHUNK_BYTES + within, CHUNK_BYTES - within

    def _call(self, out: bool, part: memoryview, number: int, at: int) -> int:
        """Call as the runtime does: from one range of memory, but into pages one by one."""
        try:
            if out:
                moved = os.pwritev(self._files[number], [part], at)
            else:
                pages = [part[page : page + HUGE_PAGE_BYTES] for page in range(0, len(part), HUGE_PAGE_BYTES)]
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
