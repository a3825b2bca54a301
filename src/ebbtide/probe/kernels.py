"""A training step's two loads on a small scale: a matrix product for arithmetic, and copying in all threads for memory.

Both are NumPy's, so nothing waits for torch to load. Its BLAS uses as many threads as torch's would.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from ebbtide.probe.pages import huge_bytes

_MATMUL_WIDTH = 512
_MOST_THREADS = 16


class Kernel(Protocol):
    """A computation with a measurable speed."""

    def speed(self, seconds: float) -> float: ...


def _repeat(work: Callable[[], object], seconds: float) -> float:
    """Return how often a second ``work`` was done, over ``seconds`` and at least once."""
    times = 0
    begin = now = perf_counter_ns()
    while times == 0 or now < begin + seconds * 1e9:
        work()
        times += 1
        now = perf_counter_ns()
    return times * 1e9 / (now - begin)


class Matmul:
    """A product of two square matrices of 512 floats a side, over and over."""

    def __init__(self) -> None:
        self._left, self._right = np.random.default_rng(0).random((2, _MATMUL_WIDTH, _MATMUL_WIDTH), dtype=np.float32)
        self._product = self._left @ self._right  # also starts BLAS's threads

    def speed(self, seconds: float) -> float:
        """Return products a second."""
        return _repeat(lambda: np.matmul(self._left, self._right, out=self._product), seconds)


class Copying:
    """Copies in every thread. Each has a part of its own, and all together are far larger than caches. A context."""

    def __init__(self, nbytes: int) -> None:
        self.threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
        self._pool = ThreadPoolExecutor(self.threads)
        piece = nbytes // 2 // self.threads
        self._pieces = [(huge_bytes(piece), huge_bytes(piece)) for _ in range(self.threads)]

    def __enter__(self) -> "Copying":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def speed(self, seconds: float) -> float:
        """Return bytes a second, counting those read and those written."""
        running = [self._pool.submit(self._copy, index, seconds) for index in range(self.threads)]
        return sum(future.result() for future in running)

    def _copy(self, index: int, seconds: float) -> float:
        source, target = self._pieces[index]
        return 2 * source.nbytes * _repeat(lambda: np.copyto(target, source), seconds)
