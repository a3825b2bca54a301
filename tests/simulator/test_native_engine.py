"""The native engine against the one in Python, its oracle: figures are the same to the last bit, and so are plans."""

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ebbtide import simulator
from ebbtide.commands.inputs import read_inputs
from ebbtide.errors import InfeasibleBudgetError, PlanError
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Sharing, Tier
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import PageSize, arena_pages, exact, live_bytes, needed_bytes, pages_of, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.schedule import Schedule, no_commands
from ebbtide.ir.stay_columns import columns_of
from ebbtide.ir.trace import Storage, StorageKind, Ticks, Trace
from ebbtide.planners import PLANNERS
from ebbtide.planners.ebbtide import ebbtide
from ebbtide.simulator.engine import Run
from ebbtide.simulator.lowering import lower
from ebbtide.simulator.native_engine import NativeEngine, is_native
from ebbtide.simulator.policies import Plan as FollowPlan
from ebbtide.simulator.result import Figures, does_not_fit
from tests.helpers.make_g10 import random_tiertrace
from tests.helpers.make_ir import MACHINE, PACKING, planned, shrunk, traces
from tests.helpers.make_steps import PAGE, R, W, disk, machines, network, page_traces, parameter, step
from tests.helpers.schedules import Begin, Command, schedule_of

Found = list[object] | str


def by_oracle(schedule: Schedule, trace: Trace, machine: Machine, page_bytes: PageSize, n_steps: int) -> Found:
    """All figures, unrounded, or what it says when a tick does not fit."""
    try:
        run = Run(schedule, trace, machine, page_bytes, FollowPlan())
        for _ in range(n_steps):
            run.step(False)
    except ValueError as error:
        return str(error)
    return listed(run.record.figures())


def natively(schedule: Schedule, trace: Trace, machine: Machine, page_bytes: PageSize, n_steps: int) -> Found:
    assert is_native(trace, machine)
    engine = NativeEngine(trace, machine, page_bytes)
    try:
        return listed(engine.figures(schedule, n_steps))
    except ValueError as error:
        return str(error)


def listed(figures: Figures) -> list[object]:
    values = [getattr(figures, field.name) for field in fields(figures)]
    return [list(value) if isinstance(value, Sequence) or hasattr(value, "tolist") else value for value in values]


def assert_same(schedule: Schedule, trace: Trace, machine: Machine, page_bytes: PageSize = exact) -> None:
    for n_steps in (2, 3):
        assert natively(schedule, trace, machine, page_bytes, n_steps) == by_oracle(
            schedule, trace, machine, page_bytes, n_steps
        )


@st.composite
def schedules(draw: st.DrawFn, trace: Trace, machine: Machine) -> Schedule:
    """Any commands along the machine's links, and any beginnings: no plan is behind them."""
    n_ticks, fast = len(trace.ticks), machine.tiers[0].name
    movable = [number for number, row in enumerate(trace.storages) if not row.scratch]
    if not movable:
        return no_commands()
    rank, tick = {tier.name: at for at, tier in enumerate(machine.tiers)}, st.integers(0, n_ticks - 1)
    commands, begins = [], []
    for number in draw(st.lists(st.sampled_from(movable), max_size=12)):
        at, due = draw(tick), draw(tick)
        link = draw(st.sampled_from(machine.links))
        if draw(st.sampled_from([False, False, False, True])):
            begins.append(Begin(number, draw(st.sampled_from(machine.tiers)).name))
        elif draw(st.booleans()):
            verb = Verb.EVICT if rank[link.target] > rank[link.source] else Verb.FETCH
            commands.append(Command(verb, number, link.source, link.target, at, due))
            if verb is Verb.EVICT and draw(st.booleans()):
                commands.append(Command(Verb.DROP, number, fast, None, due, due))
        else:
            source = draw(st.sampled_from(machine.tiers)).name
            commands.append(Command(Verb.DROP, number, source, None, at, at))
    return schedule_of(commands, machine, begins)


@settings(max_examples=250)
@given(page_traces(most_ticks=8, most_storages=7, tenants=True), st.floats(0, 1), st.data())
def test_any_commands_take_as_long_as_in_the_oracle(trace: Trace, share: float, data: st.DataObject) -> None:
    """Chunks, shared ports, exclusive machines, links that slow compute, operations in place, rescues, elders, slow
    tiers without room; also budgets that a tick does not fit."""
    budget = max(peak(needed_bytes(trace, pages_of(PAGE))), 1) + int((share - 0.1) * trace.total_bytes)
    room = data.draw(st.sampled_from([3 * trace.total_bytes + 8 * PAGE, trace.total_bytes, 10 * PAGE]))
    machine = data.draw(machines(room)).with_budget(max(budget, 1))
    assert_same(data.draw(schedules(trace, machine)), trace, machine, pages_of(PAGE))


