"""``zero-infinity``: parameters, gradients and optimizer state come on demand, a fixed number of uses ahead.

After ZeRO-Infinity (Rajbhandari et al., SC 2021), as DeepSpeed runs it on one device with offload. Parameters and
optimizer state lie in the slow tier. They are gathered for the module that needs them and released after it. The
prefetch looks ``DEPTH`` uses ahead, whatever the bandwidth. There is no cache between a release and the next use.

Left out: partitioning over devices, and buckets (``stage3_prefetch_bucket_size`` counts elements; uses are counted
here). Also left out: the reuse distance below which DeepSpeed keeps a parameter, and activation checkpoints on the
host (activations stay). The optimizer's step on the host is an operation like the others. Storages move whole, clean
ones without a write.
"""

from time import perf_counter_ns

import numpy as np

from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import StorageKind, Trace
from ebbtide.planners.published.module_ends import leaves_module, offload
from ebbtide.planners.published.pressure import Pressure
from ebbtide.planners.resident import resident
from ebbtide.planners.search.make_plan import make_plan
from ebbtide.planners.search.slow_tiers import reachable_tiers

DEPTH = 2
OFFLOADED = (StorageKind.PARAMETER, StorageKind.GRADIENT, StorageKind.OPTIMIZER_STATE)


def zero_infinity(trace: Trace, machine: Machine, budget_bytes: int, depth: int = DEPTH) -> Plan:
    """Make the plan. Raises InfeasibleBudgetError, which names the least budget.

    At that budget, all parameters, gradients and optimizer state are away. Raises PlanError if the slow tiers have no
    room for them.
    """
    began = perf_counter_ns()
    if not reachable_tiers(machine):
        return resident(trace, machine, budget_bytes)
    pressure = Pressure(trace, machine)
    pressure.evictable = np.isin(trace.storages.kind, OFFLOADED)[pressure.idle.storage]
    pressure.require(budget_bytes)
    offload(pressure, np.flatnonzero(pressure.evictable & leaves_module(trace, pressure.idle)), depth)
    pressure.squeeze(budget_bytes)
    return make_plan("zero-infinity", trace, machine, budget_bytes, pressure.stays(), began)
