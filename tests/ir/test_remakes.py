"""Which storages can be made anew, against contents that are computed; and what becomes of plans that do so."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import PlanError
from ebbtide.ir.base import Origin
from ebbtide.ir.check import Rule, check_plan, require_valid
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import occupancy
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.remakes import remade, remakes_of, split, split_plan, together
from ebbtide.ir.tierplan import to_tierplan
from ebbtide.ir.trace import Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace
from ebbtide.planning.load_schedule import schedule_columns
from ebbtide.simulator import simulate, simulate_plan
from ebbtide.simulator.lowering import lower
from tests.helpers.make_remakes import made_steps, possible_together, step_of
from tests.helpers.make_steps import R, W, disk, parameter

MUL, RELU_, LOSS = "aten::mul", "aten::relu_", "loss"


def activation(birth: int, death: int, nbytes: int = 100, at: int = 0) -> Storage:
    return Storage(nbytes, StorageKind.ACTIVATION, birth, death, allocation=at, maker=birth)


def plain() -> Trace:
    """Storage 1 is made of a parameter at tick 0, changed in place at 1, and used at 2 and at 6, which takes 6 ns."""
    ticks = [Tick(10 * (at + 1), MUL, repeats=at in (0, 1)) for at in range(8)]
    uses = [(0, 0, R), (0, 7, R | W), (1, 0, W), (1, 1, R | W), (1, 2, R), (1, 6, R)]
    return step_of(ticks, [parameter(5_000, 8), activation(0, 7)], uses)


def test_what_repeats_is_made_anew_by_the_operators_that_made_it() -> None:
    found = remakes_of(plain())
    assert (found.storage.tolist(), found.gone.tolist(), found.until.tolist()) == ([1], [3], [6])
    assert (found.time_ns.tolist(), found.scratch_bytes.tolist(), found.inputs) == ([10 + 20], [0], ((0,),))


def changed(trace: Trace, storages: Sequence[Storage] = (), uses: Sequence[tuple[int, int, int]] = ()) -> Trace:
    """The step with more uses; a use of the same storage and tick takes the other's place."""
    known = {(use.storage, use.tick): use.mode for use in trace.accesses}
    known |= {(storage, tick): mode for storage, tick, mode in uses}
    rows = sorted((storage, tick, mode) for (storage, tick), mode in known.items())
    accesses = Accesses(*np.array(rows, dtype=np.int64).T)
    return replace(trace, storages=Storages.from_rows([*trace.storages, *storages]), accesses=accesses)


def with_tick(trace: Trace, at: int, **changes: object) -> Trace:
    rows = [replace(row, **changes) if place == at else row for place, row in enumerate(trace.ticks)]  # type: ignore[arg-type]
    return replace(trace, ticks=Ticks.from_rows(rows))


@pytest.mark.parametrize(
    "trace",
    [
        with_tick(plain(), 0, repeats=False),
        with_tick(plain(), 1, repeats=False),  # changes it
        with_tick(plain(), 0, operator=RELU_),  # what an operator in place gives birth to is none of its results
        changed(plain(), uses=[(1, 1, W)]),  # may leave a part as it was, or not
        changed(plain(), uses=[(0, 4, R | W)]),  # its input is another one by then
        changed(plain(), uses=[(0, 6, R | W)]),
        changed(plain(), [parameter(8_000, 8)], [(2, 1, R), (2, 4, R | W)]),  # of tick 1
        changed(plain(), [Storage(9_000, StorageKind.OTHER, 0, 8, scratch=True)], [(2, 1, R)]),
        replace(
            plain(), storages=Storages.from_rows([plain().storages[0], replace(plain().storages[1], scratch=True)])
        ),
        replace(plain(), storages=Storages.from_rows([plain().storages[0], replace(plain().storages[1], maker=None)])),
    ],
)
def test_what_cannot_be_made_as_it_was_is_moved(trace: Trace) -> None:
    assert not len(remakes_of(trace))


def test_an_input_that_lives_on_is_one() -> None:
    trace = changed(plain(), [activation(0, 7, at=1)], [(2, 0, W), (2, 1, R)])
    assert remakes_of(trace).inputs == ((0, 2),)