@settings(max_examples=80)
@given(traces(longest_life=4), st.integers(1, 30), st.data())
def test_what_lives_for_several_steps_does_too(trace: Trace, budget: int, data: st.DataObject) -> None:
    machine = replace(MACHINE, exclusive=data.draw(st.booleans())).with_budget(budget)
    assert_same(data.draw(schedules(trace, machine)), trace, machine)


@settings(max_examples=80)
@given(planned(), st.data())
def test_plans_of_replicas_do_too(case: tuple[Trace, Plan], data: st.DataObject) -> None:
    trace, plan = case
    trace = shrunk(trace, data.draw(st.lists(st.sampled_from([None, 0, 1, 3]), min_size=1, max_size=4)))
    rate, latency = st.sampled_from([10**9, 10**8]), st.sampled_from([0, 7])
    machine = replace(
        data.draw(st.sampled_from([MACHINE, PACKING])),
        chunk_bytes=data.draw(st.sampled_from([None, 1, 2])),
        exclusive=data.draw(st.booleans()),
        links=tuple(replace(row, bytes_per_s=data.draw(rate), latency_ns=data.draw(latency)) for row in MACHINE.links),
    ).with_budget(data.draw(st.integers(1, 20)))
    assert_same(lower(plan, trace, machine), trace, machine)


@settings(max_examples=150)
@given(planned(longest_life=3), st.data())
def test_stays_are_lowered_as_schedules_are(case: tuple[Trace, Plan], data: st.DataObject) -> None:
    """The native schedule of stays against ``lower``."""
    trace, plan = case
    exclusive, budget = data.draw(st.booleans()), data.draw(st.integers(1, 30))
    machine = replace(MACHINE, exclusive=exclusive).with_budget(budget)
    names = [tier.name for tier in machine.tiers]
    engine = NativeEngine(trace, machine, exact)
    try:
        found: Found = listed(engine.figures_of_stays(columns_of(plan.stays, names), 3))
    except ValueError as error:
        found = str(error)
    assert found == by_oracle(lower(plan, trace, machine), trace, machine, exact, 3)
    if not isinstance(found, str):
        simulated = simulator.Simulator(trace, machine)
        outcome, other = simulated.run_plan(plan), simulated.run(lower(plan, trace, machine))
        assert outcome.start_ns.tolist() == other.start_ns.tolist()


@settings(max_examples=40)
@given(page_traces(tenants=True), st.sampled_from(sorted(PLANNERS)), st.floats(0, 1))
def test_planners_plans_do_too(trace: Trace, name: str, share: float) -> None:
    least, most = (peak(count(trace, arena_pages)) for count in (needed_bytes, live_bytes))
    machine = disk(2 * 10**9, 10**9, 2 * 10**9, latency_ns=300)
    budget = max(least + int(share * (most - least)), 1)
    try:
        plan = PLANNERS[name](trace, machine, budget)
    except (InfeasibleBudgetError, PlanError):
        assume(False)
    machine = machine.with_budget(budget)
    assert_same(lower(plan, trace, machine), trace, machine, arena_pages)


def test_a_drop_of_what_leaves_its_other_tier_too_ends() -> None:
    """On an exclusive machine a storage comes from a tier while a second copy from there is under way: until that one
    is done, it is on both tiers."""
    tiers = [Tier("dram", InPlace.ALL), Tier("cxl", InPlace.NOTHING), Tier("file", InPlace.NOTHING)]
    links = (Link("cxl", "dram", 10**9), Link("cxl", "file", 10**8), Link("dram", "cxl", 10**9))
    machine = Machine("made up", Origin.ASSUMED, tuple(tiers), links, exclusive=True)
    trace = step([20 * PAGE, 1], [parameter(PAGE, 2)], [(0, 1, R)])
    commands = (
        Command(Verb.FETCH, 0, "cxl", "dram", 0, 1),
        Command(Verb.EVICT, 0, "cxl", "file", 0, 1),
        Command(Verb.DROP, 0, "dram", None, 1, 1),
    )
    for time_ns in (2 * PAGE, 20 * PAGE):
        short = replace(trace, ticks=Ticks.from_rows([replace(trace.ticks[0], time_ns=time_ns), trace.ticks[1]]))
        assert_same(schedule_of(commands, machine, [Begin(0, "cxl")]), short, machine)


def test_a_command_along_no_link_is_an_error_of_the_same_kind() -> None:
    machine = replace(disk(), links=())
    away = Command(Verb.EVICT, 0, "dram", "file", 1, 1)
    trace = step([1, 1], [parameter(PAGE, 2)], [(0, 0, R)])
    for engine in (by_oracle, natively):
        with pytest.raises(KeyError):
            engine(schedule_of([away], disk()), trace, machine, exact, 2)


