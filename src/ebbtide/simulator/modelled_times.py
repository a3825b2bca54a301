"""Models a step's times on another machine by that machine's ``compute`` rule. Results are then *modelled*.

ROOFLINE: operator_ns + max(FLOPs / their rate, bytes / bytes_per_s of the first tier).

SYSTOLIC follows the rule in TM-Training's public simulator (methods: the active buffer lasts T_b = c' + r cycles, for r
rows and c' columns that are streamed). A tile of array x array weights stays while c' columns pass, as many as half of
the buffer holds. That takes c' + array cycles, so n multiply-adds take n/array^2 * (1 + array/c') cycles. If the bytes'
time is longer, it counts. This is a reconstruction. Left out: shapes of operands, and tiles that do not fill the array.
"""

from dataclasses import replace

import numpy as np

from ebbtide.errors import SettingError
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import ComputeRule, Machine
from ebbtide.ir.trace import Trace
from ebbtide.simulator.step_columns import operand_bytes

_LONGEST_NS = 365 * 24 * 3600 * 10**9


def is_modelled(machine: Machine) -> bool:
    """Tell whether operations' times come from a model, and not from the trace."""
    return machine.compute.rule is not ComputeRule.TRACE


def recost(trace: Trace, machine: Machine) -> Trace:
    """Return the same step with the machine's times. Under the rule TRACE, it is the trace itself. The signature
    stays.

    Raises SettingError for a trace whose operations have no FLOPs.
    """
    compute = machine.compute
    if compute.rule is ComputeRule.TRACE:
        return trace
    flops = trace.ticks.flops.astype(np.float64)
    if not flops.any():
        raise SettingError(
            f"the machine {machine.name} has operations' times from their FLOPs, and this trace has none: record it "
            "with this version of Ebbtide, or leave the machine's [compute] rule out"
        )
    reads, writes = operand_bytes(trace)
    counted = trace.ticks.nbytes.astype(np.float64)
    nbytes = np.where(counted > 0, counted, np.array(reads, dtype=np.float64) + np.array(writes, dtype=np.float64))
    rate = machine.tiers[0].bytes_per_s
    assert rate is not None
    if compute.rule is ComputeRule.ROOFLINE:
        calls = trace.ticks.arguments.tolist()
        rate_of = {call: compute.rate_of(call) for call in set(calls)}
        busy = flops / np.array([rate_of[call] for call in calls], dtype=np.float64)
    else:
        assert compute.array is not None
        assert compute.clock_hz is not None
        assert compute.buffer_bytes is not None
        columns = flops / 2 / compute.array**2
        held = max(compute.buffer_bytes // 2 // (compute.array * compute.element_bytes), 1)
        passes = columns / np.clip(columns, 1.0, held)
        busy = (columns + passes * compute.array) / compute.clock_hz * (flops > 0)
    times = np.rint(compute.operator_ns + np.maximum(busy, nbytes / rate) * 1e9)
    if times.sum() > _LONGEST_NS:
        raise SettingError(f"a step would take more than a year on {machine.name}: its [compute] is too slow")
    return replace(trace, origin=Origin.SIMULATED, ticks=replace(trace.ticks, time_ns=times.astype(np.int64)))