def test_what_an_operator_reads_and_writes_beside_its_result_is_no_input() -> None:
    """Batch norm's running statistics: it runs again without them, so later changes do no harm."""
    trace = changed(plain(), [parameter(8_000, 8)], [(2, 0, R | W), (2, 4, R | W)])
    assert remakes_of(trace).inputs == ((0,),)


def test_an_operator_runs_again_with_all_that_runs_in_it() -> None:
    """Tick 1 is born in tick 0 and has scratch; it ends at tick 3, before which its result is not left."""
    ticks = [Tick(10, MUL, depth=depth, repeats=at == 0) for at, depth in enumerate((0, 1, 1, 0, 0, 0))]
    rows = [activation(0, 6), activation(1, 2, 30), activation(1, 3, 20, 1), activation(2, 3, 60)]
    uses = [(0, 0, W), (0, 5, R), (1, 1, W), (2, 1, W), (2, 2, R), (3, 2, W)]
    found = remakes_of(step_of(ticks, rows, uses))
    assert (found.gone.tolist(), found.until.tolist(), found.time_ns.tolist()) == ([3], [5], [30])
    assert (found.scratch_bytes.tolist(), found.inputs) == ([20 + 60], ((),))


def in_two() -> Trace:
    """Tick 0 makes storage 3 of a parameter and a number. A cast of the number runs in it at 1, its copy at 2, and 3
    is born after them. 4 is made of it, and then it dies; 4 is used at 6."""
    operators = ((MUL, 0), ("aten::_to_copy", 1), ("aten::copy_", 2), (MUL, 0), (LOSS, 0), (LOSS, 0), (LOSS, 0))
    ticks = [Tick(10 * (at + 1), name, depth=depth, repeats=at < 4) for at, (name, depth) in enumerate(operators)]
    number, cast = Storage(8, StorageKind.OTHER, 0, 1, allocation=0), activation(1, 3, 2)
    rows = [parameter(5_000, 7), number, cast, replace(activation(2, 4, 7_000), maker=0), activation(3, 7)]
    of_a_number = [(1, 0, R), (2, 1, W), (2, 2, R | W)]
    uses = [*of_a_number, *((0, at, R) for at in range(3)), (3, 2, W), (3, 3, R), (4, 3, W), (4, 6, R)]
    return step_of(ticks, rows, uses)


def test_what_is_born_after_inner_operators_is_the_outer_ones() -> None:
    """It is made anew by the whole of it; the number, which has gone, is copied into the recipe."""
    found = remakes_of(in_two())
    assert (found.storage.tolist(), found.gone.tolist(), found.until.tolist()) == ([4], [4], [6])
    assert (found.inputs, found.ingredients) == (((0,),), ((3,),))
    assert found.time_ns.tolist() == [10 + 20 + 30 + 40]


@pytest.mark.parametrize("maker", [None, 1, 2])
def test_what_no_operator_or_another_allocated_is_not_made_by_it(maker: int | None) -> None:
    """Tick 2 is an operator in place. Tick 1 is the cast alone, and takes less than the product."""
    rows = [replace(row, maker=maker) if at == 3 else row for at, row in enumerate(in_two().storages)]
    found = remakes_of(replace(in_two(), storages=Storages.from_rows(rows)))
    assert found.time_ns.tolist() == ([20 + 30 + 40] if maker == 1 else [])


def chain() -> Trace:
    """0 is a parameter. 1 is made of it, 2 of 1, and 3 of 2 and 1, which then die. 3 is used at tick 9."""
    ticks = [Tick(10 * (at + 1), MUL, repeats=at < 3) for at in range(10)]
    rows = [parameter(5_000, 10), activation(0, 3, 7_000), activation(1, 3, 30_000), activation(2, 10)]
    uses = [(0, 0, R), (1, 0, W), (1, 1, R), (1, 2, R), (2, 1, W), (2, 2, R), (3, 2, W), (3, 9, R)]
    return step_of(ticks, rows, uses)


