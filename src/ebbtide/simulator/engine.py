"""Runs one step on one machine in ``native/simulate``: columns go in, an outcome comes out, and the GIL is free."""

import numpy as np

from ebbtide._planning import POLICIES, Asked, Policy, Record, simulate, simulate_stays
from ebbtide._planning import Link as NativeLink
from ebbtide._planning import LinkGroup as NativeGroup
from ebbtide._planning import Machine as NativeMachine
from ebbtide._planning import Tier as NativeTier
from ebbtide.errors import SettingError
from ebbtide.ir.base import LARGEST
from ebbtide.ir.machine import Machine, Sharing
from ebbtide.ir.occupancy import PageSize, exact
from ebbtide.ir.plan import Plan
from ebbtide.ir.remakes import split_plan
from ebbtide.ir.schedule import Schedule, no_commands
from ebbtide.ir.stay_columns import StayColumns, columns_of
from ebbtide.ir.timeline import COMPUTE_LANE, Level, Span, SpanKind
from ebbtide.ir.trace import Trace
from ebbtide.simulator.lowering import native_storages
from ebbtide.simulator.result import Outcome, Use, does_not_fit
from ebbtide.simulator.scores import Score, checked
from ebbtide.simulator.step_columns import operand_bytes, step_columns

_STALLS = (SpanKind.STALL_ROOM, SpanKind.STALL_LATE, SpanKind.STALL_DEMAND)
_KINDS = (*_STALLS, SpanKind.COMPUTE, SpanKind.EVICT, SpanKind.FETCH)
_MOST_TIERS = 64


