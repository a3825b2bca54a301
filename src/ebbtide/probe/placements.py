"""Times each unique operator of a step with its operands in fast or in slow memory: AutoTM's profile.

AutoTM (Hildebrand et al., ASPLOS 2020) runs each unique kernel three times under every placement of its operands in
DRAM and PMM. Here, slow memory is that of a NUMA node, or a mapped file (``mapped``). The file's pages are not in
memory when the operator begins. The operator's time ends when all bytes that it wrote there are in the file.

Up to six operands get all placements. With more operands, or too little time, each operand is measured alone, as an
additive model. Operands smaller than a page stay in memory, and so do results that the operator can only put into
memory of its own. Operators that take the largest part of the step come first, until the time is over.

Left out: the state of caches, which are warmer within a step; the cost of other work beside it; readahead other than
the system's own.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, Protocol

import torch

from ebbtide.errors import SpillError
from ebbtide.ir.base import Origin
from ebbtide.ir.kernels import MOST_FREE, Kernel, whole_operators
from ebbtide.ir.trace import Access, Trace
from ebbtide.probe.calls import Call, NotRepeatableError, call_of
from ebbtide.probe.figures import Figure
from ebbtide.probe.mapped import MappedFile
from ebbtide.units import MIB

RUNS = 3
"""The runs of each placement, as in AutoTM."""

_RATE_BYTES = 64 * MIB
NO_OPERATOR, NO_TIME = "no operator: before the first one", "there was no time left to measure it"
TOO_SMALL, NOT_CALLED = "its operands are smaller than a page", "it cannot be called again from its arguments"


class SlowMemory(Protocol):
    """Memory for operands: a mapped file, or a node's memory. ``mapped`` explains the methods."""

    buffer: torch.Tensor

    def settle(self) -> None: ...
    def leave_memory(self) -> None: ...
    def resident_share(self) -> float: ...


MakeSlow = Callable[[int], SlowMemory]
"""Makes slow memory of so many bytes."""


@dataclass(frozen=True, slots=True)
class Unique:
    """An operator with its arguments, its number of calls in the step, and the time ``step_ns`` of all of them."""

    operator: str
    arguments: str
    calls: int
    step_ns: int


@dataclass(slots=True)
class Profile:
    """The measured kernels, and the step's time in all others by the reason why they were left out."""

    kernels: list[tuple[Unique, Kernel]] = field(default_factory=list)
    left_out_ns: dict[str, int] = field(default_factory=dict)

    def leave_out(self, unique: Unique, reason: str) -> None:
        self.left_out_ns[reason] = self.left_out_ns.get(reason, 0) + unique.step_ns


def unique_operators(trace: Trace) -> list[Unique]:
    """Return each operator that runs in no other, with all that runs in it. Those that take longest come first."""
    found: dict[tuple[str, str], list[int]] = {}
    for ticks in whole_operators(trace):
        first = trace.tick(ticks[0])
        spent = int(trace.ticks.time_ns[ticks].sum())
        found.setdefault((first.operator, first.arguments), []).append(spent)
    uniques = [Unique(*key, len(spent), sum(spent)) for key, spent in found.items()]
    return sorted(uniques, key=lambda row: (-row.step_ns, row.operator, row.arguments))


def measure_kernels(trace: Trace, slow: MakeSlow, tier: str, seconds: float, most_bytes: int) -> Profile:
    """Measure a step's operators. ``slow`` makes slow memory, and its errors are raised.

    An operator is left out if its operands together exceed ``most_bytes``.
    """
    profile, deadline = Profile(), time.monotonic() + seconds
    for unique in unique_operators(trace):
        if not unique.operator:
            profile.leave_out(unique, NO_OPERATOR)
        elif time.monotonic() > deadline:
            profile.leave_out(unique, NO_TIME)
        else:
            try:
                kernel = measure_kernel(unique.operator, unique.arguments, slow, tier, deadline, most_bytes)
                profile.kernels.append((unique, kernel))
            except NotRepeatableError as error:
                profile.leave_out(unique, str(error))
    return profile


