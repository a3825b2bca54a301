"""Operations in place, chunks and several tiers, against times worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ebbtide.ir.base import Origin
from ebbtide.ir.check import check_plan
from ebbtide.ir.machine import Compute, InPlace, Link, Machine, Tier
from ebbtide.ir.native import Verb
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.timeline import SpanKind
from ebbtide.ir.trace import Storage, StorageKind, Trace
from ebbtide.simulator import Outcome, Simulator, simulate, simulate_policy
from ebbtide.simulator.lowering import lower
from tests.helpers.make_steps import R, W, parameter, step
from tests.helpers.schedules import Begin, Command, rows_of, schedule_of

MS = 1_000_000
MB = 1_000_000  # at 10**9 bytes a second, one takes one ms

FAST = Tier("dram", InPlace.ALL, bytes_per_s=10**10)


def machine(*slower: Tier, links: Sequence[Link] | None = None) -> Machine:
    """Links of 1 GB/s from and to the first tier, unless others are given."""
    if links is None:
        links = [link for tier in slower for link in (Link("dram", tier.name, 10**9), Link(tier.name, "dram", 10**9))]
    return Machine("made up", Origin.ASSUMED, (FAST, *slower), tuple(links))


PMM = Tier("pmm", InPlace.ALL, bytes_per_s=10**9, write_bytes_per_s=5 * 10**8)


def follow(trace: Trace, where: Machine, *stays: Stay, budget: int | None = None) -> Outcome:
    """Simulates a plan that keeps its promises."""
    plan = Plan("by hand", PlanStatus.FEASIBLE, trace.signature(), 0, trace.step_ns, 0, 0, stays)
    where = where if budget is None else where.with_budget(budget)
    assert check_plan(plan, trace, where) == ()
    return simulate(lower(plan, trace, where), trace, where, record=True)


def test_an_operation_in_place_takes_longer_by_the_bytes_that_it_reads_and_writes_there() -> None:
    trace = step([10 * MS] * 3, [parameter(2 * MB, 3)], [(0, 0, R), (0, 1, W), (0, 2, R | W)])
    found = follow(trace, machine(PMM), Stay(0, "pmm", 0, 0, 3))
    read, write = 2 * (1.0 - 0.1) * MS, 2 * (2.0 - 0.1) * MS
    assert found.slower_ns == 2 * (read + write)
    assert found.step_ns == 30 * MS + 2 * (read + write)
    assert found.moved_bytes == {}
    assert (found.tiers["pmm"].read_bytes, found.tiers["pmm"].written_bytes) == (4 * MB, 4 * MB)
    assert (found.tiers["dram"].read_bytes, found.tiers["dram"].peak_bytes) == (0, 0)


@pytest.mark.parametrize("chunk_bytes", [None, MB])
def test_what_is_still_on_its_way_to_where_its_next_operation_uses_it_does_not_keep_its_room(
    chunk_bytes: int | None,
) -> None:
    """A weight of 8 MB moves between the first two operations. The second is over before the copy; the third uses the
    weight in place, and what it gives birth to needs the room."""
    trace = step(
        [MS] * 3, [parameter(8 * MB, 3), Storage(8 * MB, StorageKind.OTHER, 2, 3)], [(0, 0, W), (0, 2, R), (1, 2, W)]
    )
    found = follow(
        trace,
        replace(machine(PMM), chunk_bytes=chunk_bytes),
        Stay(0, "dram", 0, 0, 1),
        Stay(0, "pmm", 1, 1, 3),
        Stay(1, "dram", 2, 2, 3),
        budget=8 * MB,
    )
    fetched, moved, slower = 8 * MS, 8 * MS, 8 * (1.0 - 0.1) * MS
    assert found.step_ns == pytest.approx(fetched + MS + moved + MS + slower)
    assert (found.rescues, found.demand_fetches) == (0, 0)


@pytest.mark.parametrize(
    ("overlap", "time_ms"),
    # 1 ms of the 10 moves the operands' 10 MB on dram; 4 MB on pmm take 3.6 ms longer than they would there
    [(0.0, 13.6), (0.25, 10 + 3.6 - 9 / 4), (1.0, 10.0)],
)
def test_overlap_hides_a_share_of_the_time_that_does_not_move_operands(overlap: float, time_ms: float) -> None:
    trace = step([10 * MS], [parameter(4 * MB, 1), parameter(6 * MB, 1)], [(0, 0, R), (1, 0, R)])
    hiding = replace(machine(PMM), compute=Compute(overlap=overlap))
    stays = (Stay(0, "pmm", 0, 0, 1), Stay(1, "dram", 0, 0, 1))
    assert follow(trace, hiding, *stays).step_ns == pytest.approx(time_ms * MS, abs=1)


def test_full_overlap_is_the_roofline() -> None:
    trace = step([3 * MS], [parameter(4 * MB, 1), parameter(20 * MB, 1)], [(0, 0, R), (1, 0, R)])
    roofline = replace(machine(PMM), compute=Compute(overlap=1.0))
    stays = (Stay(0, "pmm", 0, 0, 1), Stay(1, "dram", 0, 0, 1))
    assert follow(trace, roofline, *stays).step_ns == max(3, 4 + 2) * MS


def test_a_storage_can_be_born_in_place() -> None:
    blocks = [Storage(nbytes, StorageKind.ACTIVATION, 0, 2) for nbytes in (3 * MB, MB)]
    trace = step([MS, MS], blocks, [(0, 0, W), (0, 1, R), (1, 0, W), (1, 1, R)])
    stays = (Stay(0, "dram", 0, 0, 2), Stay(1, "pmm", 0, 0, 2))
    plan = Plan("by hand", PlanStatus.FEASIBLE, trace.signature(), 0, trace.step_ns, 0, 0, stays)
    assert rows_of(lower(plan, trace, machine(PMM)), machine(PMM)) == ((), (Begin(1, "pmm"),))
    found = follow(trace, machine(PMM), *stays, budget=3 * MB)
    assert found.step_ns == 2 * MS + 1.9 * MS + 0.9 * MS
    assert (found.tiers["dram"].peak_bytes, found.tiers["pmm"].peak_bytes) == (3 * MB, MB)


def test_one_of_two_that_are_idle_moves_alone() -> None:
    file = Tier("file", InPlace.NOTHING)
    uses = [(number, tick, mode) for number in (0, 1) for tick, mode in ((0, W), (3, R))]
    trace = step([MS, 20 * MS, MS, MS], [parameter(4 * MB, 4), parameter(4 * MB, 4)], uses)
    stays = (
        Stay(0, "dram", 0, 0, 4),
        Stay(1, "dram", 3, 3, 6),  # comes between ticks 2 and 3
        Stay(1, "file", 1, 2, 3),
    )
    found = follow(trace, machine(file), *stays, budget=8 * MB)
    assert found.moved_bytes == {"dram->file": 4 * MB, "file->dram": 4 * MB}
    assert found.stalls[SpanKind.STALL_LATE] == 4 * MS
    assert found.step_ns == 27 * MS


def test_a_read_goes_on_in_place_until_the_copy_is_due() -> None:
    """Copied during ticks 1 and 2, which it outlasts; dropped on the slow tier at 3, back there during tick 4."""
    trace = step([MS, MS, MS, MS, 20 * MS], [parameter(4 * MB, 5)], [(0, 2, R), (0, 3, R)])
    stays = (Stay(0, "dram", 1, 3, 5), Stay(0, "pmm", 4, 5, 8))
    found = follow(trace, machine(PMM), *stays)
    assert found.slower_ns == 4 * 0.9 * MS  # tick 2 in place, beside the copy
    assert found.stalls[SpanKind.STALL_LATE] == pytest.approx(0)  # 1 ms of tick 1, 4.6 of tick 2
    slower = replace(machine(PMM), links=(Link("pmm", "dram", 5 * 10**8), Link("dram", "pmm", 10**9)))
    found = follow(trace, slower, *stays)
    assert found.stalls[SpanKind.STALL_LATE] == pytest.approx((8 - 1 - 4.6) * MS)  # tick 3 counts on the copy


@pytest.mark.parametrize(("chunk_bytes", "wait_ms"), [(None, 8.0), (MB, 5.0), (2 * MB, 6.0)])
def test_chunks_let_a_fetch_follow_an_eviction_into_its_room(chunk_bytes: int | None, wait_ms: float) -> None:
    """Two parameters of 4 MB take turns in 4 MB: 4 ms out, 4 ms in, the first chunk apart at the same time."""
    file = Tier("file", InPlace.NOTHING)
    trace = step([MS, MS], [parameter(4 * MB, 2)] * 2, [(0, 0, W), (1, 1, W)])
    where = replace(machine(file), chunk_bytes=chunk_bytes).with_budget(4 * MB)
    assert simulate_policy("lru", trace, where).step_ns == 2 * (1 + wait_ms) * MS


def test_what_lies_two_links_away_comes_over_both() -> None:
    host, file = Tier("host", InPlace.NOTHING, 4 * MB), Tier("file", InPlace.NOTHING)
    pairs = [("dram", "host"), ("host", "dram"), ("host", "file"), ("file", "host")]
    chain = machine(host, file, links=[Link(*pair, 10**9) for pair in pairs])
    trace = step([MS] * 3, [parameter(4 * MB, 3)] * 3, [(number, number, R) for number in range(3)])
    found = simulate_policy("lru-next-use", trace, chain.with_budget(4 * MB))
    # Room for one on dram and one on the host, so in a round at least one comes all the way.
    assert found.moved_bytes["file->host"] >= 4 * MB
    assert found.step_ns >= 3 * MS + 4 * (3 + 1) * MS


def test_contents_are_never_lost() -> None:
    """A drop of the only replica is not carried out; where copies are exclusive it writes."""
    file = Tier("file", InPlace.NOTHING)
    trace = step([MS] * 3, [parameter(4 * MB, 3)], [(0, 0, R), (0, 2, R)])
    drop = Command(Verb.DROP, 0, "dram", None, 1, 1)
    schedule = schedule_of([drop], machine(file), [Begin(0, "dram")])
    assert simulate(schedule, trace, machine(file)).moved_bytes == {}
    moved = simulate(schedule, trace, replace(machine(file), exclusive=True)).moved_bytes
    assert moved == {"dram->file": 4 * MB, "file->dram": 4 * MB}


FILE = Tier("file", InPlace.NOTHING)


def all_ways(chunk_bytes: int | None = None, **rates: int) -> Machine:
    """dram, pmm and a file, with links of 1 GB/s, or of the rates that are given as ``dram_pmm``."""
    names = ("dram", "pmm", "file")
    pairs = [(source, target) for source in names for target in names if source != target]
    links = [Link(*pair, rates.get("_".join(pair), 10**9)) for pair in pairs]
    return replace(machine(PMM, FILE, links=links), chunk_bytes=chunk_bytes)


def leaves(number: int, source: str, target: str, at: int) -> tuple[Command, Command]:
    return Command(Verb.EVICT, number, source, target, at, at), Command(Verb.DROP, number, source, target, at, at)


def test_what_leaves_a_tier_is_used_there_and_stays_if_it_is_written_meanwhile() -> None:
    trace = step([MS] * 3, [parameter(4 * MB, 3)], [(0, 0, W), (0, 1, R)])
    schedule = schedule_of(leaves(0, "pmm", "file", 1), all_ways(), [Begin(0, "pmm")])
    found = simulate(schedule, trace, all_ways())
    assert found.slower_ns == pytest.approx(4 * (1.9 + 0.9) * MS)  # tick 1 takes 4.6 ms, the copy 4
    assert found.step_ns == 3 * MS + found.slower_ns
    assert found.moved_bytes == {"pmm->file": 4 * MB}
    assert found.hits == found.n_uses == 2


@pytest.mark.parametrize(("times_ms", "stays"), [((1, 10, 1), True), ((1, 1, 10), False)])
def test_what_is_written_after_the_operation_that_uses_it_leaves(times_ms: tuple[int, ...], stays: bool) -> None:
    trace = step([time * MS for time in times_ms], [parameter(4 * MB, 3)], [(0, 0, W), (0, 1, R)])
    schedule = schedule_of(leaves(0, "dram", "file", 1), machine(FILE), [Begin(0, "dram")])
    found = simulate(schedule, trace, machine(FILE))
    assert found.demand_fetches == (0 if stays else 1)
    assert found.step_ns == 12 * MS + (0 if stays else 4 * MS)


def test_what_was_half_gone_when_its_fetch_came_is_waited_for_when_that_is_due() -> None:
    """4 MB leave from 1 ms to 5, and come back until 9. Tick 3, at 7 ms, counts on them."""
    trace = step([MS, MS, 5 * MS, MS], [parameter(4 * MB, 4)], [(0, 0, W), (0, 3, R)])
    commands = [*leaves(0, "dram", "pmm", 1), Command(Verb.FETCH, 0, "pmm", "dram", 2, 3)]
    where = all_ways(chunk_bytes=MB)
    found = simulate(schedule_of(commands, where, [Begin(0, "dram")]), trace, where)
    assert found.stall_ns.tolist() == [0, 0, 0, 2 * MS]
    assert (found.stalls[SpanKind.STALL_LATE], found.slower_ns) == (2 * MS, 0)


def test_what_is_half_gone_when_its_successor_is_born_counts_once() -> None:
    """4 MB move to pmm in tick 1, and on from there. When the next are born, 2 MB have gone and 1 MB is under way."""
    trace = step([MS, MS, MS, 3 * MS // 2], [Storage(4 * MB, StorageKind.OTHER, 0, 5)], [(0, 0, W)])
    commands = [*leaves(0, "dram", "pmm", 1), *leaves(0, "pmm", "file", 2)]
    where = all_ways(chunk_bytes=MB, dram_pmm=4 * 10**9)
    schedule = schedule_of(commands, where)
    tiers = Simulator(trace, where).run(schedule, checks_state=True).tiers
    assert {name: use.peak_bytes for name, use in tiers.items()} == {"dram": 4 * MB, "pmm": 4 * MB, "file": 3 * MB}


def test_what_no_tick_uses_stays_in_the_first_tier_under_a_plan_without_commands() -> None:
    trace = step([MS], [parameter(4 * MB, 1), parameter(2 * MB, 1)], [(0, 0, R)])
    where = machine(FILE).with_budget(8 * MB)
    assert simulate(schedule_of([], where), trace, where).tiers["dram"].peak_bytes == 6 * MB
    assert simulate_policy("demand", trace, where).tiers["dram"].peak_bytes == 4 * MB