class Simulator:
    """One step on one machine, for many schedules. The budget is the first tier's capacity (``with_budget``).

    Raises SettingError for a machine or a step that the engine cannot count: more than 64 tiers, or 2**62 bytes.
    """

    def __init__(self, trace: Trace, machine: Machine, page_bytes: PageSize = exact) -> None:
        n_ticks = len(trace.ticks)
        at_once = 2 + trace.storages.death // n_ticks  # for each storage, a bound on its generations alive at once
        most = float(np.dot(trace.storages.nbytes.astype(np.float64), at_once)) * n_ticks
        if most > LARGEST or len(machine.tiers) > _MOST_TIERS:
            raise SettingError(
                f"a simulation can count a step of 2**62 bytes, once for each of its ticks, on {_MOST_TIERS} tiers: "
                f"{trace.name!r:.80} on {machine.name!r:.80} is more"
            )
        self._trace, self._machine, self._page_bytes = trace, machine, page_bytes
        self._pieces, self._native = step_columns(trace, page_bytes), _native(machine)

    def run(
        self,
        schedule: Schedule,
        n_steps: int = 3,
        record: bool = False,
        policy: Policy | None = None,
        checks_state: bool = False,
    ) -> Outcome:
        """Run the steady step, the last of ``n_steps``; under a ``policy``, the mean of those after the second.

        ``record`` asks for the last one's spans and levels. Under a policy the schedule MUST be empty. ``checks_state``
        counts all bytes anew at every event, for tests. Raises ValueError if a tick's storages do not fit the budget
        together.
        """
        return self._outcome(self.noted(schedule, n_steps, record, policy, checks_state))

    def run_stays(self, stays: StayColumns, n_steps: int = 3) -> Outcome:
        """Run a plan that has these stays. All other storages are in the first tier all their lives."""
        asked = Asked(policy=None, n_steps=n_steps, keeps_spans=False, checks_state=False)
        storages = native_storages(self._trace)
        return self._outcome(simulate_stays(self._pieces, self._native, storages, stays.columns, asked))

    def run_plan(self, plan: Plan, n_steps: int = 3) -> Outcome:
        """Run a plan, which MUST have been checked."""
        plan, trace, _ = split_plan(plan, self._trace)
        if trace is not self._trace:
            return Simulator(trace, self._machine, self._page_bytes).run_plan(plan, n_steps)
        names = [tier.name for tier in self._machine.tiers]
        elsewhere = {stay.storage for stay in plan.stays if stay.tier != names[0]}
        return self.run_stays(columns_of([stay for stay in plan.stays if stay.storage in elsewhere], names), n_steps)

    def run_scored(self, name: str, score: Score, n_steps: int, record: bool) -> Outcome:
        """Run under ``demand``, but ``score`` says who leaves: the policy ``name`` of another package."""
        asked = Asked(
            policy=POLICIES["demand"],
            score=checked(name, score, self._pieces.storage),
            n_steps=n_steps,
            keeps_spans=record,
            checks_state=False,
        )
        return self._outcome(simulate(self._pieces, self._native, no_commands(), asked))

    def noted(
        self,
        schedule: Schedule,
        n_steps: int = 3,
        record: bool = False,
        policy: Policy | None = None,
        checks_state: bool = False,
    ) -> Record | int:
        """Return the engine's record of the step for ``run``, unrounded; or the tick that does not fit."""
        asked = Asked(policy=policy, n_steps=n_steps, keeps_spans=record, checks_state=checks_state)
        return simulate(self._pieces, self._native, schedule, asked)

    def _outcome(self, found: Record | int) -> Outcome:
        """Round a record. Raises ValueError for a tick that does not fit, and SettingError for a machine on which the
        step takes longer than can be counted."""
        if isinstance(found, int):
            raise ValueError(does_not_fit(self._trace, found))
        if not sum((found.starts[-1], *found.by_cause, found.slower_ns)) <= LARGEST:  # nan is not either
            raise SettingError("on this machine the step takes more than 2**62 ns: a figure of it cannot be right")
        return Outcome(
            np.rint(found.starts).astype(np.int64),
            np.rint(found.stalls).astype(np.int64),
            {kind: round(spent) for kind, spent in zip(_STALLS, found.by_cause, strict=True)},
            {link.name: nbytes for link, nbytes in zip(self._machine.links, found.moved_bytes, strict=True) if nbytes},
            found.rescues,
            self._spans(found),
            self._levels(found),
            self._uses(found),
            found.n_uses,
            found.hits,
            found.demand_fetches,
            found.demand_bytes,
            round(found.slower_ns),
        )

    def _uses(self, found: Record) -> dict[str, Use]:
        """List the use of each tier. Operands that are not used in place count on the first tier."""
        step_ns = max(float(found.starts[-1]), 1e-9)
        all_reads, all_writes = (sum(nbytes) for nbytes in operand_bytes(self._trace))
        reads = [all_reads - sum(found.slow_reads[1:]), *found.slow_reads[1:]]
        writes = [all_writes - sum(found.slow_writes[1:]), *found.slow_writes[1:]]
        return {
            tier.name: Use(round(found.area[rank] / step_ns), found.peak[rank], reads[rank], writes[rank])
            for rank, tier in enumerate(self._machine.tiers)
        }

    def _spans(self, found: Record) -> tuple[Span, ...]:
        columns = found.spans()
        order = np.lexsort((columns["stop_ns"], columns["start_ns"]))
        names = ("lane", "kind", "start_ns", "stop_ns", "tick", "storage", "nbytes")
        rows = zip(*(columns[name][order].tolist() for name in names), strict=True)
        spans, operators = list[Span](), self._trace.ticks.operator.tolist()
        for lane, kind, start, stop, tick, storage, nbytes in rows:
            if lane < 0:
                spans.append(Span(COMPUTE_LANE, _KINDS[kind], start, stop, tick, label=operators[tick]))
            else:
                spans.append(Span(self._machine.links[lane].name, _KINDS[kind], start, stop, None, storage, nbytes))
        return tuple(spans)

    def _levels(self, found: Record) -> tuple[Level, ...]:
        columns = found.levels()
        rows = zip(*(columns[name].tolist() for name in ("rank", "time_ns", "nbytes")), strict=True)
        return tuple(Level(self._machine.tiers[rank].name, time_ns, nbytes) for rank, time_ns, nbytes in rows)


def _native(machine: Machine) -> NativeMachine:
    """Make the engine's machine, without names: tiers have numbers."""
    fast, groups = machine.tiers[0], [group.name for group in machine.groups]
    return NativeMachine(
        tiers=[
            NativeTier(
                capacity_bytes=tier.capacity_bytes,
                reads=tier.in_place.reads,
                writes=tier.in_place.writes,
                read_ns=tier.ns_per_byte(False) - fast.ns_per_byte(False),
                write_ns=tier.ns_per_byte(True) - fast.ns_per_byte(True),
                packs=tier.packs,
            )
            for tier in machine.tiers
        ],
        links=[
            NativeLink(
                source=machine.rank(link.source),
                target=machine.rank(link.target),
                bytes_per_ns=link.bytes_per_s / 1e9,
                latency_ns=float(link.latency_ns),
                group=None if link.shares is None else groups.index(link.shares),
                slows_compute=link.slows_compute,
                beside_bytes_per_ns=(link.beside_bytes_per_s or 0) / 1e9,
            )
            for link in machine.links
        ],
        groups=[
            NativeGroup(bytes_per_ns=group.bytes_per_s / 1e9, in_order=group.sharing is Sharing.IN_ORDER)
            for group in machine.groups
        ],
        chunk_bytes=machine.chunk_bytes,
        exclusive=machine.exclusive,
        overlap=machine.compute.overlap,
        fast_read_ns=fast.ns_per_byte(False),
        fast_write_ns=fast.ns_per_byte(True),
    )
