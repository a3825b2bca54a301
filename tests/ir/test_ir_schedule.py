"""Lowered plans: a replay of the commands holds at every tick what the stays say."""

from collections import defaultdict

import pytest
from hypothesis import given, settings

from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.schedule import Clock, Command, Schedule, Verb, lower
from ebbtide.ir.trace import Storage, StorageKind, Trace
from tests.helpers.make_ir import MACHINE, W, plan_of, planned, trace_of


@settings(max_examples=200, deadline=None)
@given(planned(longest_life=1))
def test_a_replay_holds_what_the_stays_say(case: tuple[Trace, Plan]) -> None:
    trace, plan = case
    n_ticks = len(trace.ticks)
    schedule = lower(plan, trace, MACHINE)
    at_tick = defaultdict[int, list[Command]](list)
    for command in schedule.commands:
        at_tick[command.at.tick].append(command)
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
            if command.target is None:
                tiers.remove(command.source)
            else:
                assert command.target not in tiers
                tiers.add(command.target)
        assert {number: tiers for number, tiers in held.items() if tiers} == expected[tick]


def test_a_plan_by_hand() -> None:
    weight = Storage(8, StorageKind.PARAMETER, 0, 10, persistent=True)
    trace = trace_of(10, [weight, weight], [(number, tick, W) for number in (0, 1) for tick in (1, 8)])
    stays = [
        *(Stay(number, "dram", 6, 8, 14) for number in (0, 1)),  # 6 .. 3 of the next step
        Stay(0, "file", 2, 4, 8),
        Stay(1, "cxl", 2, 3, 8),
    ]
    assert lower(plan_of(trace, stays), trace, MACHINE).commands == (
        Command(Verb.EVICT, 1, "dram", "cxl", Clock(2), Clock(3)),  # due first
        Command(Verb.EVICT, 0, "dram", "file", Clock(2), Clock(4)),
        Command(Verb.DROP, 0, "dram", None, Clock(4), Clock(4)),
        Command(Verb.DROP, 1, "dram", None, Clock(4), Clock(4)),
        Command(Verb.FETCH, 0, "file", "dram", Clock(6), Clock(8)),
        Command(Verb.FETCH, 1, "cxl", "dram", Clock(6), Clock(8)),
        Command(Verb.DROP, 0, "file", None, Clock(8), Clock(8)),
        Command(Verb.DROP, 1, "cxl", None, Clock(8), Clock(8)),
    )


def test_nothing_to_move_is_no_command() -> None:
    weight = Storage(8, StorageKind.PARAMETER, 0, 10, persistent=True)
    block = Storage(8, StorageKind.ACTIVATION, 9, 12)
    trace = trace_of(10, [weight, block], [])
    stays = [
        Stay(0, "dram", 0, 0, 5),
        Stay(0, "dram", 5, 5, 10),
        Stay(1, "dram", 9, 9, 12),
    ]
    assert lower(plan_of(trace, stays), trace, MACHINE).commands == ()


def test_schedules_check_themselves() -> None:
    drop = Command(Verb.DROP, 0, "dram", None, Clock(4), Clock(4))
    with pytest.raises(ValueError, match="sorted"):
        Schedule("", 10, (drop, Command(Verb.DROP, 0, "dram", None, Clock(3, 7), Clock(4))))
    with pytest.raises(ValueError, match="last tick"):
        Schedule("", 4, (drop,))
    with pytest.raises(ValueError, match="a drop has none"):
        Command(Verb.DROP, 0, "dram", "file", Clock(4), Clock(4))
    assert Clock(3, 2) < Clock(3, 5) < Clock(4)
