"""Scratch that one operation allocates after it freed other: whose room it lies in, against a naive count."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.analysis.memory import memory_of, peak_of
from ebbtide.capture.recording import captured
from ebbtide.ir.occupancy import arena_pages, exact, live_bytes, needed_bytes
from ebbtide.ir.trace import Trace
from ebbtide.units import KIB, round_up

Event = tuple[bool, int, int]  # an allocation?, thread, bytes; a free takes the thread's (bytes mod n)-th live one


def recording(events: list[Event]) -> tuple[dict[str, Any], list[list[tuple[int, int]]]]:
    """One tick with these events on two threads; and by event, what is there after it: (thread, bytes)."""
    rows: list[dict[str, int]] = []
    live: list[dict[str, int]] = []
    levels = []
    clock = 0
    for is_birth, thread, nbytes in events:
        mine = [row for row in live if row["thread"] == thread]
        if is_birth:
            row = {"serial": len(rows) + 1, "thread": thread, "nbytes": nbytes, "allocation": -1, "freed_after": 0}
            if thread == 0:
                row["allocation"], clock = clock, clock + 1
            rows.append(row)
            live.append(row)
        elif mine:
            gone = mine[nbytes % len(mine)]
            gone["freed_after"] = len(rows)
            live.remove(gone)
        levels.append([(row["thread"], row["nbytes"]) for row in live])
    for row in live:
        row["freed_after"] = len(rows)

    def column(name: str) -> Any:
        return np.array([row[name] for row in rows], dtype=np.int64)

    n, nothing = len(rows), np.zeros(0, dtype=np.int64)
    found: dict[str, Any] = {name: column(name) for name in ("serial", "thread", "nbytes", "allocation", "freed_after")}
    found |= {"birth": np.zeros(n, dtype=np.int64), "death": np.ones(n, dtype=np.int64)}
    found |= {"scratch": np.ones(n, dtype=np.int64), "kind": np.full(n, 4), "module": np.zeros(n, dtype=np.int64)}
    found |= {f"use_{name}": nothing for name in ("storage", "first", "last", "access", "moved")}
    found |= {f"tick_{name}": np.zeros(2, dtype=np.int64) for name in ("name", "module", "arguments", "depth", "phase")}
    found |= {"tick_begin_ns": np.array([0, 5]), "tick_stalled_ns": np.zeros(2, dtype=np.int64), "names": [""]}
    return found | {"time_ns": 10, "stalled_ns": 0}, levels


def trace_of(events: list[Event]) -> tuple[Trace, list[list[tuple[int, int]]]]:
    columns, levels = recording(events)
    return captured(columns, "scratch", lambda *_: 0).trace, levels


EVENTS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 1), st.sampled_from([64, 100, 128, 512, 2048, 2500, 5000])).map(
        lambda row: (row[0], row[1], row[2] * KIB)
    ),
    min_size=1,
    max_size=40,
).filter(lambda rows: any(is_birth for is_birth, _, _ in rows))


@given(EVENTS)
def test_room_is_no_less_than_what_is_there_and_no_more_than_all(events: list[Event]) -> None:
    trace, levels = trace_of(events)
    for pages in (exact, arena_pages):
        size = [round_up(row.nbytes, pages(row.nbytes)) for row in trace.storages]
        most = max(sum(round_up(nbytes, pages(nbytes)) for _, nbytes in level) for level in levels)
        counted = int(live_bytes(trace, pages)[0])
        assert most <= counted <= sum(size)
        assert int(needed_bytes(trace, pages)[0]) == counted


@given(EVENTS)
def test_no_two_lie_in_one_room_at_once(events: list[Event]) -> None:
    columns, _ = recording(events)
    found = captured(columns, "scratch", lambda *_: 0)
    row_of = {number: row for row, number in found.numbers.items()}
    tenants: dict[int, list[int]] = {}
    for number, storage in enumerate(found.trace.storages):
        home = number if storage.room_of is None else storage.room_of
        tenants.setdefault(home, []).append(row_of[number])
    for rows in tenants.values():
        rows.sort(key=lambda row: int(columns["serial"][row]))
        assert len({int(columns["thread"][row]) for row in rows}) == 1
        for before, after in pairwise(rows):
            assert columns["freed_after"][before] < columns["serial"][after]


def test_what_comes_and_goes_one_after_another_counts_once() -> None:
    trace, _ = trace_of([(True, 0, 512 * KIB), (False, 0, 0)] * 100 + [(True, 1, 256 * KIB), (False, 1, 0)] * 100)
    assert live_bytes(trace)[0] == 768 * KIB
    assert sum(int(level[0]) for level in memory_of(trace).by_kind.values()) == peak_of(trace).nbytes == 768 * KIB
    assert sum(row.room_of is None for row in trace.storages) == 2