def measure_kernel(
    operator: str, arguments: str, slow: MakeSlow, tier: str, deadline: float, most_bytes: int
) -> Kernel:
    """Measure one operator until ``deadline``, on the clock of ``time.monotonic``.

    Raises NotRepeatableError, and the errors of ``slow``.
    """
    call = call_of(operator, arguments)
    call.require_at_most(most_bytes)
    with torch.no_grad():
        bench = _warmed(call)
        free = [at for at in range(len(call.trace_bytes)) if bench.may_move(at)]
        if not free:
            raise NotRepeatableError(TOO_SMALL)
        for at in free:
            bench.give_slow(at, slow)
        samples: dict[int, list[int]] = {0: [], **{1 << at: [] for at in free}}
        began = time.monotonic()
        _round(bench, samples, random.Random(0))
        round_s = time.monotonic() - began
        several = [sum(1 << at for at in some) for n in range(2, len(free) + 1) for some in combinations(free, n)]
        all_s = RUNS * round_s * (1 + len(free) / 2 * len(several) / len(samples))  # on average, half are slow
        is_measured = len(free) <= MOST_FREE and (not several or time.monotonic() + all_s < deadline)
        if is_measured:
            samples.update({place: [] for place in several})
        order = random.Random(1)
        for _ in range(RUNS):
            missing = {place: times for place, times in samples.items() if len(times) < RUNS}
            _round(bench, missing, order)
    places = sorted(samples)
    figures = [Figure.of([float(value) for value in samples[place]]) for place in places]
    return Kernel(
        operator,
        arguments,
        tier,
        Origin.MEASURED if is_measured else Origin.MODELLED,
        tuple(call.trace_bytes),
        tuple(call.access),
        tuple(places),
        tuple(round(figure.median) for figure in figures),
        tuple(round(max(abs(value - figure.median) for value in samples[place]))
              for place, figure in zip(places, figures, strict=True)),
    )  # fmt: skip


def file_rates(directory: Path) -> tuple[Figure, Figure]:
    """Return the bytes a second of reading and of writing a mapping that is not in memory.

    A write ends when its bytes are in the file. The rates are for large operands, in operations that were not measured.
    Raises SpillError.
    """
    slow, fast = MappedFile(directory, _RATE_BYTES), torch.zeros(_RATE_BYTES, dtype=torch.uint8)
    found: dict[bool, list[float]] = {False: [], True: []}
    for is_written in (True, False) * RUNS:
        slow.leave_memory()
        began = time.perf_counter_ns()
        if is_written:
            slow.buffer.copy_(fast)
            slow.settle()
        else:
            fast.copy_(slow.buffer)
        found[is_written].append(_RATE_BYTES * 1e9 / (time.perf_counter_ns() - began))
    return Figure.of(found[False]), Figure.of(found[True])


class _Bench:
    """A call with its operands in memory and, where they may move, in slow memory."""

    def __init__(self, call: Call, fast: list[torch.Tensor]) -> None:
        self.call, self.fast = call, fast
        self.slow: dict[int, SlowMemory] = {}

    def may_move(self, operand: int) -> bool:
        """Say whether an operand may move. Results move only where the operator writes into given tensors."""
        is_placed = operand < len(self.fast)
        return is_placed and self.call.trace_bytes[operand] >= PAGESIZE

    def give_slow(self, operand: int, slow: MakeSlow) -> None:
        memory = self.slow[operand] = slow(self.call.needed_bytes[operand])
        self.call.fill(operand, memory.buffer)

    def run(self, place: int) -> int:
        """Time one run in ns with the operands of ``place`` in slow memory. No page of their files is in memory."""
        used = {at: memory for at, memory in self.slow.items() if place >> at & 1}
        buffers = [used[at].buffer if at in used else buffer for at, buffer in enumerate(self.fast)]
        bound = self.call.bound(buffers)
        for at, memory in self.slow.items():
            if at not in used and memory.resident_share():
                memory.leave_memory()
        for memory in used.values():
            memory.leave_memory()
        began = time.perf_counter_ns()
        result: Any = bound()
        for at, memory in used.items():
            if self.call.access[at] & Access.WRITE:
                memory.settle()
        took = time.perf_counter_ns() - began
        del result
        return took


def _warmed(call: Call) -> _Bench:
    """Return a bench whose call has run in memory, so that its results are known."""
    try:
        fast = call.filled()
        call.add_results(call.bound(fast)(), fast)
        if call.into is not None:
            fast += [call.buffer(operand) for operand in range(len(fast), len(call.trace_bytes))]
        bench = _Bench(call, fast)
        for _ in range(2):
            bench.run(0)
    except (NotRepeatableError, SpillError):
        raise
    except Exception as error:  # torch raises many kinds for arguments that do not suit an operator
        raise NotRepeatableError(NOT_CALLED) from error
    return bench


def _round(bench: _Bench, samples: dict[int, list[int]], order: random.Random) -> None:
    """Run each placement once, in a new order, so that drift is spread over all of them."""
    places = list(samples)
    order.shuffle(places)
    for place in places:
        samples[place].append(bench.run(place))
