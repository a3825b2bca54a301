"""The virtual clock against times worked out by hand, and what must hold in every simulation.

Latencies, shared ports, contention and chunks are those of the clock in ``test_simulate_oracle.py``.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.ir.machine import Machine
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import needed_bytes, pages_of, peak
from ebbtide.ir.schedule import no_commands
from ebbtide.ir.timeline import COMPUTE_LANE, SpanKind
from ebbtide.ir.trace import Trace
from ebbtide.simulator import Outcome, simulate
from tests.helpers.make_steps import PAGE, R, W, disk, page_traces, parameter, step
from tests.helpers.schedules import Command, schedule_of

MS = 1_000_000
MB = 1_000_000  # at 10**9 bytes a second, one takes one ms


def evict(number: int, at: int, due: int) -> Command:
    return Command(Verb.EVICT, number, "dram", "file", at, due)


def drop(number: int, at: int, tier: str = "dram") -> Command:
    return Command(Verb.DROP, number, tier, None, at, at)


def fetch(number: int, at: int, due: int) -> Command:
    return Command(Verb.FETCH, number, "file", "dram", at, due)


def away(trace: Trace, number: int, evict_at: int, fetch_at: int, due: int) -> tuple[Command, ...]:
    """Out at one tick, back from another."""
    return (
        evict(number, evict_at, evict_at),
        drop(number, evict_at),
        fetch(number, fetch_at, due),
        drop(number, due, "file"),
    )


def run(trace: Trace, machine: Machine, budget: int, *commands: Command) -> Outcome:
    return simulate(schedule_of(commands, machine), trace, machine.with_budget(budget), record=True)


def reads(nbytes: int, n: int, times_ms: list[int]) -> Trace:
    """``n`` parameters that are read and written in tick 0, and read in the last."""
    last = len(times_ms) - 1
    uses = [(number, tick, R | W) for number in range(n) for tick in (0, last)]
    return step([MS * time for time in times_ms], [parameter(nbytes, last + 1)] * n, uses)


def test_one_copy_that_is_hidden_costs_nothing() -> None:
    trace = reads(2 * MB, 1, [1, 10, 1])  # out 2 ms and back 2 ms, in a tick of 10
    found = run(trace, disk(), 10 * MB, *away(trace, 0, 1, 2, 2))
    assert found.step_ns == 14 * MS  # the fetch begins with tick 2, which needs it
    assert found.stalls[SpanKind.STALL_LATE] == 2 * MS
    assert found.moved_bytes == {"dram->file": 2 * MB, "file->dram": 2 * MB}
    early = reads(2 * MB, 1, [1, 5, 5, 1])
    assert run(early, disk(), 10 * MB, *away(early, 0, 1, 2, 3)).step_ns == 12 * MS


def test_two_copies_queue() -> None:
    trace = reads(2 * MB, 2, [1, 10, 1, 1])
    both = [*away(trace, 0, 1, 2, 3), *away(trace, 1, 1, 2, 3)]
    found = run(trace, disk(), 10 * MB, *both)
    # Two reads of 2 ms begin with tick 2, which takes 1 ms; tick 3 waits for the other 3 ms.
    assert found.stalls[SpanKind.STALL_LATE] == 3 * MS
    assert found.step_ns == 13 * MS + 3 * MS


def test_a_fetch_waits_for_room_until_the_eviction_is_done() -> None:
    # Two parameters of 4 MB in 5 MB: one leaves while the other waits to come in.
    trace = step([MS, MS], [parameter(4 * MB, 2)] * 2, [(0, 0, W), (1, 1, W)])
    commands = [
        *(evict(0, 1, 1), drop(0, 1), fetch(1, 1, 1), drop(1, 1, "file")),
        *(evict(1, 0, 0), drop(1, 0), fetch(0, 0, 0), drop(0, 0, "file")),
    ]
    found = run(trace, disk(), 5 * MB, *commands)
    assert found.step_ns == (1 + 4 + 4) * 2 * MS
    assert found.rescues == 0


def test_without_commands_the_safety_net_does_all() -> None:
    trace = step([MS, MS], [parameter(4 * MB, 2)] * 2, [(0, 0, W), (1, 1, W)])
    found = run(trace, disk(), 5 * MB)
    assert found.step_ns == (1 + 4 + 4) * 2 * MS
    assert found.rescues == 4
    assert found.stalls[SpanKind.STALL_DEMAND] == 16 * MS


def test_copies_end_however_late_on_the_clock() -> None:
    trace = step([MS, MS], [parameter(4 * MB, 2)] * 2, [(0, 0, W), (1, 1, W)])
    found = run(trace, disk(read=29_999_999_999, write=1, latency_ns=7), 5 * MB)
    assert found.step_ns == pytest.approx(2 * 4 * MB * 10**9, rel=0.01)


def test_what_does_not_fit_is_an_error() -> None:
    trace = step([MS], [parameter(4 * MB, 1)] * 2, [(0, 0, W), (1, 0, W)])
    with pytest.raises(ValueError, match=r"op0 \(0 s into the step\) does not fit"):
        run(trace, disk(), 5 * MB)


def test_a_fetch_finds_what_has_not_left_yet() -> None:
    trace = reads(4 * MB, 1, [1, 1, 1, 10, 1])  # out from tick 1 on, 4 ms, but wanted again at tick 2
    found = run(trace, disk(), 10 * MB, *away(trace, 0, 1, 2, 4))
    assert found.step_ns == 14 * MS
    assert found.moved_bytes == {"dram->file": 4 * MB}


@settings(max_examples=100, deadline=None)
@given(page_traces(), st.floats(0, 1))
def test_demand_mode_keeps_the_budget_and_accounts_for_all_time(trace: Trace, share: float) -> None:
    pages = pages_of(PAGE)
    least = max(peak(needed_bytes(trace, pages)), 1)
    budget = least + int(share * trace.storages.nbytes.sum())
    found = simulate(no_commands(), trace, disk(both=15 * 10**8).with_budget(budget), pages, record=True)
    timeline = found.timeline("none")
    assert all(level.nbytes <= budget for level in timeline.levels if level.tier == "dram")
    compute = [span for span in timeline.spans if span.lane == COMPUTE_LANE]
    assert sum(span.stop_ns - span.start_ns for span in compute) == pytest.approx(found.step_ns, abs=len(compute) + 1)
    assert timeline.time_ns(SpanKind.COMPUTE) == pytest.approx(trace.step_ns, abs=len(compute))
    assert timeline.moved_bytes() == found.moved_bytes
    assert sum(found.stalls.values()) == pytest.approx(found.step_ns - trace.step_ns, abs=3)
