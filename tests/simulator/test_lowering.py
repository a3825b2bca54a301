"""Lowered plans: a replay of the commands holds at every tick what the stays say, and the oracle says the same."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide._planning import lower as lower_columns
from ebbtide.errors import InfeasibleBudgetError, PlanError
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import arena_pages, live_bytes, needed_bytes, peak
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.trace import Storage, StorageKind, Trace
from ebbtide.planners import PLANNERS
from ebbtide.simulator.lowering import lower, native_storages
from tests.helpers.make_ir import MACHINE, R, W, plan_of, planned, trace_of
from tests.helpers.make_steps import machines, page_traces
from tests.helpers.schedules import Begin, Command, lowered, rows_of


@settings(max_examples=200, deadline=None)
@given(planned(longest_life=1))
def test_a_replay_holds_what_the_stays_say(case: tuple[Trace, Plan]) -> None:
    trace, plan = case
    n_ticks = len(trace.ticks)
    at_tick = defaultdict[int, list[Command]](list)
    for command in rows_of(lower(plan, trace, MACHINE), MACHINE)[0]:
        at_tick[command.at].append(command)
    expected = [defaultdict[int, set[str]](set) for _ in range(n_ticks)]
    for stay in plan.stays:
        for tick in range(stay.start, stay.stop):
            expected[tick % n_ticks][stay.storage].add(stay.tier)

    held = {number: set(tiers) for number, tiers in expected[-1].items()}
    for tick in [*range(n_ticks)] * 2:
        for number, storage in enumerate(trace.storages):
            if not storage.persistent:
                if storage.death % n_ticks == tick:
                    held[number] = set()
                if storage.birth == tick:
                    held[number] = {"dram"}
        for command in at_tick[tick]:
            tiers = held[command.storage]
            assert command.source in tiers
            if command.verb is Verb.DROP:
                tiers.remove(command.source)
            else:
                assert command.target not in tiers
                assert command.target is not None
                tiers.add(command.target)
        assert {number: tiers for number, tiers in held.items() if tiers} == expected[tick]


@settings(max_examples=300, deadline=None)
@given(planned(longest_life=3))
def test_native_code_lowers_as_the_oracle_does(case: tuple[Trace, Plan]) -> None:
    trace, plan = case
    assert rows_of(lower(plan, trace, MACHINE), MACHINE) == lowered(plan, trace, MACHINE)


@settings(max_examples=60, deadline=None)
@given(page_traces(tenants=True), st.sampled_from(sorted(PLANNERS)), st.floats(0, 1), st.data())
def test_native_code_lowers_planners_plans_as_the_oracle_does(
    trace: Trace, name: str, share: float, data: st.DataObject
) -> None:
    least, most = (peak(count(trace, arena_pages)) for count in (needed_bytes, live_bytes))
    machine = data.draw(machines(3 * int(trace.storages.nbytes.sum()) + 2**16))
    try:
        plan = PLANNERS[name](trace, machine, max(least + int(share * (most - least)), 1))
    except (InfeasibleBudgetError, PlanError):
        return
    assert rows_of(lower(plan, trace, machine), machine) == lowered(plan, trace, machine)


def test_a_plan_by_hand() -> None:
    weight = Storage(8, StorageKind.PARAMETER, 0, 10, persistent=True)
    other = Storage(4, StorageKind.PARAMETER, 0, 10, persistent=True)
    trace = trace_of(10, [weight, other], [(0, 1, W), (0, 8, W), (1, 3, R), (1, 8, R)])
    stays = [
        Stay(0, "dram", 6, 8, 14),  # 6 .. 3 of the next step
        Stay(0, "file", 2, 4, 8),
        Stay(1, "dram", 7, 8, 15),
        Stay(1, "cxl", 2, 3, 8),
    ]
    schedule = lower(plan_of(trace, stays), trace, MACHINE)
    assert rows_of(schedule, MACHINE) == (
        (
            Command(Verb.EVICT, 1, "dram", "cxl", 2, 3),  # due first; its use at 3 comes before its drop
            Command(Verb.EVICT, 0, "dram", "file", 2, 4, leaves=True),
            Command(Verb.DROP, 0, "dram", "file", 4, 4),
            Command(Verb.DROP, 1, "dram", "cxl", 5, 5),
            Command(Verb.FETCH, 0, "file", "dram", 6, 8, earliest=4),
            Command(Verb.FETCH, 1, "cxl", "dram", 7, 8, earliest=5),
            Command(Verb.DROP, 0, "file", None, 8, 8),
            Command(Verb.DROP, 1, "cxl", None, 8, 8),
        ),
        (),
    )


def test_what_follows_an_eviction_at_the_end_of_a_step_is_in_the_next() -> None:
    """It keeps its pages over the step's end, since the arena knows no command of the next step."""
    weight = Storage(8, StorageKind.PARAMETER, 0, 10, persistent=True)
    trace = trace_of(10, [weight], [(0, 5, W)])
    stays = [Stay(0, "dram", 3, 5, 10), Stay(0, "file", 8, 10, 15)]
    commands, begins = rows_of(lower(plan_of(trace, stays), trace, MACHINE), MACHINE)
    assert commands[0] == Command(Verb.DROP, 0, "dram", "file", 0, 0)
    assert commands[-1] == Command(Verb.EVICT, 0, "dram", "file", 8, 0)
    assert begins == (Begin(0, "file"),)


def test_nothing_to_move_is_no_command() -> None:
    weight = Storage(8, StorageKind.PARAMETER, 0, 10, persistent=True)
    block = Storage(8, StorageKind.ACTIVATION, 9, 12)
    trace = trace_of(10, [weight, block], [])
    stays = [Stay(0, "dram", 0, 0, 5), Stay(0, "dram", 5, 5, 10), Stay(1, "dram", 9, 9, 12)]
    assert len(lower(plan_of(trace, stays), trace, MACHINE)) == 0


def test_stays_that_are_none_are_refused() -> None:
    trace = trace_of(4, [Storage(8, StorageKind.PARAMETER, 0, 4, persistent=True)], [(0, 1, W)])

    def lower_rows(*rows: tuple[int, int, int, int, int]) -> None:
        columns = tuple(np.array(rows, dtype=np.int64).T)
        lower_columns(native_storages(trace), n_tiers=2, links=[(0, 1), (1, 0)], stays=columns)  # type: ignore[arg-type]

    lower_rows((0, 1, 0, 0, 4))
    for row in ((1, 1, 0, 0, 4), (0, 2, 0, 0, 4), (0, 1, 2, 1, 4), (0, 1, 0, 4, 4)):
        with pytest.raises(ValueError, match="a stay is of no storage or tier, or of no time"):
            lower_rows(row)
