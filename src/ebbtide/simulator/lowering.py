"""Makes a plan's schedule with ``native/simulate/lowering.cpp``: for the arena, the simulator and people."""

from ebbtide._planning import Storages
from ebbtide._planning import lower as lower_columns
from ebbtide.ir.machine import Machine
from ebbtide.ir.of_trace import once_for_a_trace
from ebbtide.ir.plan import Plan
from ebbtide.ir.schedule import Schedule
from ebbtide.ir.stay_columns import StayColumns, columns_of
from ebbtide.ir.trace import Trace


def lower(plan: Plan, trace: Trace, machine: Machine) -> Schedule:
    """Make the schedule of a plan. Callers MUST have checked it: a stay without a source is passed over.

    So what is made anew has no command but the drop before. The simulator takes schedules of split steps
    (``ir.remakes``), in which it is born.
    """
    return lower_stays(columns_of(plan.stays, [tier.name for tier in machine.tiers]), trace, machine)


def lower_stays(stays: StayColumns, trace: Trace, machine: Machine) -> Schedule:
    """Make the schedule of stays. All other storages are in the first tier from birth to death."""
    links = [(machine.rank(link.source), machine.rank(link.target)) for link in machine.links]
    return lower_columns(native_storages(trace), n_tiers=len(machine.tiers), links=links, stays=stays.columns)


@once_for_a_trace
def native_storages(trace: Trace) -> Storages:
    """Return lives and uses of all storages, as native code takes them."""
    rows = trace.storages
    return Storages(
        n_ticks=len(trace.ticks),
        birth=rows.birth,
        death=rows.death,
        persistent=rows.persistent,
        use_storage=trace.accesses.storage,
        use_tick=trace.accesses.tick,
    )
