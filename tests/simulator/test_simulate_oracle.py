"""The simulator against a clock written from its page alone; and its bytes, which it counts anew at every event."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.ir.machine import Link, Machine, Sharing
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import exact, needed_bytes, occupancy, pages_of, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.schedule import no_commands
from ebbtide.ir.timeline import SpanKind
from ebbtide.ir.trace import Trace
from ebbtide.simulator import POLICIES, Simulator, simulate
from ebbtide.simulator.lowering import lower
from ebbtide.simulator.result import Outcome
from tests.helpers.make_ir import MACHINE, PACKING, planned, shrunk
from tests.helpers.make_moves import moves
from tests.helpers.make_steps import PAGE, machines, page_traces
from tests.helpers.schedules import Begin, rows_of, schedule_of
from tests.helpers.slow_clock import Copy, Life, Report, SlowClock, Unsaid

SEEDS = (*range(600), 724)  # in the last, a late copy overtakes others
N_COMPARED = 485  # more are drawn: some make no plan that keeps its promises, or come to what the clock leaves out

# ---- time ------------------------------------------------------------------------------------------------------------


def differences(report: Report, found: Outcome, machine: Machine) -> list[str]:
    """Times may differ by a ns: the simulator rounds its own at the end. Bytes may not."""
    names, tiers = [tier.name for tier in machine.tiers], range(len(machine.tiers))
    duration = report.start[-1] or 1
    stalls = (SpanKind.STALL_ROOM, SpanKind.STALL_LATE, SpanKind.STALL_DEMAND)
    times = {
        "start": (report.start, found.start_ns.tolist()),
        "stall": (report.stall, found.stall_ns.tolist()),
        "causes": (
            [report.causes[kind] for kind in ("room", "late", "demand")],
            [found.stalls[kind] for kind in stalls],
        ),
        "slower": ([report.slower], [found.slower_ns]),
        "mean": ([report.area[at] / duration for at in tiers], [found.tiers[name].mean_bytes for name in names]),
    }
    counts = {
        "moved": ({name: nbytes for name, nbytes in report.moved.items() if nbytes}, found.moved_bytes),
        "peak": ([report.peak[at] for at in tiers], [found.tiers[name].peak_bytes for name in names]),
        "hits": ((report.n_uses, report.hits), (found.n_uses, found.hits)),
        "demand": ((report.demand_fetches, report.demand_bytes), (found.demand_fetches, found.demand_bytes)),
    }
    far = [what for what, (mine, its) in times.items() if any(abs(a - b) > 1 for a, b in zip(mine, its, strict=True))]
    return far + [what for what, (mine, its) in counts.items() if mine != its]


def differ(seed: int, clock: type[SlowClock] = SlowClock) -> list[str] | None:
    """What differs; None where there is no case, or the clock comes to what it leaves out.

    Every other schedule lacks some commands, so that storages come back on demand, or late, or not at all.
    """
    case = moves(seed)
    if case is None:
        return None
    trace, plan, machine = case
    commands, begins = rows_of(lower(plan, trace, machine), machine)
    told = {begin.storage for begin in begins}
    rest = [number for number, row in enumerate(trace.storages) if row.persistent and number not in told]
    begins = (*begins, *(Begin(number, "dram") for number in rest))
    if seed % 2:
        rng = Random(seed)
        lost = {Verb.FETCH: 0.5, Verb.EVICT: 0.15, Verb.DROP: 0.15}
        commands = tuple(row for row in commands if rng.random() >= lost[row.verb])
    try:
        report = clock(commands, begins, trace, machine).run()
    except Unsaid:
        return None
    found = simulate(schedule_of(commands, machine, begins), trace, machine)
    return differences(report, found, machine)


def test_times_and_bytes_are_those_of_the_slow_clock() -> None:
    found = {seed: differ(seed) for seed in SEEDS}
    assert {seed: what for seed, what in found.items() if what} == {}
    assert sum(what is not None for what in found.values()) == N_COMPARED


class NoLatency(SlowClock):
    def enqueue(self, copy: Copy) -> None:
        super().enqueue(copy)
        copy.wait_ns = Fraction(0)


class RoomIsGivenUpAtOnce(SlowClock):
    def leave(self, life: Life, tier: int) -> None:
        super().leave(life, tier)
        if tier in life.leaving:
            self.take(life, tier, -life.reserved[tier])


class FairIsInOrder(SlowClock):
    def is_fair(self, sharing: Sharing) -> bool:
        return False


class NoChunks(SlowClock):
    def chunk_of(self, copy: Copy) -> int:
        return copy.life.nbytes - copy.done


class NoContention(SlowClock):
    def slowness(self) -> Fraction:
        return Fraction(1)


class WritesKeepReplicas(SlowClock):
    def write(self, life: Life, tier: int | None) -> None:
        pass


class NoPorts(SlowClock):
    def carrying(self) -> list[Link]:
        return []


class OneRate(SlowClock):
    def alone(self, link: Link) -> int:
        return link.bytes_per_s


class NothingIsUrgent(SlowClock):
    def urgent(self, copy: Copy) -> bool:
        return False


class UnlimitedFirstTier(SlowClock):
    def free(self, tier: int) -> int:
        return super().free(tier) if tier else 2**62


@pytest.mark.parametrize(
    "wrong",
    [
        NoLatency,
        RoomIsGivenUpAtOnce,
        FairIsInOrder,
        NoChunks,
        NoContention,
        WritesKeepReplicas,
        NoPorts,
        OneRate,
        NothingIsUrgent,
        UnlimitedFirstTier,
    ],
)
def test_a_wrong_clock_is_found_out(wrong: type[SlowClock]) -> None:
    """Only the wrong rule differs: the right clock agrees on every case."""
    assert any(differ(seed, wrong) for seed in SEEDS)


# ---- bytes -----------------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(
    page_traces(most_ticks=8, most_storages=7, tenants=True),
    st.sampled_from([*POLICIES, "no plan"]),
    st.floats(0, 1),
    st.data(),
)
def test_no_policy_holds_more_than_there_is(trace: Trace, name: str, share: float, data: st.DataObject) -> None:
    pages = pages_of(PAGE)
    total = int(trace.storages.nbytes.sum())
    budget = max(peak(needed_bytes(trace, pages)), 1) + int(share * total)
    machine = data.draw(machines(3 * total + 8 * PAGE)).with_budget(budget)
    found = Simulator(trace, machine, pages).run(
        no_commands(), record=True, policy=POLICIES.get(name), checks_state=True
    )
    assert all(tier.capacity_bytes is None or found.tiers[tier.name].peak_bytes <= tier.capacity_bytes
               for tier in machine.tiers)  # fmt: skip
    timeline = found.timeline(name)
    assert found.step_ns + len(trace.ticks) >= trace.step_ns
    assert all(level.nbytes <= budget for level in timeline.levels if level.tier == "dram")
    assert 0 <= found.hits <= found.n_uses


@settings(max_examples=120, deadline=None)
@given(planned(longest_life=1), st.data())
def test_a_plan_runs_in_the_room_that_it_counts(case: tuple[Trace, Plan], data: st.DataObject) -> None:
    """With tiers no larger than its stays, and links of any speed: late copies may wait for room, and never go over.
    What is packed takes as much as the accountant says, too."""
    trace, plan = case
    model = data.draw(st.sampled_from([MACHINE, PACKING]))
    trace = shrunk(trace, data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4)))
    held = occupancy(trace, plan.stays, [tier.name for tier in model.tiers], exact, model.packing)
    rate, latency = st.sampled_from([10**9, 10**8]), st.sampled_from([0, 7])
    machine = replace(
        model,
        chunk_bytes=data.draw(st.sampled_from([None, 1, 2])),
        exclusive=data.draw(st.booleans()),
        tiers=tuple(replace(tier, capacity_bytes=peak(held[tier.name])) for tier in model.tiers),
        links=tuple(replace(row, bytes_per_s=data.draw(rate), latency_ns=data.draw(latency)) for row in MACHINE.links),
    )
    found = Simulator(trace, machine, exact).run(lower(plan, trace, machine), record=True, checks_state=True)
    for tier in machine.tiers:
        assert tier.capacity_bytes is not None
        assert found.tiers[tier.name].peak_bytes <= tier.capacity_bytes
    assert found.step_ns == pytest.approx(
        trace.step_ns + found.exposed_ns + found.slower_ns, rel=0.3, abs=2 * len(trace.ticks)
    )