def test_what_has_died_is_made_first_and_lies_in_scratch() -> None:
    """1 runs for 2 and once more for 3."""
    found = remakes_of(chain())
    assert (found.storage.tolist(), found.gone.tolist(), found.until.tolist()) == ([3], [3], [9])
    assert (found.inputs, found.ingredients) == (((0,),), ((1, 2),))
    assert found.time_ns.tolist() == [10 + 10 + 20 + 30]
    assert found.scratch_bytes.tolist() == [7_000 + 30_000 + 7_000]


@pytest.mark.parametrize(
    "trace",
    [
        with_tick(chain(), 0, repeats=False),  # what made an ingredient
        changed(chain(), uses=[(0, 5, R | W)]),  # what it was made of
    ],
)
def test_what_has_died_and_cannot_be_made_rules_a_remake_out(trace: Trace) -> None:
    assert not len(remakes_of(trace))


def test_an_ingredient_is_what_it_was_when_it_was_read() -> None:
    """2 changes 1 in place before 3 reads it, and what does not repeat changes it later."""
    ticks = [Tick(10 * (at + 1), RELU_ if at == 1 else MUL, repeats=at < 3) for at in range(10)]
    rows = [parameter(5_000, 10), activation(0, 10, 7_000), activation(2, 10)]
    uses = [(0, 0, R), (1, 0, W), (1, 1, R | W), (1, 2, R), (1, 4, R | W), (2, 2, W), (2, 9, R)]
    found = remakes_of(step_of(ticks, rows, uses))
    at = found.storage.tolist().index(2)
    assert (found.inputs[at], found.ingredients[at], found.time_ns[at]) == ((0,), (1,), 10 + 20 + 30)


def test_a_chain_has_a_most_length() -> None:
    def steps(n: int) -> Trace:
        ticks = [Tick(10, MUL, repeats=at < n) for at in range(n + 3)]
        rows = [activation(at, at + 2) for at in range(n - 1)] + [activation(n - 1, n + 3)]
        uses = [(at, at, W) for at in range(n)] + [(at, at + 1, R) for at in range(n - 1)] + [(n - 1, n + 2, R)]
        return step_of(ticks, rows, uses)

    assert remakes_of(steps(16)).time_ns.tolist() == [160]
    assert not len(remakes_of(steps(17)))
    assert not len(remakes_of(steps(2_000)))  # nor is a stack of that depth needed


@settings(max_examples=300, deadline=None)
@given(made_steps())
def test_contents_are_the_same(trace: Trace) -> None:
    """Contents are the history of what was computed. Run again at the end of the gap, operators make the same.

    They do so at each tick of the gap. An ingredient is never looked at, as if it had died.
    """
    remakes = remakes_of(trace)
    now: dict[int, object] = {
        number: ("before", number) for number in np.flatnonzero(trace.storages.persistent).tolist()
    }
    by_tick: dict[int, list[tuple[int, int]]] = {tick: [] for tick in range(len(trace.ticks))}
    for use in trace.accesses:
        by_tick[use.tick].append((use.storage, use.mode))
    births, first = trace.storages.birth.tolist(), trace.storages.piece_of.tolist()
    pieces = {
        number: [other for other, its in enumerate(first) if other == number or (its >= 0 and its == first[number])]
        for number in range(len(first))
    }

    def run(tick: int, contents: dict[int, object]) -> dict[int, object]:
        reads = tuple(contents.get(storage) for storage, mode in by_tick[tick] if mode & R)
        writes = [storage for storage, mode in by_tick[tick] if mode & W]
        return {storage: (tick, reads, None if births[storage] == tick else contents.get(storage))
                for storage in writes}  # fmt: skip

    def made(storage: int, before: int, inputs: dict[int, object], ingredients: tuple[int, ...]) -> object:
        here = {number: content for number, content in inputs.items() if number not in pieces[storage]}
        for at in range(births[storage], before):
            if any((piece, R | W) in by_tick[at] for piece in pieces[storage]) or at == births[storage]:
                for number in ingredients:
                    if number not in inputs and (number, R) in by_tick[at] and number not in pieces[storage]:
                        here[number] = made(number, at, inputs, ingredients)
                here |= {number: content for number, content in run(at, here).items() if number in pieces[storage]}
        return here[storage]

    for tick in range(len(trace.ticks)):
        for row in np.flatnonzero((remakes.gone <= tick) & (tick <= remakes.until)).tolist():
            storage, gone = int(remakes.storage[row]), int(remakes.gone[row])
            inputs = {number: now[number] for number in remakes.inputs[row]}
            assert made(storage, gone, inputs, remakes.ingredients[row]) == now[storage]
        now |= run(tick, now)


