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
    expected = [defaultdict[tuple[int, int], set[str]](set) for _ in range(n_ticks)]
    for stay in plan.stays:
        for tick in range(stay.start, stay.stop):
            for byte in range(stay.low, stay.high):
                expected[tick % n_ticks][stay.storage, byte].add(stay.tier)

    held = {where: set(tiers) for where, tiers in expected[-1].items()}
    for tick in [*range(n_ticks)] * 2:
        for number, storage in enumerate(trace.storages):
            if not storage.persistent:
                bytes_of = [(number, byte) for byte in range(storage.nbytes)]
                if storage.death % n_ticks == tick:
                    held.update((where, set()) for where in bytes_of)
                if storage.birth == tick:
                    held.update((where, {"dram"}) for where in bytes_of)
        for command in at_tick[tick]:
            for byte in range(command.low, command.high):
                tiers = held[command.storage, byte]
                assert command.source in tiers
                if command.target is None:
                    tiers.remove(command.source)
                else:
                    assert command.target not in tiers
                    tiers.add(command.target)
        assert {where: tiers for where, tiers in held.items() if tiers} == expected[tick]


def test_a_plan_by_hand() -> None:
    weight = Storage(8, StorageKind.PARAMETER, 0, 10, persistent=True)
    trace = trace_of(10, [weight], [(0, 1, W), (0, 8, W)])
    stays = [
        Stay(0, 0, 8, "dram", 6, 8, 14),  # 6 .. 3 of the next step
        Stay(0, 0, 4, "file", 2, 4, 8),
        Stay(0, 4, 8, "cxl", 2, 3, 8),
    ]
    assert lower(plan_of(trace, stays), trace, MACHINE).commands == (
        Command(Verb.EVICT, 0, 4, 8, "dram", "cxl", Clock(2), Clock(3)),  # due first
        Command(Verb.EVICT, 0, 0, 4, "dram", "file", Clock(2), Clock(4)),
        Command(Verb.DROP, 0, 0, 8, "dram", None, Clock(4), Clock(4)),
        Command(Verb.FETCH, 0, 0, 4, "file", "dram", Clock(6), Clock(8)),
        Command(Verb.FETCH, 0, 4, 8, "cxl", "dram", Clock(6), Clock(8)),
        Command(Verb.DROP, 0, 0, 4, "file", None, Clock(8), Clock(8)),
        Command(Verb.DROP, 0, 4, 8, "cxl", None, Clock(8), Clock(8)),
    )


def test_nothing_to_move_is_no_command() -> None:
    weight = Storage(8, StorageKind.PARAMETER, 0, 10, persistent=True)
    block = Storage(8, StorageKind.ACTIVATION, 9, 12)
    trace = trace_of(10, [weight, block], [])
    stays = [
        Stay(0, 0, 8, "dram", 0, 0, 5),
        Stay(0, 0, 3, "dram", 5, 5, 10),
        Stay(0, 3, 8, "dram", 5, 5, 10),
        Stay(1, 0, 8, "dram", 9, 9, 12),
    ]
    assert lower(plan_of(trace, stays), trace, MACHINE).commands == ()


def test_schedules_check_themselves() -> None:
    drop = Command(Verb.DROP, 0, 0, 4, "dram", None, Clock(4), Clock(4))
    with pytest.raises(ValueError, match="sorted"):
        Schedule("", 10, (drop, Command(Verb.DROP, 0, 0, 4, "dram", None, Clock(3, 7), Clock(4))))
    with pytest.raises(ValueError, match="last tick"):
        Schedule("", 4, (drop,))
    with pytest.raises(ValueError, match="a drop has none"):
        Command(Verb.DROP, 0, 0, 4, "dram", "file", Clock(4), Clock(4))
    assert Clock(3, 2) < Clock(3, 5) < Clock(4)
