"""The same work on several threads at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

Result = TypeVar("Result")


def at_once(work: Callable[[], Result], threads: int = 4) -> list[Result]:
    """What each of so many new threads came to; all have started before one begins. Raise what one raised."""
    started = Barrier(threads)

    def begin() -> Result:
        started.wait()
        return work()

    with ThreadPoolExecutor(threads) as pool:
        return [each.result() for each in [pool.submit(begin) for _ in range(threads)]]