def in_pieces() -> Trace:
    """Storages 1, 2 and 3 are pieces of what tick 0 makes of a parameter. Tick 1 changes the second in place.

    All are used at 3 and at 7, and the third at 5.
    """
    ticks = [Tick(10 * (at + 1), RELU_ if at == 1 else MUL, repeats=at < 2) for at in range(9)]
    pieces = [replace(activation(0, 9, 2**21, at), piece_of=1) for at in range(3)]
    uses = [(0, 0, R), *((number, tick, W if tick == 0 else R) for number in (1, 2, 3) for tick in (0, 3, 7))]
    return step_of(ticks, [parameter(5_000, 9), *pieces], [*uses, (2, 1, R | W), (3, 5, R)])


def test_pieces_are_left_together_and_made_by_operators_that_run_once() -> None:
    found = remakes_of(in_pieces())
    assert found.storage.tolist() == [1, 1, 2, 2, 3, 3]
    assert (found.gone.tolist(), found.until.tolist()) == ([2, 6] * 3, [3, 7] * 3)
    assert found.time_ns.tolist() == [10, 10] * 3
    assert found.scratch_bytes.tolist() == [0] * 6
    assert (set(found.inputs), found.others[0], found.others[3]) == ({(0,)}, (2, 3), (1, 3))
    assert found.pieces() == [(0, 2, 4), (1, 3, 5)] * 3
    for rows, possible in (((1, 3, 5), True), ((1, 3), False), ((0, 3, 5), False)):
        assert together(found.chosen(found.latest(rows))) is possible
    assert not together(found.chosen(((1, 7), (3, 7), (5, 6))))  # one of them early
    assert together(found.chosen(((1, 6), (3, 6), (5, 6))))


def test_a_plan_that_makes_some_pieces_anew_is_not_right() -> None:
    trace, machine = in_pieces(), disk()
    whole = [Stay(number, "dram", 0, 0, 9) for number in range(4)]
    gaps = [[Stay(number, "dram", 0, 0, 6), Stay(number, "dram", 7, 7, 9)] for number in (1, 2, 3)]
    plan = plan_of(trace, [whole[0], *gaps[0], *gaps[1], *gaps[2]])
    assert check_plan(plan, trace, machine) == ()
    assert simulate_plan(plan, trace, machine).step_ns == trace.step_ns + 30
    some = plan_of(trace, [whole[0], *gaps[0], *gaps[1], whole[3]])
    assert Rule.WHOLE in {found.rule for found in check_plan(some, trace, machine)}


def test_what_only_writes_to_a_piece_ends_the_recipe_of_all() -> None:
    assert not len(remakes_of(changed(in_pieces(), uses=[(2, 1, W)])))
    later = remakes_of(changed(in_pieces(), uses=[(1, 4, W)]))
    assert later.until.tolist() == [3, 3, 3]


def test_what_reads_a_piece_is_made_before_another_piece_is_written_to() -> None:
    """4 is made of the first piece at tick 3, and used at 7. The second is written to at 5."""
    more = [activation(3, 9)]
    trace = with_tick(changed(in_pieces(), more, [(4, 3, W), (4, 7, R), (2, 3, R), (3, 3, R)]), 3, repeats=True)
    assert 4 in remakes_of(trace).storage
    assert 4 not in remakes_of(changed(with_tick(trace, 0, repeats=False), uses=[(2, 5, R | W)])).storage


