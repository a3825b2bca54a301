"""The engine of ``native/simulate``, for schedules: what ``engine`` does, in C++ and with the GIL free.

Its figures are those of ``engine`` to the last bit; that one is the oracle, and does what this one leaves out: online
policies, spans and levels, and measured operands (``measured_in_place``).
"""

from ebbtide._planning import Machine as NativeMachine
from ebbtide._planning import Record, simulate, simulate_stays
from ebbtide.ir.machine import Machine, Sharing
from ebbtide.ir.occupancy import PageSize
from ebbtide.ir.schedule import Schedule
from ebbtide.ir.stay_columns import StayColumns
from ebbtide.ir.trace import Trace
from ebbtide.simulator.lowering import native_storages
from ebbtide.simulator.piece_columns import whole_columns
from ebbtide.simulator.pieces import operand_bytes
from ebbtide.simulator.result import Figures, does_not_fit

_MOST = 2**59
"""Sums of bytes stay within 64 bits if all bytes of a step, once for each of its ticks, are no more."""


def is_native(trace: Trace, machine: Machine) -> bool:
    """Whether this engine can run schedules of the trace on the machine."""
    n_ticks = len(trace.ticks)
    most = sum(row.nbytes * (2 + row.death // n_ticks) for row in trace.storages) * n_ticks
    return not machine.kernels and len(machine.tiers) <= 64 and most <= _MOST


class NativeEngine:
    """For one trace on one machine, which ``is_native`` accepts."""

    def __init__(self, trace: Trace, machine: Machine, page_bytes: PageSize) -> None:
        self._trace, self._machine, self._page_bytes = trace, machine, page_bytes
        self._whole = whole_columns(trace, page_bytes)
        self._native_machine = native_machine(machine)
        self._storages = native_storages(trace)
        reads, writes = operand_bytes(trace)
        self._reads, self._writes = sum(reads), sum(writes)

    def figures(self, schedule: Schedule, n_steps: int) -> Figures:
        """Of the last step. ValueError if a tick's storages do not fit the budget together."""
        return self._figures(simulate(self._whole, self._native_machine, schedule, n_steps))

    def figures_of_stays(self, stays: StayColumns, n_steps: int) -> Figures:
        """The same of the schedule that ``lower_stays`` makes of them."""
        return self._figures(simulate_stays(self._whole, self._native_machine, self._storages, stays.columns, n_steps))

    def _figures(self, found: Record | int) -> Figures:
        if isinstance(found, int):
            raise ValueError(does_not_fit(self._trace, found))
        return Figures(
            found.starts,
            found.stalls,
            found.by_cause,
            found.moved_bytes,
            found.rescues,
            found.area,
            found.peak,
            [self._reads, *found.slow_reads[1:]],
            [self._writes, *found.slow_writes[1:]],
            found.n_uses,
            found.hits,
            found.demand_fetches,
            found.demand_bytes,
            found.slower_ns,
        )


def native_machine(machine: Machine) -> NativeMachine:
    fast, groups = machine.tiers[0], [group.name for group in machine.groups]
    return NativeMachine(
        tiers=[
            (
                tier.capacity_bytes,
                tier.in_place.reads,
                tier.in_place.writes,
                tier.ns_per_byte(False) - fast.ns_per_byte(False),
                tier.ns_per_byte(True) - fast.ns_per_byte(True),
                tier.packs,
            )
            for tier in machine.tiers
        ],
        links=[
            (
                machine.rank(link.source),
                machine.rank(link.target),
                link.bytes_per_s / 1e9,
                float(link.latency_ns),
                -1 if link.shares is None else groups.index(link.shares),
                link.slows_compute,
            )
            for link in machine.links
        ],
        groups=[(group.bytes_per_s / 1e9, group.sharing is Sharing.IN_ORDER) for group in machine.groups],
        chunk_bytes=machine.chunk_bytes,
        exclusive=machine.exclusive,
        overlap=machine.compute.overlap,
        fast_read_ns=fast.ns_per_byte(False),
        fast_write_ns=fast.ns_per_byte(True),
    )
