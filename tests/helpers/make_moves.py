"""Small machines of three tiers, and plans under which much moves, for the two clocks.

A seed gives one case, the same for ever.
"""

from dataclasses import replace
from itertools import permutations
from random import Random

from ebbtide.ir.base import Origin
from ebbtide.ir.check import check_plan
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Sharing, Tier
from ebbtide.ir.occupancy import occupancy, peak
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.trace import Storage, StorageKind, Trace
from tests.helpers.make_ir import TIERS, plan_of
from tests.helpers.make_steps import R, W, parameter, step

Case = tuple[Trace, Plan, Machine]

RATES = (31_250_000, 62_500_000, 125_000_000, 250_000_000)
"""Bytes per second, so that a byte takes a whole number of ns. The first two are slow beside ticks."""


def moves(seed: int) -> Case | None:
    """A plan that keeps every promise, where tiers are perhaps no larger than its stays. None: no such plan."""
    rng = Random(seed)
    trace, plan = _moving(rng)
    machine = _small_machine(rng)
    held = occupancy(trace, plan.stays, TIERS)
    bounded = rng.choice([(), ("dram",), ("dram",), ("dram", "cxl")])
    tiers = [
        replace(tier, capacity_bytes=peak(held[tier.name])) if tier.name in bounded else tier for tier in machine.tiers
    ]
    machine = replace(machine, tiers=tuple(tiers))
    if len(plan.stays) == len(trace.storages) or check_plan(plan, trace, machine):
        return None
    return trace, plan, machine


def _small_machine(rng: Random) -> Machine:
    """Links between all tiers. Some share a port, some slow operations down, and some are slower beside them."""
    tiers = (
        Tier("dram", InPlace.ALL, bytes_per_s=rng.choice([None, 10**9])),
        Tier("cxl", rng.choice(list(InPlace)), None, 5 * 10**8, rng.choice([None, 25 * 10**7])),
        Tier("file", InPlace.NOTHING),
    )
    rates = rng.choices(RATES, k=2)  # away from the first tier, and towards it
    links = []
    for source, target in permutations(TIERS, 2):
        rate = rng.choice([rates[TIERS.index(source) > TIERS.index(target)], rng.choice(RATES)])
        port, slows = rng.choice(["bus", "bus", None]), rng.choice([0.0, 0.25])
        beside = rng.choice([None, None, rate // 2])
        links.append(Link(source, target, rate, rng.choice([0, 5, 16]), port, slows, beside_bytes_per_s=beside))
    groups = (LinkGroup("bus", rng.choice(RATES), sharing=rng.choice(list(Sharing))),)
    return Machine("made up", Origin.ASSUMED, tiers, tuple(links), groups, rng.choice([None, 1, 2, 3]))


def _moving(rng: Random) -> tuple[Trace, Plan]:
    """Storages that leave the first tier between uses, perhaps over both slower tiers, in windows of any length."""
    slower, most = rng.choice([(TIERS[1:], 7), (("file",), 10)])  # the latter queue on one link
    n_ticks = rng.randint(4, 9)
    longest_ns = rng.choice([10, 30, 90])
    times = [rng.randint(0, longest_ns) for _ in range(n_ticks)]
    storages: list[Storage] = []
    accesses: list[tuple[int, int, int]] = []
    stays: list[Stay] = []
    for number in range(rng.randint(3, most)):
        nbytes, begin = rng.randint(1, 6), rng.randint(0, n_ticks - 1)
        persistent = rng.random() < 0.5
        if persistent:
            storages.append(parameter(nbytes, n_ticks))
            end = begin + n_ticks
        else:
            end = begin + rng.randint(2, n_ticks + 3)
            storages.append(Storage(nbytes, StorageKind.ACTIVATION, begin, end))
        young = min(end, begin + n_ticks)  # until then: afterwards its commands are those of its successor
        used = {begin, *(rng.randint(begin, young - 1) for _ in range(rng.randint(1, 2)))}
        modes = {use: rng.choice([R, R, W, R | W]) for use in sorted(used)}
        accesses += [(number, use % n_ticks if persistent else use, mode) for use, mode in modes.items()]
        for tier, start, valid_from, stop in _walk(rng, modes, young, end, persistent, slower):
            if start <= valid_from < stop:
                back = start // n_ticks * n_ticks if persistent else 0
                stays.append(Stay(number, tier, start - back, valid_from - back, stop - back))
    trace = step(times, storages, accesses)
    return trace, plan_of(trace, stays)


def _walk(
    rng: Random, modes: dict[int, int], young: int, end: int, persistent: bool, slower: tuple[str, ...]
) -> list[tuple[str, int, int, int]]:
    """(tier, start, valid from, stop) of one storage; not all keep every promise."""
    uses = sorted(modes)
    fast, away, rows = (uses[0], uses[0]), None, []
    for use, until in zip(uses, [*uses[1:], end], strict=True):
        if away is not None and modes[use] & W:
            rows.append((*away, use))
            away = None
        if until - use < 2 or rng.random() < 0.1 or (until == end and not persistent):
            continue
        evict = rng.randint(use + 1, until)
        evicted = rng.randint(evict, until) if away is None else evict
        fetch = rng.randint(evicted, until)
        fetched = rng.randint(fetch, until)
        if evict == fetched or fetched >= end or fetched <= fast[1]:
            continue
        away = away or (rng.choice(slower), evict, evicted)
        if away[0] == "cxl" and evicted >= away[2] and fetch - evicted >= 2 and rng.random() < 0.5:
            deeper = rng.randint(evicted, fetch - 1)
            deep = rng.randint(max(deeper, away[2]) + 1, max(fetch, away[2] + 1))
            rows.append((*away, rng.randint(deep, max(deep, fetch))))
            away = ("file", deeper, deep)
        low = max(evicted, fast[1] + 1)
        rows.append(("dram", *fast, rng.randint(low, max(fetch, low))))
        fast = (fetch, fetched)
        if fetched > away[2] and rng.random() < 0.5:
            rows.append((*away, rng.randint(fetched, until)))
            away = None
    if young < end and away is None and rng.random() < 0.5:
        evict = rng.randint(uses[-1] + 1, young)
        evicted = rng.randint(evict, young)
        return [*rows, ("dram", *fast, evicted), (rng.choice(slower), evict, evicted, end)]
    rows.append(("dram", *fast, end))
    return [*rows, (*away, end)] if away else rows