def test_an_ingredient_in_pieces_is_made_as_a_whole() -> None:
    """4 is made of the first piece at tick 3, and used at 7, when all pieces have died."""
    pieces = [replace(row, death=6) for row in in_pieces().storages if row.piece_of is not None]
    uses = [(number, tick, W if tick == 0 else R) for number in (1, 2, 3) for tick in (0, 3)]
    ticks = [replace(tick, repeats=at in (0, 1, 3)) for at, tick in enumerate(in_pieces().ticks)]
    rows = [parameter(5_000, 9), *pieces, activation(3, 9)]
    trace = step_of(ticks, rows, [(0, 0, R), *uses, (2, 1, R | W), (4, 3, W), (4, 7, R)])
    found = remakes_of(trace)
    at = found.storage.tolist().index(4)
    assert (found.inputs[at], found.ingredients[at], found.time_ns[at]) == ((0,), (1, 2, 3), 10 + 20 + 40)
    assert found.scratch_bytes[at] == 3 * 2**21


def plan_of(trace: Trace, stays: Sequence[Stay]) -> Plan:
    return Plan("by hand", PlanStatus.FEASIBLE, trace.signature(), 10**6, 0, 0, 0, tuple(stays))


def left_and_made(gone: int = 3, until: int = 6) -> Plan:
    return plan_of(plain(), [Stay(0, "dram", 0, 0, 8), Stay(1, "dram", 0, 0, gone), Stay(1, "dram", until, until, 7)])


def test_a_plan_may_leave_what_is_made_anew() -> None:
    trace, plan, machine = plain(), left_and_made(), disk()
    assert remade(plan.stays, trace) == ((0, 6),)
    assert check_plan(plan, trace, machine) == ()
    assert {found.rule for found in check_plan(plan, with_tick(trace, 0, repeats=False), machine)} >= {Rule.WHOLE}
    early = left_and_made(until=5)
    assert remade(early.stays, trace) == ((0, 5),)
    assert check_plan(early, trace, machine) == ()
    for other in (left_and_made(gone=4), left_and_made(gone=2)):
        assert {found.rule for found in check_plan(other, trace, machine)} & {Rule.WHOLE, Rule.SOURCE, Rule.ACCESS}


def test_what_it_is_made_from_has_to_be_there() -> None:
    away = [Stay(0, "dram", 0, 0, 5), Stay(0, "file", 4, 5, 8), Stay(0, "dram", 7, 7, 8), *left_and_made().stays[1:]]
    found = check_plan(plan_of(plain(), away), plain(), disk())
    assert (Rule.ACCESS, 0, 6) in [(one.rule, one.storage, one.tick) for one in found]


def test_the_tick_takes_longer_and_holds_more() -> None:
    ticks = [Tick(10 * (at + 1), MUL, repeats=at == 0) for at in range(8)]
    rows = [activation(0, 8), activation(0, 1, 33, 1)]
    trace = step_of(ticks, rows, [(0, 0, W), (0, 6, R), (1, 0, W)])
    plan = plan_of(trace, [Stay(0, "dram", 0, 0, 1), Stay(0, "dram", 6, 6, 8), Stay(1, "dram", 0, 0, 1)])
    assert check_plan(plan, trace, disk()) == ()
    split_up, step, _ = split_plan(plan, trace)
    assert occupancy(step, split_up.stays, ["dram"])["dram"].tolist() == [133, 0, 0, 0, 0, 0, 133, 100]
    tight = disk().with_budget(132)
    assert [found.rule for found in check_plan(plan, trace, tight)] == [Rule.CAPACITY]
    assert simulate_plan(plan, trace, disk().with_budget(133)).step_ns == trace.step_ns + 10


def test_its_schedule_has_a_drop_alone() -> None:
    commands = lower(left_and_made(), plain(), disk())
    rows = list(zip(*(column.tolist() for column in (commands.tick, commands.verb, commands.storage)), strict=True))
    assert rows == [(3, Verb.DROP, 1)]
    columns = schedule_columns(left_and_made(), plain(), disk(), [0, 0], 10**6)
    assert columns.maker.tolist() == [-1, 0]
    assert columns.ingredient.tolist() == [False, False]


