"""``zero-infinity``: parameters, gradients and optimizer state come on demand, a fixed number of uses ahead.

After ZeRO-Infinity (Rajbhandari et al., SC 2021) as DeepSpeed runs it on one device with offload: what belongs to the
optimizer and the parameters lies in the slow tier, is gathered for the module that needs it and released after it. The
prefetch looks ``DEPTH`` uses ahead, whatever the bandwidth; there is no cache between a release and the next use.

Left out: partitioning over devices, buckets (``stage3_prefetch_bucket_size`` counts elements, here uses), the reuse
distance below which DeepSpeed keeps a parameter, activation checkpoints on the host (activations stay), and the
optimizer's step on the host: it is an operation like the others. Storages move whole, clean ones without a write.
"""

from time import perf_counter_ns

import numpy as np

from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import StorageKind, Trace
from ebbtide.planners.finish import finished
from ebbtide.planners.modules import ahead, leaves_module
from ebbtide.planners.pressure import Pressure
from ebbtide.planners.resident import resident
from ebbtide.planners.slow_tiers import reachable_tiers

DEPTH = 2
OFFLOADED = (StorageKind.PARAMETER, StorageKind.GRADIENT, StorageKind.OPTIMIZER_STATE)


def zero_infinity(trace: Trace, machine: Machine, budget_bytes: int, depth: int = DEPTH) -> Plan:
    """InfeasibleBudgetError names the least budget with all parameters, gradients and optimizer state away; PlanError
    if the slow tiers have no room for them."""
    began = perf_counter_ns()
    if not reachable_tiers(machine):
        return resident(trace, machine, budget_bytes)
    kinds = np.array([storage.kind in OFFLOADED for storage in trace.storages], dtype=bool)
    pressure = Pressure(trace, machine)
    absences = pressure.absences
    pressure.may_leave = kinds[absences.storage]
    pressure.require(budget_bytes)
    released = pressure.may_leave & leaves_module(trace, absences)
    rows = np.flatnonzero(released)
    n_ticks = len(trace.ticks)
    order = rows[np.argsort(absences.until[rows] % n_ticks, kind="stable")]
    needs = np.sort(absences.until[rows[absences.returns[rows]]] % n_ticks)
    for row in order.tolist():
        gone, until = int(absences.after[row]) + 1, int(absences.until[row])
        back = max(ahead(needs, until, depth, n_ticks), gone) if absences.returns[row] else until
        pressure.set(row, gone, gone, gone, back)
    pressure.squeeze(budget_bytes, absences.after.astype(np.float64))
    return finished("zero-infinity", trace, machine, budget_bytes, pressure.stays(), began)
