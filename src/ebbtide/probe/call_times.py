"""Times a modelled step's operators on this computer: each unique call is made again, with values that are made up.

A roofline knows matrix products and bytes. Real kernels reach less, each in its own way, so calling them is nearer to
the truth. Calls that would save the most of what is only modelled come first, until the time is over. A call that
cannot be made again keeps its modelled time.

Left out: caches, which are warmer here than within a step, and what a script does between operators.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from time import monotonic, perf_counter, perf_counter_ns

import numpy as np
import torch

from ebbtide.host.process import give_back_freed_memory, peak_resident_bytes, reset_peak, resident_bytes
from ebbtide.ir.base import Ints
from ebbtide.ir.trace import Trace
from ebbtide.probe.calls import Buffers, NotRepeatableError, call_of, tensors_in

_RUNS = 5
_RUN_SHARE = 0.02
"""No call is repeated once it has taken this share of the time."""
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_MOST_HEAP_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CalledTimes:
    """The step with measured times, the share of its time that was measured, and what kernels took besides tensors.

    ``kernel_bytes`` are what each tick's call took beyond operands and results: code, and memory to work in.
    """

    trace: Trace
    share: float
    kernel_bytes: Ints


def with_called_times(trace: Trace, operator_ns: int, seconds: float, most_bytes: int) -> CalledTimes:
    """Call the step's operators for about ``seconds``, those with at most ``most_bytes`` of operands and results.

    No call counts as shorter than ``operator_ns``.
    """
    deadline, caller = monotonic() + seconds, _Caller(most_bytes, seconds * _RUN_SHARE)
    measured: dict[tuple[str, str], tuple[int, int]] = {}
    with torch.no_grad():
        for operator, arguments in _by_time(trace):
            if monotonic() > deadline:
                break
            with suppress(NotRepeatableError):
                took_ns, worked_in = caller.call(operator, arguments)
                measured[operator, arguments] = max(took_ns, operator_ns), worked_in
    times, known = trace.ticks.time_ns.copy(), 0
    kernel_bytes = np.full(len(times), caller.kept_bytes)
    for ticks in _whole_operators(trace):
        first = trace.tick(ticks[0])
        if (took := measured.get((first.operator, first.arguments))) is not None:
            times[ticks] = 0
            times[ticks[0]], worked_in = took
            kernel_bytes[ticks] += worked_in
            known += took[0]
    called = replace(trace, ticks=replace(trace.ticks, time_ns=times))
    return CalledTimes(called, known / max(int(np.sum(times)), 1), kernel_bytes)


def _whole_operators(trace: Trace) -> list[range]:
    """Return the ticks of each outermost operator, including the operators that run in it."""
    firsts = sorted({0, *np.flatnonzero(trace.ticks.depth == 0).tolist()})
    return [range(first, last) for first, last in pairwise([*firsts, len(trace.ticks)])]


def _by_time(trace: Trace) -> list[tuple[str, str]]:
    """Return the name and arguments of each outermost operator, once. Those that take longest come first."""
    spent: dict[tuple[str, str], int] = {}
    for ticks in _whole_operators(trace):
        first = trace.tick(ticks[0])
        call = first.operator, first.arguments
        spent[call] = spent.get(call, 0) + int(trace.ticks.time_ns[ticks].sum())
    return sorted(spent, key=lambda call: (-spent[call], call))


class _Caller:
    """Calls operators, each up to ``_RUNS`` times and no more after ``seconds``.

    ``kept_bytes`` are what calls left behind: code, and memory that kernels keep.
    """

    def __init__(self, most_bytes: int, seconds: float) -> None:
        self._most_bytes, self._seconds = most_bytes, seconds
        self.kept_bytes = 0

    def call(self, operator: str, arguments: str) -> tuple[int, int]:
        """Return the shortest time of a call, since others may disturb and none helps, and the bytes that it works in.
        Raises NotRepeatableError."""
        call = call_of(operator, arguments)
        call.require_at_most(self._most_bytes)
        try:
            buffers = call.filled()
            bound, samples = call.bound(buffers), list[int]()
            worked_in = self._watch(bound, buffers)
            end = perf_counter() + self._seconds
            while not samples or (len(samples) < _RUNS and perf_counter() < end):
                began = perf_counter_ns()
                result = bound()
                samples.append(perf_counter_ns() - began)
                del result
        except Exception as error:  # torch raises many kinds for arguments that do not suit an operator
            raise NotRepeatableError("it cannot be called again from its arguments") from error
        return min(samples), worked_in

    def _watch(self, bound: Callable[[], object], buffers: Buffers) -> int:
        """Make the first call, which loads code and makes what kernels keep. Return what it works in besides."""
        give_back_freed_memory()
        knows_peak, before = reset_peak(), resident_bytes()
        result = bound()
        most = (peak_resident_bytes() if knows_peak else resident_bytes()) - before - _own_bytes(result, buffers)
        del result
        give_back_freed_memory()
        kept = max(resident_bytes() - before, 0)
        self.kept_bytes += kept
        return max(most - kept, 0)


def _own_bytes(result: object, buffers: Buffers) -> int:
    """Return the bytes of results that lie in no operand."""
    operands = {buffer.untyped_storage().data_ptr() for buffer in buffers}
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors_in(result)}
    return sum(nbytes for address, nbytes in storages.items() if address not in operands)


def keep_freed_memory() -> None:
    """Have the C library of this process keep what is freed, as the arena does: else each result's pages are new."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, _MOST_HEAP_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _MOST_HEAP_BYTES)
