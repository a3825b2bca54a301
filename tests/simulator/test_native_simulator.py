"""The engine on schedules that no plan is behind: its own count of all bytes holds at every event, and it ends."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import SettingError
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Sharing, Tier
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import PageSize, exact, needed_bytes, pages_of, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.schedule import Schedule, no_commands
from ebbtide.ir.trace import Storage, StorageKind, Ticks, Trace
from ebbtide.simulator import Simulator, simulate
from ebbtide.simulator.lowering import lower
from tests.helpers.make_ir import MACHINE, planned, traces
from tests.helpers.make_steps import PAGE, R, W, disk, machines, page_traces, parameter, step
from tests.helpers.schedules import Begin, Command, schedule_of


def kept(schedule: Schedule, trace: Trace, machine: Machine, page_bytes: PageSize = exact) -> None:
    """The books are kept, and what is noted changes no time."""
    simulator = Simulator(trace, machine, page_bytes)
    if isinstance(simulator.noted(schedule), int):  # a tick that does not fit the budget
        with pytest.raises(ValueError, match="does not fit the budget"):
            simulator.run(schedule, record=True, checks_state=True)
        return
    found = simulator.run(schedule, record=True, checks_state=True)
    assert found.start_ns.tolist() == simulator.run(schedule).start_ns.tolist()


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
    return schedule_of(commands, machine, list(dict.fromkeys(begins)))


@settings(max_examples=250)
@given(page_traces(most_ticks=8, most_storages=7, tenants=True), st.floats(0, 1), st.data())
def test_any_commands_keep_the_books(trace: Trace, share: float, data: st.DataObject) -> None:
    """Chunks, shared ports, exclusive machines, links that slow compute, operations in place, rescues, elders, slow
    tiers without room; also budgets that a tick does not fit."""
    total = int(trace.storages.nbytes.sum())
    budget = max(peak(needed_bytes(trace, pages_of(PAGE))), 1) + int((share - 0.1) * total)
    machine = data.draw(machines(3 * total + 8 * PAGE)).with_budget(max(budget, 1))
    kept(data.draw(schedules(trace, machine)), trace, machine, pages_of(PAGE))


@settings(max_examples=80)
@given(traces(longest_life=4), st.integers(1, 30), st.data())
def test_what_lives_for_several_steps_does_too(trace: Trace, budget: int, data: st.DataObject) -> None:
    machine = replace(MACHINE, exclusive=data.draw(st.booleans())).with_budget(budget)
    kept(data.draw(schedules(trace, machine)), trace, machine)


@settings(max_examples=80)
@given(planned(longest_life=3), st.booleans(), st.integers(1, 30))
def test_a_plan_takes_as_long_as_its_schedule(case: tuple[Trace, Plan], exclusive: bool, budget: int) -> None:
    trace, plan = case
    machine = replace(MACHINE, exclusive=exclusive).with_budget(budget)
    simulator, found = Simulator(trace, machine), []
    for run in (lambda: simulator.run_plan(plan), lambda: simulator.run(lower(plan, trace, machine))):
        try:
            found.append(run().start_ns.tolist())
        except ValueError as error:
            found.append(str(error))
    assert found[0] == found[1]


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
        short = replace(trace, ticks=Ticks.from_rows((replace(trace.ticks[0], time_ns=time_ns), trace.ticks[1])))
        kept(schedule_of(commands, machine, [Begin(0, "cxl")]), short, machine)


def test_a_command_along_no_link_is_an_error() -> None:
    machine = replace(disk(), links=())
    away = Command(Verb.EVICT, 0, "dram", "file", 1, 1)
    trace = step([1, 1], [parameter(PAGE, 2)], [(0, 0, R)])
    with pytest.raises(KeyError):
        simulate(schedule_of([away], disk()), trace, machine)


def test_what_cannot_be_counted_in_64_bits_is_refused() -> None:
    large = step([1], [parameter(2**61, 1)], [(0, 0, R)])
    with pytest.raises(SettingError, match=r"2\*\*62 bytes"):
        simulate(no_commands(), large, disk())


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
    with pytest.raises(ValueError, match="does not fit the budget"):
        simulate(schedule, trace, machine, pages_of(PAGE))
