"""The checker accepts plans that keep every promise, rejects each way of breaking one, and agrees with a stupid one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, assume, find, given, settings
from hypothesis import strategies as st

from ebbtide.errors import PlanError
from ebbtide.ir.check import Rule, check_plan, require_valid
from ebbtide.ir.occupancy import occupancy, pages_of, peak
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.trace import Storage, StorageKind, Trace
from tests.helpers.make_ir import MACHINE, PACKING, TIERS, R, W, plan_of, planned, shrunk, trace_of


def keeps_promises(plan: Plan, trace: Trace) -> bool:
    """The rules again, storage by storage and tick by tick, without capacities."""
    n_ticks = len(trace.ticks)
    for stay in plan.stays:
        if stay.storage >= len(trace.storages) or stay.tier not in TIERS:
            return False
        storage = trace.storages[stay.storage]
        first, last = (0, stay.start + n_ticks) if storage.persistent else (storage.birth, storage.death)
        if stay.start < first or stay.stop > last:
            return False
        if storage.persistent and stay.start >= n_ticks:
            return False
    return all(
        _storage_keeps_promises([stay for stay in plan.stays if stay.storage == number], trace, number)
        for number in range(len(trace.storages))
    )


def _storage_keeps_promises(stays: list[Stay], trace: Trace, number: int) -> bool:
    storage, n_ticks = trace.storages[number], len(trace.ticks)
    rows = trace.accesses.of(number)
    modes = dict(zip(trace.accesses.tick[rows].tolist(), trace.accesses.mode[rows].tolist(), strict=True))
    steps = range(-2, 3) if storage.persistent else range(1)
    room, valid = Counter[tuple[str, int]](), set[tuple[str, int]]()
    for step in steps:
        for stay in stays:
            room.update((stay.tier, tick + step * n_ticks) for tick in range(stay.start, stay.stop))
            valid.update((stay.tier, tick + step * n_ticks) for tick in range(stay.valid_from, stay.stop))
    for tick in range(storage.birth, storage.death):
        mode = (R | W) if storage.scratch else modes.get(tick, 0)
        rooms, replicas = [room[tier, tick] for tier in TIERS], [tier for tier in TIERS if (tier, tick) in valid]
        if max(rooms) > 1 or not replicas:
            return False
        if mode & W and (replicas != ["dram"] or sum(rooms) != 1):
            return False
        if mode == R and not {"dram", "cxl"} & set(replicas):
            return False
    births = 0
    for stay in stays:
        if stay.start == stay.valid_from == storage.birth and not storage.persistent:
            births += 1
            if stay.tier != "dram":
                return False
        elif stay.start == stay.valid_from:
            if not any((tier, stay.start - 1) in valid for tier in TIERS):
                return False
        else:
            window = range(stay.start, stay.valid_from)
            if not any(all((tier, at) in valid for at in window) for tier in TIERS if tier != stay.tier):
                return False
    return births <= 1


@settings(max_examples=200, deadline=None)
@given(planned())
def test_plans_that_keep_every_promise_are_accepted(case: tuple[Trace, Plan]) -> None:
    trace, plan = case
    assert keeps_promises(plan, trace)
    assert [str(violation) for violation in check_plan(plan, trace, MACHINE)] == []
    require_valid(plan, trace, MACHINE)


@settings(max_examples=400, deadline=None)
@given(planned(), st.data())
@pytest.mark.slow
def test_plans_changed_at_random_are_judged_as_by_the_stupid_checker(
    case: tuple[Trace, Plan], data: st.DataObject
) -> None:
    trace, plan = case
    assume(plan.stays)
    stays = list(plan.stays)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(stays) - 1))
        name = data.draw(st.sampled_from(["start", "valid_from", "stop", "tier", "storage", "", "twice"]))
        if name == "":
            stays[at : at + 1] = []
            assume(stays)
        elif name == "twice":
            stays.append(stays[at])
        elif name == "tier":
            stays[at] = replace(stays[at], tier=data.draw(st.sampled_from([*TIERS, "moon"])))
        else:
            value = getattr(stays[at], name) + data.draw(st.integers(-2, 2))
            try:
                stays[at] = replace(stays[at], **{name: value})
            except ValueError:
                assume(False)
    changed = plan_of(trace, stays)
    assert (check_plan(changed, trace, MACHINE) == ()) == keeps_promises(changed, trace)


@settings(max_examples=60, deadline=None)
@given(planned(), st.integers(1, 3))
def test_a_capacity_holds_to_the_byte(case: tuple[Trace, Plan], page: int) -> None:
    trace, plan = case
    pages = pages_of(page)
    peak = int(occupancy(trace, plan.stays, TIERS, pages)["dram"].max())
    assert check_plan(plan, trace, MACHINE.with_budget(peak), pages) == ()
    if peak:
        found = check_plan(plan, trace, MACHINE.with_budget(peak - 1), pages)
        assert [violation.rule for violation in found] == [Rule.CAPACITY]
        assert "1 bytes more" in str(found[0])


# A weight of 8 bytes, read at ticks 1 and 8 and written at 9; a block of 4 born at tick 2, read at 7 and freed after.
WEIGHT = Storage(8, StorageKind.PARAMETER, 0, 10, persistent=True)
BLOCK = Storage(4, StorageKind.ACTIVATION, 2, 8, allocation=0)
TRACE = trace_of(10, [WEIGHT, BLOCK], [(0, 1, R), (0, 8, R), (0, 9, R | W), (1, 2, W), (1, 7, R)])

# The weight leaves after tick 1 and returns before 8; its replica on file ends where it is written. The block goes to
# the file in [3, 5) and is back at 7. Stays: 0, 1 weight on dram; 2 on file; 3, 5 block on dram; 4 on file.
GOOD = (
    Stay(0, "dram", 6, 8, 14),
    Stay(0, "file", 2, 4, 9),
    Stay(1, "dram", 2, 2, 5),
    Stay(1, "file", 3, 5, 8),
    Stay(1, "dram", 6, 7, 8),
)


def broken(
    *changes: tuple[int, dict[str, int | str]], without: int | None = None, extra: tuple[Stay, ...] = ()
) -> set[Rule]:
    stays = list(GOOD)
    for at, change in changes:
        stays[at] = replace(stays[at], **change)  # type: ignore[arg-type]
    kept = [stay for at, stay in enumerate(stays) if at != without]
    return {violation.rule for violation in check_plan(plan_of(TRACE, [*kept, *extra]), TRACE, MACHINE)}


def test_the_plan_by_hand_is_accepted() -> None:
    assert broken() == set()
    assert broken((4, {"start": 5, "valid_from": 6})) == set()  # a fetch as soon as the file is valid
    assert broken((4, {"start": 7, "valid_from": 7})) == set()  # a fetch for which compute waits
    assert broken((1, {"start": 2, "valid_from": 2}), (0, {"stop": 12})) == set()  # so for an eviction


@pytest.mark.parametrize(
    "has_it",
    [
        lambda trace, stay, others: stay.stop > len(trace.ticks),
        lambda trace, stay, others: stay.valid_from > stay.start,
        lambda trace, stay, others: stay.tier == "dram" and stay.start > 0 and stay.start == stay.valid_from
        and any(other.tier == "file" and other.storage == stay.storage for other in others),
        lambda trace, stay, others: stay.tier != "dram" and any(
            other.storage == stay.storage and other.tier == "dram"
            and max(other.valid_from, stay.valid_from) + 1 < min(other.stop, stay.stop) for other in others
        ),
    ],
    ids=["past the end", "copy in flight", "copy between ticks", "replica"],
)  # fmt: skip
def test_the_random_plans_have_it(has_it: Callable[[Trace, Stay, tuple[Stay, ...]], bool]) -> None:
    find(
        planned(),
        lambda case: any(has_it(case[0], stay, case[1].stays) for stay in case[1].stays),
        settings=settings(max_examples=500, phases=[Phase.generate]),
    )


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ((0, {"storage": 7}), Rule.BOUNDS),
        ((0, {"tier": "moon"}), Rule.BOUNDS),
        ((0, {"start": 11, "valid_from": 12}), Rule.BOUNDS),
        ((0, {"stop": 17}), Rule.BOUNDS),
        ((2, {"start": 1}), Rule.BOUNDS),
        ((4, {"stop": 9}), Rule.BOUNDS),
        ((4, {"start": 4}), Rule.ROOM),  # the block's old room on dram lasts to 5
        ((3, {"stop": 6}), Rule.SOURCE),  # the fetch still reads until 7
        ((1, {"valid_from": 5}), Rule.WHOLE),  # dram is gone at 4, the file not yet valid
        ((4, {"start": 4, "valid_from": 6}), Rule.SOURCE),  # the file is not valid before 5
        ((0, {"valid_from": 9}), Rule.ACCESS),  # too late for the read at 8
        ((0, {"tier": "cxl"}), Rule.ACCESS),  # may be read there, but not written
        ((1, {"stop": 10}), Rule.WRITE),  # a stale replica
        ((2, {"tier": "cxl"}), Rule.SOURCE),  # born where nothing can be written
    ],
)
def test_each_broken_promise_is_found(change: tuple[int, dict[str, int | str]], rule: Rule) -> None:
    assert rule in broken(change)


def test_more_broken_promises_are_found() -> None:
    assert Rule.WHOLE in broken(without=0)
    assert Rule.ACCESS in broken(without=4)
    assert Rule.SOURCE in broken(without=1)  # a weight fetched from nowhere
    assert broken(extra=(Stay(1, "cxl", 2, 2, 3),)) >= {Rule.SOURCE}  # born twice
    assert broken(extra=(Stay(0, "cxl", 8, 10, 12),)) == {Rule.WRITE}  # a copy in flight while it is written
    assert broken(extra=(Stay(0, "dram", 5, 6, 7),)) >= {Rule.ROOM}


def test_a_tier_that_packs_takes_only_what_shrinks_and_counts_that() -> None:
    plan = plan_of(TRACE, [replace(stay, tier="cxl") if stay.tier == "file" else stay for stay in GOOD])

    def broken_on(packed: int | None, capacity: int) -> set[Rule]:
        fast, slow, file = PACKING.tiers
        machine = replace(PACKING, tiers=(fast, replace(slow, capacity_bytes=capacity), file))
        return {violation.rule for violation in check_plan(plan, shrunk(TRACE, [packed]), machine)}

    most = peak(occupancy(shrunk(TRACE, [3]), plan.stays, ["cxl"], packing={"cxl"})["cxl"])
    assert most == 6  # both storages, of 8 and 4 bytes
    assert broken_on(3, most) == set()
    assert broken_on(3, most - 1) == {Rule.CAPACITY}
    assert broken_on(0, 0) == set()
    assert broken_on(None, 10**6) == {Rule.PACKED}


def test_a_copy_needs_a_link() -> None:
    links = tuple(link for link in MACHINE.links if link.name != "file->dram")
    found = check_plan(plan_of(TRACE, GOOD), TRACE, replace(MACHINE, links=links))
    assert {violation.rule for violation in found} == {Rule.SOURCE}
    assert len(found) == 2


def test_a_plan_for_another_step_is_refused() -> None:
    other = trace_of(10, [WEIGHT, replace(BLOCK, nbytes=5)], [])
    found = check_plan(plan_of(TRACE, GOOD), other, MACHINE)
    assert [violation.rule for violation in found] == [Rule.TRACE]
    with pytest.raises(PlanError, match="cannot be carried out: it was made for a step with other storages"):
        require_valid(plan_of(TRACE, GOOD), other, MACHINE)


def test_scratch_may_not_leave_between_its_accesses() -> None:
    scratch = trace_of(10, [WEIGHT, replace(BLOCK, scratch=True)], [(0, 1, R), (0, 8, R), (0, 9, R | W), (1, 2, W)])
    assert {violation.rule for violation in check_plan(plan_of(scratch, GOOD), scratch, MACHINE)} == {
        Rule.ACCESS,
        Rule.WRITE,
    }
    still = (*GOOD[:2], Stay(1, "dram", 2, 2, 8))
    assert check_plan(plan_of(scratch, still), scratch, MACHINE) == ()


def test_the_error_names_what_is_broken() -> None:
    plan = plan_of(TRACE, [replace(stay, stop=10) if at == 1 else stay for at, stay in enumerate(GOOD)])
    with pytest.raises(PlanError, match=r"storage 0, tick 9: it is written while"):
        require_valid(plan, TRACE, MACHINE)
