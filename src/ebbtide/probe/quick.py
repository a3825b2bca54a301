"""Measures a machine in about two seconds, and then reads it from a cache. It serves runs without a machine file.

What computes is measured only for those who ask for it, and joins the same file.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from time import monotonic, sleep
from time import time as now_s

from ebbtide.errors import FileFormatError
from ebbtide.host.process import memory_limit
from ebbtide.host.spill import checked_spill_directories, usable_bytes
from ebbtide.ir.machine import Machine
from ebbtide.probe.measure import QUICK, Effort, measure
from ebbtide.probe.model import DRAM, FILE, machine_of
from ebbtide.whole_file import write_whole

MOST_AGE_S = 7 * 24 * 3600
DISTURBED_AGE_S = 3600
"""The life of a machine's file if other programs ran during the measurement."""
_MOST_WAIT_S = 10.0
_EDITION = 5
"""The edition of the probe's measurements. It is raised when they change, so that files of older ones are not read."""


def probe_quick(
    spill_dirs: Sequence[Path],
    io_threads: int = 2,
    effort: Effort = QUICK,
    say: Callable[[str], None] = lambda text: None,
    computes: bool = False,
) -> Machine:
    """Return this machine with these spill directories, measured now or within the last week.

    ``computes``: also how fast it computes. It ``say``s so before it measures. Capacities are always those of this
    moment. Raises SpillError when a directory cannot serve. A cache that is damaged or old or cannot be written costs
    only a measurement.
    """
    directories = checked_spill_directories(spill_dirs)
    path = cache_file(directories, io_threads)
    with _one_at_a_time(path):
        machine = _read(path) if path is not None else None
        if machine is None:
            kept = "" if path is None else " (kept for up to a week)"
            say(f"measuring {', '.join(map(str, directories))} for about 2 s{kept}")
            findings = measure(directories, effort, io_threads)
            machine = machine_of(findings)
            if path is not None:
                _write(path, machine.to_toml(), DISTURBED_AGE_S if findings.disturbed else MOST_AGE_S)
    if computes and machine.compute.flops_per_s is None:
        from ebbtide.probe.compute import SECONDS, with_compute

        say(f"measuring how fast this machine computes for about {SECONDS:.0f} s")
        machine = with_compute(machine)
        if path is not None:
            _add(path, machine.to_toml())
    dram, file = machine.tiers
    return replace(
        machine,
        tiers=(
            replace(dram, capacity_bytes=memory_limit().nbytes),
            replace(file, capacity_bytes=usable_bytes(directories)),
        ),
    )


def cache_file(directories: Sequence[Path], io_threads: int) -> Path | None:
    """Return the machine's file in the cache, or None if there is no home directory.

    There is one file for each set of directories, their devices and a number of threads.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # unset, or a value that the XDG specification says to ignore
        base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        return None
    places = "\0".join(f"{directory.resolve()}\0{directory.stat().st_dev}" for directory in directories)
    key = f"{places}\0{io_threads}\0{_EDITION}"
    return Path(base, "ebbtide", f"machine-{hashlib.sha256(os.fsencode(key)).hexdigest()[:16]}.toml")


@contextmanager
def _one_at_a_time(path: Path | None) -> Iterator[None]:
    """Wait a while for others who measure: ranks that start together would each find their share of the disk."""
    folder = -1
    try:
        if path is not None:
            with suppress(OSError):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
                _lock(folder)
        yield
    finally:
        if folder >= 0:
            os.close(folder)


def _lock(folder: int) -> None:
    """Lock it, or go on without: whoever holds it may have been suspended."""
    patience = monotonic() + _MOST_WAIT_S
    while monotonic() < patience:
        with suppress(BlockingIOError):
            flock(folder, LOCK_EX | LOCK_NB)
            return
        sleep(0.05)


def _read(path: Path) -> Machine | None:
    """Read the cache. Returns None for a file that is missing, too old (or from the future), damaged or not of a
    probe."""
    try:
        age_s = now_s() - path.stat().st_mtime
        machine = Machine.from_toml(path.read_text())
    except (OSError, UnicodeDecodeError, FileFormatError):
        return None
    expected = [tier.name for tier in machine.tiers] == [DRAM, FILE] and len(machine.links) == 2
    return machine if expected and 0 <= age_s <= MOST_AGE_S else None


def _add(path: Path, text: str) -> None:
    """Replace the cache by one that says more and lives no longer."""
    with suppress(OSError):
        age_s = now_s() - path.stat().st_mtime
        _write(path, text, round(MOST_AGE_S - age_s))


def _write(path: Path, text: str, good_for_s: int) -> None:
    """Write the cache, or do without it where it cannot be written. Files that nobody would read any more go."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, text.encode())
        written = now_s() - (MOST_AGE_S - good_for_s)  # a file with a short life starts with an age
        os.utime(path, (written, written))
        for other in path.parent.glob("machine-*.toml"):
            if other.stat().st_mtime < now_s() - MOST_AGE_S:
                other.unlink()