def test_what_planners_ask_runs_natively_and_the_rest_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = step([1, 1], [parameter(PAGE, 2)], [(0, 0, R), (0, 1, R)])
    nothing = no_commands()
    asked = []

    def oracle(*arguments: object) -> Run:
        asked.append(arguments)
        return Run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(simulator, "Run", oracle)
    found = simulator.simulate(nothing, trace, disk().with_budget(PAGE))
    assert not asked
    assert simulator.simulate(nothing, trace, disk().with_budget(PAGE), record=True).step_ns == found.step_ns
    assert simulator.simulate_policy("lru", trace, disk().with_budget(PAGE)).step_ns == found.step_ns
    assert len(asked) == 2
    large = step([1], [parameter(2**60, 1)], [(0, 0, R)])  # its bytes could not be added up in 64 bits
    simulator.simulate(nothing, large, disk())
    assert len(asked) == 3


def test_copies_that_make_room_for_one_another_for_ever_are_an_error() -> None:
    """Storages for whose ends the middle tier has no room: each that leaves it brings another one back."""
    blocks = [Storage(2 * PAGE, StorageKind.ACTIVATION, 0, 3)] * 2
    uses = [(0, 0, W), (0, 1, R), (1, 0, W), (1, 1, R), *((number, tick, R) for number in (2, 3) for tick in (1, 2))]
    trace = step([1819, 89, 8791, 131], [*blocks, parameter(PAGE, 4), parameter(PAGE, 4)], uses)
    commands = (
        *(Command(Verb.DROP, number, "file", None, 0, 0) for number in (2, 3)),
        *(Command(Verb.EVICT, number, "cxl", "file", 0, 1) for number in (2, 3)),
        *(Command(Verb.DROP, number, "cxl", None, 0, 0) for number in (2, 3)),
        *(Command(Verb.DROP, number, "file", None, 1, 1) for number in (2, 3)),
        *(Command(Verb.DROP, number, "cxl", None, 1, 1) for number in (0, 1)),
        Command(Verb.FETCH, 2, "file", "cxl", 2, 1),
        *(Command(Verb.DROP, number, "dram", None, 2, 2) for number in (2, 3)),
    )
    begins = (*(Begin(number, "file") for number in range(4)), Begin(1, "cxl"))
    tiers = (
        Tier("dram", InPlace.ALL, 38069, 10**10),
        Tier("cxl", InPlace.ALL, 3 * PAGE, 5 * 10**9, write_bytes_per_s=2 * 10**9),
        Tier("file", InPlace.NOTHING),
    )
    links = (
        Link("dram", "cxl", 10**9, slows_compute=0.2),
        Link("cxl", "dram", 3 * 10**8, 1000, "bus", 0.2),
        Link("cxl", "file", 3 * 10**8, 0, "bus"),
        Link("file", "cxl", 10**9, slows_compute=0.2),
    )
    bus = LinkGroup("bus", 15 * 10**8, sharing=Sharing.IN_ORDER)
    machine = Machine("made up", Origin.ASSUMED, tiers, links, (bus,))
    schedule = schedule_of(commands, machine, begins)
    assert_same(schedule, trace, machine, pages_of(PAGE))
    assert natively(schedule, trace, machine, pages_of(PAGE), 2) == does_not_fit(trace, 0)


# ---- the same plans ------------------------------------------------------------------------------------------------


def plan_both_ways(trace: Trace, machine: Machine, budget: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, Plan]:
    """Natively, and by the oracle. There is no time limit that could strike."""
    found = ebbtide(trace, machine, budget, time_limit_s=1000)
    with monkeypatch.context() as patch:
        patch.setattr(simulator, "is_native", lambda trace, machine: False)
        return replace(found, plan_ns=0), replace(ebbtide(trace, machine, budget, time_limit_s=1000), plan_ns=0)


@pytest.mark.parametrize("share", [0.15, 0.4])
def test_a_network_gets_the_same_plan(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = network(layers=12)
    budget = int(share * peak(live_bytes(trace, arena_pages)))
    native, oracle = plan_both_ways(trace, disk(2 * 10**9, 10**9, 2 * 10**9), budget, monkeypatch)
    assert native == oracle


@settings(max_examples=10)
@given(st.randoms())
def test_steps_on_three_tiers_get_the_same_plan(random: Random) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        path = Path(folder) / "random.json"
        path.write_text(json.dumps(random_tiertrace(random)))
        trace, machine, budget = read_inputs(path, None, [], None)
        native, oracle = plan_both_ways(trace, machine, budget, monkeypatch)
    assert native == oracle
