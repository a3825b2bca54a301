"""``ati-outliers``: swaps large storages that are idle for long, if one copy each way fits their idle time.

After Pinpointing (ISPASS 2021, "Pinpointing the Memory Behaviors of DNN Training"). It measures access-time intervals
(ATI) and finds that only a few, the outliers, are worth a swap. The rule is a reconstruction: a block of S bytes can be
swapped without slowdown iff ATI >= S / B_out + S / B_in. Outliers are those whose S x ATI is above a percentile. Here
the percentile is lowered, outlier by outlier, until the step fits. Eviction starts at once, the fetch S / B_in before
the next access.

Left out, as in the paper: queues, since each swap is judged alone; and a rule for budgets that no such swaps can keep.
The plan is then ``over_budget``.
"""

from time import perf_counter_ns

import numpy as np

from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of, require_budget
from ebbtide.planners.published.pressure import Pressure
from ebbtide.planners.resident import resident
from ebbtide.planners.search.make_plan import make_plan, pair_of


def ati_outliers(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Make the plan. Raises InfeasibleBudgetError for a budget that no plan can keep."""
    began = perf_counter_ns()
    require_budget(trace, budget_bytes, page_size_of(machine))
    pressure = Pressure(trace, machine)
    pair = pair_of(machine, peak(pressure.live))
    if pair is None:
        return resident(trace, machine, budget_bytes)
    idle, clock, idle_ns = pressure.idle, pressure.clock, pressure.idle_ns
    out_ns, in_ns = (link.copy_ns(idle.nbytes) for link in (pair.outward, pair.inward))
    swappable = idle.returns & (idle_ns >= out_ns + in_ns)
    done = clock.at_or_after(clock.of(idle.after + 1) + out_ns)
    back = clock.at_or_before(clock.of(idle.until) - in_ns)
    area = idle.nbytes * idle_ns
    for row in np.argsort(-area, kind="stable").tolist():
        if swappable[row] and pressure.relieves(row, budget_bytes):
            out = int(idle.after[row]) + 1
            pressure.set(row, out, int(done[row]), int(done[row]), int(back[row]))
    return make_plan("ati-outliers", trace, machine, budget_bytes, pressure.stays(), began)
