"""How long this process's threads were ready to run and had no CPU, since others were on it."""

from contextlib import suppress
from pathlib import Path

from ebbtide.host.kernel_files import text_of
from ebbtide.units import seconds

TASKS = Path("/proc/self/task")


def waited_s(tasks: Path = TASKS) -> float:
    """Return the seconds of all threads that live, added up; 0 where the kernel does not count them."""
    waited_ns = 0
    for task in tasks.iterdir():
        with suppress(OSError, IndexError, ValueError):  # it has ended, or the kernel counts nothing
            waited_ns += int(text_of(task / "schedstat").split()[1])
    return seconds(waited_ns)
