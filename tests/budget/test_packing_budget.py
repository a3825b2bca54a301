"""Compressed memory is the process's own: where that is bounded, a plan that fills it has so much less for the rest."""

from dataclasses import replace

import pytest

from ebbtide.errors import EbbtideError, InfeasibleBudgetError
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.trace import Trace
from ebbtide.planning.plan_job import Job, _decided
from ebbtide.runtime.start_arena import may_still_pack
from ebbtide.settings import Settings
from ebbtide.units import MIB
from tests.helpers.make_ir import PACKING, shrunk
from tests.helpers.make_recording import recording
from tests.helpers.make_steps import disk, network

TRACE = shrunk(network(layers=2), [None, 4096])


class Planner:
    """Takes so long with what shrinks and without it, and at least so many bytes."""

    def __init__(self, packed_ns: int, plain_ns: int, least: int = 0) -> None:
        self.took = {True: packed_ns, False: plain_ns}
        self.least = least
        self.asked: list[tuple[bool, int]] = []

    def __call__(self, trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
        packs = any(row.packed_bytes is not None for row in trace.storages)
        self.asked.append((packs, budget_bytes))
        if budget_bytes < self.least:
            raise InfeasibleBudgetError(10 * self.least, "aten::mm", 0, budget_bytes)
        return Plan("stub", PlanStatus.FEASIBLE, trace.signature(), budget_bytes, self.took[packs], 0, 0, ())


def decided(planner: Planner, shared: int, trace: Trace = TRACE, machine: Machine = PACKING) -> Plan:
    job = Job(recording(), {}, machine, 100 * MIB, shared_bytes=shared)
    return _decided(trace, machine, job, planner)


def test_a_plan_with_it_is_for_less_and_the_faster_one_is_taken() -> None:
    for packed_ns, plain_ns in ((5, 6), (6, 5)):
        planner = Planner(packed_ns, plain_ns)
        found = decided(planner, 30 * MIB)
        assert found.predicted_ns == 5
        assert planner.asked == [(False, 100 * MIB), (True, 70 * MIB)]  # neither has to move anything
        assert found.budget_bytes == (70 if packed_ns < plain_ns else 100) * MIB


def test_one_plan_is_made_where_nothing_is_shared_shrinks_or_packs() -> None:
    for asked, found in (
        ([(True, 100 * MIB)], lambda planner: decided(planner, 0)),
        ([(False, 100 * MIB)], lambda planner: decided(planner, MIB, network(layers=2))),
        ([(True, 100 * MIB)], lambda planner: decided(planner, MIB, machine=disk())),
    ):
        planner = Planner(5, 6)
        found(planner)
        assert planner.asked == asked


def test_where_there_is_no_plan_for_less_the_other_is_taken() -> None:
    assert decided(Planner(5, 6, least=80 * MIB), 30 * MIB).predicted_ns == 6
    with pytest.raises(EbbtideError, match="and there are 100 MiB"):  # the whole budget
        decided(Planner(5, 6, least=200 * MIB), 30 * MIB)


def test_what_compressed_memory_may_still_take_is_what_it_never_had() -> None:
    tiers = Settings().but(tiers="numa:0:1GiB,compressed:64MiB").tiers
    counters = {"tier_peak_bytes": (0, 24 * MIB, 0)}
    assert may_still_pack(tiers, counters) == 40 * MIB  # type: ignore[arg-type]
    assert may_still_pack(tiers[:1], counters) == 0  # type: ignore[arg-type]
    assert may_still_pack(tiers, {"tier_peak_bytes": (0, 99 * MIB, 0)}) == 0  # type: ignore[arg-type]
    assert may_still_pack((), {}) == 0  # type: ignore[arg-type]


def test_the_trace_of_a_plan_without_it_has_one_signature_with_the_other() -> None:
    assert TRACE.signature() == shrunk(TRACE, [None]).signature() == replace(TRACE, name="x").signature()
