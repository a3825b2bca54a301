"""Texts that several parts of the analysis write for people."""

import numpy as np

from ebbtide.analysis.columns import common_root, modules_of
from ebbtide.ir.trace import Trace
from ebbtide.units import format_bytes, format_time, seconds


def words(name: str) -> str:
    """Return a name from an enum in words, such as a kind."""
    return name.replace("_", " ")


def place(operator: str, module: str) -> str:
    """Return a tick's operator and module."""
    return " in ".join(part for part in (operator or "an operation", module) if part)


def time_text(ns: int | float) -> str:
    return format_time(seconds(ns))


def rate_text(bytes_per_s: float) -> str:
    """Return a bandwidth in decimal units, as bandwidths are given: ``3.2 GB/s``."""
    for name, unit in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6)):
        if bytes_per_s >= unit:
            return f"{bytes_per_s / unit:.3g} {name}"
    return f"{bytes_per_s:.3g} B/s"


def count_text(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Names:
    """Names for the storages and ticks of one trace.

    Modules are named without the ``root`` that all share. A storage's name has the line that made it, where that is
    known.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.full = modules_of(trace)
        self.root = common_root(self.full)
        self.short = [module.removeprefix(self.root) for module in self.full]

    def storage(self, number: int) -> str:
        storage, module = self._trace.storage(number), self.short[number]
        of = f" of {module}" if module else ""
        made = f", made at {storage.line}" if storage.line else ""
        return f"storage {number}: {words(storage.kind)}{of}, {format_bytes(storage.nbytes)}{made}"

    def tick(self, tick: int) -> str:
        """Return a tick's number, operator and module. The name of a later step's tick says so."""
        at = tick % len(self._trace.ticks)
        row = self._trace.tick(at)
        return f"{at:,} ({place(row.operator, row.module.removeprefix(self.root))}){self._later(tick)}"

    def times_of(self, first: int, until: int) -> str:
        """Return text such as ``from 1.20 ms to 0.30 ms of the next step``."""
        n_ticks = len(self._trace.ticks)
        return f"from {self.time_of(first % n_ticks)} to {self.time_of(until % n_ticks)}{self._later(until)}"

    def range_of(self, first: int, until: int) -> str:
        """Return text such as ``from 1.20 ms to 0.30 ms of the next step (ticks 12 to 3)``."""
        n_ticks = len(self._trace.ticks)
        return f"{self.times_of(first, until)} (ticks {first % n_ticks:,} to {until % n_ticks:,})"

    def moment(self, tick: int) -> str:
        """Return text such as ``0.30 ms of the next step (tick 3)``."""
        at = tick % len(self._trace.ticks)
        return f"{self.time_of(at)}{self._later(tick)} (tick {at:,})"

    def _later(self, tick: int) -> str:
        steps = tick // len(self._trace.ticks)
        return f" of {'the next' if steps == 1 else 'a later'} step" if steps else ""

    def time_of(self, tick: int) -> str:
        """Return the time from the beginning of the step to that of the tick."""
        return time_text(int(self._trace.start_ns(np.array([tick]))[0]))
