"""Optane's memory mode (AutoTM's 2LM): DRAM as a cache of the hardware's in front of PMM.

The cache is direct-mapped and writes back. A line comes in when it is read or written, and goes out when another takes
its place, with a write if it was written. It does not know what is dead: the garbage of a storage that has died goes
out like anything else, and what is born in its place comes in first.

Storages lie where AutoTM's layout puts them, as nGraph's allocator does, and an operation goes through its operands
from end to end, what it reads first. Lines of ``LINE_BYTES`` stand for the hardware's of 64 bytes, which are used one
after the other. Left out: several accesses of one operation to the same line, and the hardware's own traffic for tags.
"""

from dataclasses import dataclass

import numpy as np

from bench.papers.layout import lay_out
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Stay
from ebbtide.ir.trace import Access, Trace
from ebbtide.simulator.step_columns import operand_bytes

LINE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Cached:
    """A steady step's time, and the bytes that came in and went out."""

    step_ns: float
    read_bytes: int
    written_bytes: int


class Lines:
    """The cache's lines: which line of PMM each holds, or -1, and whether it was written."""

    def __init__(self, count: int) -> None:
        self.held, self.dirty = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=bool)

    def use(self, first: int, last: int, writes: bool) -> tuple[int, int]:
        """Go through lines [first, last) of PMM. Returns how many came in, and how many went out."""
        came = went = 0
        while first < last:
            start = first % len(self.held)
            stop = min(start + last - first, len(self.held))
            lines = np.arange(first, first + stop - start)
            held, dirty = self.held[start:stop], self.dirty[start:stop]
            missing = held != lines
            came, went = came + int(missing.sum()), went + int((missing & dirty).sum())
            dirty[missing] = False
            dirty |= writes
            held[:] = lines
            first += stop - start
        return came, went


def memory_mode(trace: Trace, machine: Machine, dram_bytes: int, line_bytes: int = LINE_BYTES) -> Cached:
    """Run the step with ``dram_bytes`` of cache in front of the machine's second tier."""
    fast, slow = machine.tiers[:2]
    whole = [Stay(number, fast.name, row.birth, row.birth, row.death) for number, row in enumerate(trace.storages)]
    stays, addresses = lay_out(trace, whole, machine)
    at = {stay.storage: int(address) for stay, address in zip(stays, addresses, strict=True)}
    lines, n_ticks = Lines(max(dram_bytes // line_bytes, 1)), len(trace.ticks)
    rows, nbytes = trace.accesses, trace.storages.nbytes.tolist()
    uses: list[list[tuple[bool, int]]] = [[] for _ in range(n_ticks)]
    for number, tick, mode in zip(rows.storage.tolist(), rows.tick.tolist(), rows.mode.tolist(), strict=True):
        uses[tick % n_ticks].append((bool(mode & Access.WRITE), number))
    times = trace.ticks.time_ns.tolist()
    reads, writes = operand_bytes(trace)
    for _ in range(3):  # the last is steady
        total, read, written = 0.0, 0, 0
        for tick, used in enumerate(uses):
            came = went = 0
            for is_write, number in sorted(used):
                first, last = at[number] // line_bytes, -(-(at[number] + nbytes[number]) // line_bytes)
                more = lines.use(first, last, is_write)
                came, went = came + more[0], went + more[1]
            extra_ns = line_bytes * (came * slow.ns_per_byte(False) + went * slow.ns_per_byte(True))
            total += machine.tick_ns(times[tick], int(reads[tick]), int(writes[tick]), extra_ns)
            read, written = read + came * line_bytes, written + went * line_bytes
    return Cached(total, read, written)
