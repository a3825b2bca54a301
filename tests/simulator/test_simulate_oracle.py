"""The simulator against a stupid clock that goes ns by ns; and its bytes, which it counts anew at every event."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Sharing, Tier
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import exact, needed_bytes, occupancy, pages_of, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.schedule import no_commands
from ebbtide.ir.trace import Storage, StorageKind, Trace
from ebbtide.simulator import POLICIES, Simulator, simulate
from ebbtide.simulator.lowering import lower
from tests.helpers.make_ir import MACHINE, PACKING, planned, shrunk
from tests.helpers.make_steps import PAGE, R, W, machines, page_traces, parameter, step
from tests.helpers.schedules import Command, schedule_of

# ---- time ------------------------------------------------------------------------------------------------------------


@st.composite
def round_trips(draw: st.DrawFn) -> tuple[Trace, list[tuple[int, int, int]], Machine]:
    """Storages that leave between two uses and come back, as (storage, tick out, tick in); a byte takes a ns or more.

    Numbers are such that every event falls on a whole ns: links of 1 or 1/2 byte per ns, and ports in order.
    """
    n_ticks = draw(st.integers(3, 8))
    times = draw(st.lists(st.integers(0, 12), min_size=n_ticks, max_size=n_ticks))
    storages, accesses, trips = [], [], []
    for number in range(draw(st.integers(1, 5))):
        first = draw(st.integers(0, n_ticks - 3))
        last = draw(st.integers(first + 2, n_ticks - 1))
        nbytes = draw(st.integers(1, 12))
        if draw(st.booleans()):
            storages.append(parameter(nbytes, n_ticks))
        else:
            storages.append(Storage(nbytes, StorageKind.ACTIVATION, first, last + 1))
        accesses += [(number, first, W), (number, last, R)]
        out = draw(st.integers(first + 1, last - 1))
        if draw(st.booleans()):
            trips.append((number, out, draw(st.integers(out + 1, last))))
    rates = [draw(st.sampled_from([10**9, 5 * 10**8])) for _ in range(2)]
    latency = draw(st.integers(0, 3))
    port = draw(st.sampled_from([None, "port"]))
    if port:
        rates[1] = rates[0]
    links = (Link("dram", "file", rates[0], latency, port), Link("file", "dram", rates[1], latency, port))
    groups = (LinkGroup("port", rates[0], sharing=Sharing.IN_ORDER),)  # while the first moves, the other waits
    tiers = (Tier("dram", InPlace.ALL), Tier("file", InPlace.NOTHING))
    return step(times, storages, accesses), trips, Machine("made up", Origin.ASSUMED, tiers, links, groups)


def time_by_the_ns(trace: Trace, trips: list[tuple[int, int, int]], machine: Machine, n_steps: int) -> int:
    """The last step's time. Half bytes as units, so that everything is whole; room is unlimited."""
    n_ticks, now, began = len(trace.ticks), 0, 0
    here = dict.fromkeys(range(len(trace.storages)), True)
    away = dict.fromkeys(here, False)
    queues: dict[str, list[list[int]]] = {"out": [], "in": []}  # [storage, latency left, half bytes left]
    coming: set[int] = set()
    evicting: set[int] = set()
    out, back = machine.links
    rates = {"out": out.bytes_per_s * 2 // 10**9, "in": back.bytes_per_s * 2 // 10**9}  # half bytes per ns
    port = None if out.shares is None else machine.groups[0].bytes_per_s * 2 // 10**9

    def put(where: str, number: int) -> None:
        latency = (out if where == "out" else back).latency_ns
        queues[where].append([number, latency, 2 * trace.storages[number].nbytes])

    def forget(number: int) -> None:
        """Its copies are waste: one that has begun goes on unheard."""
        evicting.discard(number)
        coming.discard(number)
        for queue in queues.values():
            queue[1:] = [row for row in queue[1:] if row[0] != number]
            if queue and queue[0][0] == number:
                queue[0][0] = -1

    def one_ns() -> None:
        nonlocal now
        now += 1
        left = port
        for where in ("out", "in"):
            if not queues[where]:
                continue
            head = queues[where][0]
            if head[1]:
                head[1] -= 1
                continue
            rate = rates[where] if left is None else min(rates[where], left)
            left = None if left is None else left - rate
            head[2] -= rate
        for where in ("out", "in"):
            if queues[where] and queues[where][0][1] == 0 and queues[where][0][2] <= 0:
                number = queues[where].pop(0)[0]
                if number < 0:
                    continue
                if where == "in":
                    here[number] = True
                    coming.discard(number)
                else:
                    away[number] = True
                    if number in evicting:
                        evicting.discard(number)
                        here[number] = False

    for _ in range(n_steps):
        began = now
        for tick in range(n_ticks):
            for number, storage in enumerate(trace.storages):
                if not storage.persistent and storage.death % n_ticks == tick:
                    forget(number)
                if not storage.persistent and storage.birth == tick:
                    here[number], away[number] = True, False
            at_this_tick = [("evict", at, number) for number, at, _ in trips if at == tick]
            at_this_tick += [("fetch", at, number) for number, _, at in trips if at == tick]
            for verb, _, number in at_this_tick:
                if verb == "evict" and here[number]:
                    if not away[number] and not any(row[0] == number for row in queues["out"]):
                        put("out", number)
                    evicting.add(number)
                    if away[number]:
                        evicting.discard(number)
                        here[number] = False
                elif verb == "fetch":
                    if number in evicting:
                        evicting.discard(number)  # it has not left yet
                    elif not here[number] and number not in coming:
                        coming.add(number)
                        put("in", number)
            rows = trace.accesses
            uses = [row for row in zip(rows.storage.tolist(), rows.tick.tolist(), rows.mode.tolist(), strict=True)
                    if row[1] == tick]  # fmt: skip
            while not all(here[number] for number, _, _ in uses):
                one_ns()
            for number, _, mode in uses:
                if mode & W:
                    away[number] = False
                    forget(number)
            for _ in range(trace.ticks[tick].time_ns):
                one_ns()
    return now - began


@settings(max_examples=300, deadline=None)
@given(round_trips())
def test_times_are_those_of_a_clock_that_goes_ns_by_ns(case: tuple[Trace, list[tuple[int, int, int]], Machine]) -> None:
    trace, trips, machine = case
    commands = []
    for number, out, back in trips:
        commands.append(Command(Verb.EVICT, number, "dram", "file", out, out))
        commands.append(Command(Verb.DROP, number, "dram", None, out, out))
        commands.append(Command(Verb.FETCH, number, "file", "dram", back, back))
    order = {Verb.EVICT: 0, Verb.DROP: 0, Verb.FETCH: 1}
    commands.sort(key=lambda row: (row.at, order[row.verb]))
    schedule = schedule_of(commands, machine)
    for n_steps in (1, 3):
        assert simulate(schedule, trace, machine, n_steps=n_steps).step_ns == time_by_the_ns(
            trace, trips, machine, n_steps
        )


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
    budget = max(peak(needed_bytes(trace, pages)), 1) + int(share * trace.total_bytes)
    machine = data.draw(machines(3 * trace.total_bytes + 8 * PAGE)).with_budget(budget)
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
