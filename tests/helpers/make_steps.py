"""Machines, steps and random traces for the tests of planners and of the simulator."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Sharing, Tier
from ebbtide.ir.occupancy import PageSize, arena_pages, live_bytes, needed_bytes, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Access, Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace
from ebbtide.simulator import simulate
from ebbtide.simulator.lowering import lower
from ebbtide.simulator.result import Outcome

PAGE = 4096
R, W = int(Access.READ), int(Access.WRITE)


def disk(read: int = 10**9, write: int = 10**9, both: int | None = None, latency_ns: int = 0) -> Machine:
    """Fast memory and a file, bytes per second; ``both`` is what the two directions share."""
    shares = None if both is None else "disk"
    links = (Link("dram", "file", write, latency_ns, shares), Link("file", "dram", read, latency_ns, shares))
    groups = () if both is None else (LinkGroup("disk", both),)
    return Machine("a disk", Origin.ASSUMED, (Tier("dram", InPlace.ALL), Tier("file", InPlace.NOTHING)), links, groups)


DISK = disk(read=10**9, write=2 * 10**9, both=2 * 10**9, latency_ns=500)


def three_tiers(host_bytes: int, host: int = 8 * 10**9, ssd: int = 2 * 10**9) -> Machine:
    """An accelerator, its host and an SSD, with links of so many bytes per second."""
    links = tuple(
        Link(source, target, rate)
        for slow, rate in (("host", host), ("ssd", ssd))
        for source, target in (("gpu", slow), (slow, "gpu"))
    )
    tiers = (Tier("gpu", InPlace.ALL), Tier("host", InPlace.NOTHING, host_bytes), Tier("ssd", InPlace.NOTHING))
    return Machine("three tiers", Origin.ASSUMED, tiers, links)


def least_and_most(trace: Trace, pages: PageSize = arena_pages) -> tuple[int, int]:
    """The least budget that operations need, and one that is never short."""
    return peak(needed_bytes(trace, pages)), peak(live_bytes(trace, pages))


def budget_at(trace: Trace, share: float, pages: PageSize = arena_pages) -> int:
    """Between the two."""
    least, most = least_and_most(trace, pages)
    return max(least + int(share * (most - least)), 1)


def simulated(found: Plan, trace: Trace, machine: Machine) -> Outcome:
    """A step under the plan, within its own budget."""
    bounded = machine.with_budget(found.budget_bytes)
    return simulate(lower(found, trace, bounded), trace, bounded, arena_pages)


def step(times_ns: Sequence[int], storages: Sequence[Storage], accesses: Sequence[tuple[int, int, int]]) -> Trace:
    """``accesses`` are (storage, tick, mode) in any order."""
    columns = np.array(sorted(accesses), dtype=np.int64).reshape(-1, 3).T
    ticks = tuple(Tick(time, f"op{tick}") for tick, time in enumerate(times_ns))
    return Trace("made up", Origin.ASSUMED, Ticks.from_rows(ticks), Storages.from_rows(storages), Accesses(*columns))


def parameter(nbytes: int, n_ticks: int) -> Storage:
    return Storage(nbytes, StorageKind.PARAMETER, 0, n_ticks, persistent=True)


def network(layers: int = 6, width_bytes: int = 40 * PAGE, op_ns: int = 200_000) -> Trace:
    """A step like a transformer's: each layer saves two activations and has a parameter with gradient and two states.

    Forward, backward in reverse, then an optimizer that updates one parameter a tick.
    """
    n_ticks = 2 * layers + 2 * layers + layers
    storages: list[Storage] = []
    accesses: list[tuple[int, int, int]] = []

    def add(storage: Storage, *uses: tuple[int, int]) -> None:
        accesses.extend((len(storages), tick, mode) for tick, mode in uses)
        storages.append(storage)

    for layer in range(layers):
        forward, backward, update = 2 * layer, 4 * layers - 2 - 2 * layer, 4 * layers + layer
        for at in range(2):
            born, used = forward + at, backward + 1 - at
            saved = Storage(width_bytes, StorageKind.ACTIVATION, born, used + 1)
            following = [(born + 1, R)] if born + 1 < used else []
            add(saved, (born, W), *following, (used, R))
        nbytes = width_bytes * (1 + layer % 3)
        add(parameter(nbytes, n_ticks), (forward, R), (backward, R), (update, R | W))
        gradient = Storage(nbytes, StorageKind.GRADIENT, backward, update + 1)
        add(gradient, (backward, W), (update, R))
        for _ in range(2):
            state = Storage(nbytes, StorageKind.OPTIMIZER_STATE, 0, n_ticks, persistent=True)
            add(state, (update, R | W))
    times = [op_ns] * (2 * layers) + [2 * op_ns] * (2 * layers) + [op_ns // 4] * layers
    return step(times, storages, accesses)


@st.composite
def page_traces(draw: st.DrawFn, most_ticks: int = 10, most_storages: int = 6, tenants: bool = False) -> Trace:
    """Storages of one to four pages, whose copies take about as long as a tick or two. Some shrink.

    ``tenants``: some scratch lies in the room of other scratch.
    """
    n_ticks = draw(st.integers(2, most_ticks))
    times = draw(st.lists(st.integers(0, 20_000), min_size=n_ticks, max_size=n_ticks))
    storages: list[Storage] = []
    accesses: list[tuple[int, int, int]] = []
    for _ in range(draw(st.integers(1, most_storages))):
        number, pages = len(storages), draw(st.integers(1, 4))
        if draw(st.booleans()):
            row = parameter(PAGE * pages, n_ticks)
        else:
            birth = draw(st.integers(0, n_ticks - 1))
            death = birth + draw(st.integers(1, n_ticks))
            scratch = draw(st.sampled_from([False] * 5 + [True]))
            row = Storage(PAGE * pages, StorageKind.ACTIVATION, birth, death, scratch=scratch)
        row = replace(row, packed_bytes=draw(st.sampled_from([None, None, 0, 700, row.nbytes // 2])))
        storages.append(row)
        used = draw(st.dictionaries(st.integers(row.birth, row.death - 1), st.sampled_from([R, W, R | W]), max_size=5))
        accesses += [(number, tick, mode) for tick, mode in used.items()]
        if tenants and row.scratch and row.death <= n_ticks and draw(st.booleans()):
            nbytes = PAGE * draw(st.integers(1, pages))
            storages.append(replace(row, nbytes=nbytes, birth=row.death - 1, room_of=number))
    return step(times, storages, accesses)


@st.composite
def machines(draw: st.DrawFn, total_bytes: int) -> Machine:
    """Three tiers, the second perhaps bounded and used in place, or packing; what it packs has a way around it."""
    second = draw(st.sampled_from([None, total_bytes, total_bytes // 2]))
    in_place = draw(st.sampled_from(InPlace))
    packs = in_place is InPlace.NOTHING and draw(st.booleans())
    tiers = (
        Tier("dram", InPlace.ALL, bytes_per_s=10**10),
        Tier("cxl", in_place, second, 5 * 10**9, write_bytes_per_s=2 * 10**9, packs=packs),
        Tier("file", InPlace.NOTHING),
    )
    pairs = [("dram", "cxl"), ("cxl", "dram"), ("cxl", "file"), ("file", "cxl")]
    pairs += [("dram", "file"), ("file", "dram")] if packs or draw(st.booleans()) else []
    rate, latency = st.sampled_from([10**9, 3 * 10**8, 2 * 10**9]), st.sampled_from([0, 1000])
    links = tuple(
        Link(*pair, draw(rate), draw(latency), draw(st.sampled_from([None, "bus"])), draw(st.sampled_from([0.0, 0.2])))
        for pair in pairs
    )
    group = LinkGroup("bus", 15 * 10**8, sharing=draw(st.sampled_from(Sharing)))
    chunk, exclusive = draw(st.sampled_from([None, PAGE, 5000])), draw(st.booleans())
    return Machine("made up", Origin.ASSUMED, tiers, links, (group,), chunk, exclusive)
