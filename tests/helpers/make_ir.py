"""Random traces, plans that keep every promise, and timelines, for the tests of ``ebbtide.ir``."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Tier
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.timeline import COMPUTE_LANE, Level, Span, SpanKind, Timeline
from ebbtide.ir.trace import Access, Accesses, Phase, Storage, StorageKind, Storages, Tick, Ticks, Trace

R, W = Access.READ, Access.WRITE

TIERS = ("dram", "cxl", "file")
MACHINE = Machine(
    "made up",
    Origin.ASSUMED,
    (Tier("dram", InPlace.ALL), Tier("cxl", InPlace.READS, 10**6, 10**9), Tier("file", InPlace.NOTHING)),
    tuple(
        Link(source, target, 10**9, 1000, "all" if source == "dram" else None, 0.05, beside_bytes_per_s=10**8)
        for source in TIERS
        for target in TIERS
        if source != target
    ),
    (LinkGroup("all", 2 * 10**9),),
)


PACKING = replace(MACHINE, tiers=(MACHINE.tiers[0], Tier("cxl", InPlace.NOTHING, 10**6, packs=True), MACHINE.tiers[2]))


def shrunk(trace: Trace, packed: Sequence[int | None]) -> Trace:
    """The same, whose storages shrink to so many bytes at most, in turn."""
    sizes = (packed[number % len(packed)] for number in range(len(trace.storages)))
    storages = (
        replace(row, packed_bytes=None if size is None else min(size, row.nbytes))
        for row, size in zip(trace.storages, sizes, strict=True)
    )
    return replace(trace, storages=Storages.from_rows(storages))


def trace_of(n_ticks: int, storages: Sequence[Storage], accesses: Sequence[tuple[int, int, int]]) -> Trace:
    """``accesses`` are (storage, tick, mode) in any order; tick t takes 10 * (t + 1) ns."""
    phases = tuple(Phase)
    ticks = tuple(
        Tick(10 * (tick + 1), f"op{tick % 3}", f"layer{tick % 2}", tick, 2 * tick, phases[tick % 4], tick % 3)
        for tick in range(n_ticks)
    )
    columns = np.array(sorted(accesses), dtype=np.int64).reshape(-1, 3).T
    return Trace("made up", Origin.ASSUMED, Ticks.from_rows(ticks), Storages.from_rows(storages), Accesses(*columns))


def plan_of(trace: Trace, stays: Sequence[Stay]) -> Plan:
    return Plan("by hand", PlanStatus.FEASIBLE, trace.signature(), 10**9, 2000, 1000, 17, tuple(stays))


@st.composite
def traces(draw: st.DrawFn, longest_life: int = 2) -> Trace:
    """Up to eight ticks and four storages, which live for up to ``longest_life`` steps."""
    n_ticks = draw(st.integers(1, 8))
    storages: list[Storage] = []
    accesses: list[tuple[int, int, int]] = []
    for number in range(draw(st.integers(0, 4))):
        nbytes, kind = draw(st.integers(1, 6)), draw(st.sampled_from(StorageKind))
        if draw(st.booleans()):
            storages.append(Storage(nbytes, kind, 0, n_ticks, "weights", persistent=True))
        else:
            birth = draw(st.integers(0, n_ticks - 1))
            death = birth + draw(st.integers(1, longest_life * n_ticks))
            clock = draw(st.sampled_from([None, number]))
            scratch = draw(st.sampled_from([False, False, False, True]))
            storages.append(
                Storage(nbytes, kind, birth, death, f"block{number}", False, scratch, clock, line=f"f.py:{number}")
            )
        life = st.integers(storages[-1].birth, storages[-1].death - 1)
        used = draw(st.dictionaries(life, st.sampled_from([R, W, R | W]), max_size=4))
        accesses += [(number, tick, int(mode)) for tick, mode in used.items()]
    return trace_of(n_ticks, storages, accesses)


@st.composite
def planned(draw: st.DrawFn, longest_life: int = 2) -> tuple[Trace, Plan]:
    """A trace and a plan for it that keeps every promise, with replicas, and copies of any window."""
    trace = draw(traces(longest_life))
    numbers = range(len(trace.storages))
    return trace, plan_of(trace, [Stay(number, *row) for number in numbers for row in _history(draw, trace, number)])


def _history(draw: st.DrawFn, trace: Trace, number: int) -> list[tuple[str, int, int, int]]:
    """(tier, start, valid_from, stop) of one storage: on dram when used, between uses perhaps elsewhere."""
    storage, n_ticks = trace.storages[number], len(trace.ticks)
    rows = trace.accesses.of(number)
    modes = dict(zip(trace.accesses.tick[rows].tolist(), trace.accesses.mode[rows].tolist(), strict=True))
    if storage.persistent and not modes:
        return [(draw(st.sampled_from(TIERS)), 0, 0, n_ticks)]
    begin = min(modes) if storage.persistent else storage.birth
    end = begin + n_ticks if storage.persistent else storage.death
    if storage.scratch:
        return [("dram", begin, begin, end)]
    uses = sorted({begin, *modes})
    fast, away, done = (begin, begin), None, []
    for use, until in zip(uses, [*uses[1:], end - 1], strict=True):
        if away is not None and modes.get(use, 0) & W:
            done.append((*away, use))
            away = None
        if until <= use or draw(st.booleans()):
            continue
        evict = draw(st.integers(use + 1, until))
        evicted = draw(st.integers(evict, until)) if away is None else evict
        fetch = draw(st.integers(evicted, until))
        fetched = draw(st.integers(fetch, until))
        if fetch == fetched == evicted:
            continue
        away = away or (draw(st.sampled_from(TIERS[1:])), evict, evicted)
        done.append(("dram", *fast, draw(st.integers(evicted, fetch))))
        fast = (fetch, fetched)
        if draw(st.booleans()):
            done.append((*away, draw(st.integers(max(fetched, away[2] + 1), until))))
            away = None
    done.append(("dram", *fast, end))
    done += [(*away, end)] if away else []
    if storage.persistent:
        done = [(tier, *(tick - start // n_ticks * n_ticks for tick in (start, *rest))) for tier, start, *rest in done]
    return done


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    spans, now = [], 0
    for tick in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(SpanKind))
        lane = "dram->file" if kind in (SpanKind.EVICT, SpanKind.FETCH) else COMPUTE_LANE
        stop = now + draw(st.integers(0, 100))
        spans.append(Span(lane, kind, now, stop, draw(st.sampled_from([None, tick])), None, tick, f"op{tick}"))
        now = stop
    levels = [Level(draw(st.sampled_from(TIERS)), 10 * at, draw(st.integers(0, 99))) for at in range(now % 3)]
    return Timeline("ebbtide", draw(st.sampled_from(Origin)), now, tuple(spans), tuple(levels))