def test_its_schedule_says_what_the_ingredients_are() -> None:
    trace = chain()
    stays = [Stay(0, "dram", 0, 0, 10), Stay(1, "dram", 0, 0, 3), Stay(2, "dram", 1, 1, 3), Stay(3, "dram", 2, 2, 3)]
    plan = plan_of(trace, [*stays, Stay(3, "dram", 9, 9, 10)])
    require_valid(plan, trace, disk())
    columns = schedule_columns(plan, trace, disk(), [0, 0, 0, 0], 10**6)
    assert columns.maker.tolist() == [-1, 0, 1, 2]
    assert columns.ingredient.tolist() == [False, True, True, False]


def test_what_was_made_anew_is_moved_like_others() -> None:
    """It leaves after tick 6 and is back at 11; the fetch may not begin before it has left."""
    ticks = [Tick(10, MUL, repeats=at == 0) for at in range(12)]
    trace = step_of(ticks, [activation(0, 12)], [(0, 0, W), (0, 6, R), (0, 11, R)])
    stays = [Stay(0, "dram", 0, 0, 1), Stay(0, "dram", 6, 6, 8), Stay(0, "file", 7, 8, 12), Stay(0, "dram", 10, 11, 12)]
    plan = plan_of(trace, stays)
    require_valid(plan, trace, disk())
    commands = lower(plan, trace, disk())
    columns = (commands.tick, commands.verb, commands.due, commands.earliest)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (1, Verb.DROP, 1, 0), (7, Verb.EVICT, 8, 0), (8, Verb.DROP, 8, 0), (10, Verb.FETCH, 11, 8),
    ]  # fmt: skip


def test_tierplan_cannot_say_it() -> None:
    with pytest.raises(PlanError, match=r"storage 1 is made anew in the step, which tierplan/1 cannot say"):
        to_tierplan(left_and_made(), plain(), disk(), [0, 1])


def test_an_input_that_is_gone_itself_is_made_early_or_rules_a_remake_out() -> None:
    """1 is made of the parameter, and 2 of 1. Each can be made anew at 6 and at 8; 1 comes first there, or stays."""
    ticks = [Tick(10, MUL, repeats=at < 2) for at in range(10)]
    rows = [parameter(5_000, 10), activation(0, 10), activation(1, 10)]

    def uses(first: int, second: int) -> Trace:
        return step_of(ticks, rows, [(0, 0, R), (1, 0, W), (1, 1, R), (1, first, R), (2, 1, W), (2, second, R)])

    for first, second, at, possible in ((6, 8, 6, True), (8, 8, 8, True), (8, 6, 8, False), (8, 6, 6, True)):
        found = remakes_of(uses(first, second))
        assert found.storage.tolist() == [1, 2]
        assert together(found.chosen(((0, at), (1, second)))) is possible


@settings(max_examples=200, deadline=None)
@given(made_steps(), st.data())
def test_a_split_step_is_the_same_step(trace: Trace, data: st.DataObject) -> None:
    """Plans for it and for the step as it was are translated both ways; both are right, and take the same time."""
    chosen = possible_together(trace, data.draw(st.randoms()))
    made = split(trace, chosen)
    still = [Stay(number, "dram", row.birth, row.birth, row.death) for number, row in enumerate(made.trace.storages)]
    machine = disk()
    joined = plan_of(trace, made.joined_stays(still))
    assert set(remade(joined.stays, trace)) == set(chosen)
    assert check_plan(joined, trace, machine) == ()
    again, step, of = split_plan(joined, trace)
    assert sorted(map(repr, again.stays)) == sorted(map(repr, still))
    assert of.tolist()[: len(trace.storages)] == list(range(len(trace.storages)))
    simulated = simulate(lower(again, step, machine), step, machine)
    assert simulate_plan(joined, trace, machine).step_ns == simulated.step_ns
    cost = int(remakes_of(trace).chosen(chosen).time_ns.sum())
    assert simulated.step_ns == trace.step_ns + cost
    assert simulate_plan(joined, trace, machine, record=True).step_ns == simulated.step_ns


def test_without_operators_that_repeat_nothing_is_looked_for() -> None:
    trace = with_tick(with_tick(plain(), 0, repeats=False), 1, repeats=False)
    plan = plan_of(trace, [Stay(0, "dram", 0, 0, 8), Stay(1, "dram", 0, 0, 7)])
    assert split_plan(plan, trace)[1] is trace
    assert trace.origin is Origin.ASSUMED
