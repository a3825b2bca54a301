"""Scratch that one operation allocates after it freed other: whose room it lies in, against a naive count."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.analysis.memory import memory_of, peak_of
from ebbtide.capture.recording import capture
from ebbtide.ir.occupancy import arena_pages, exact, live_bytes, needed_bytes
from ebbtide.ir.recording import Recording
from ebbtide.ir.trace import Trace
from ebbtide.units import KIB, round_up
from tests.helpers import make_recording

Event = tuple[bool, int, int]  # an allocation?, thread, bytes; a free takes the thread's (bytes mod n)-th live one


def recording(ticks: Sequence[list[Event]]) -> tuple[Recording, list[list[list[int]]]]:
    """Ticks with these events on two threads, the second outside of operators, as OpenMP's are.

    And by tick and event, what is there after it: bytes of each.
    """
    rows: list[dict[str, int]] = []
    live: list[dict[str, int]] = []
    levels: list[list[list[int]]] = [[] for _ in ticks]
    clock = 0
    for tick, (is_birth, thread, nbytes) in ((tick, event) for tick, events in enumerate(ticks) for event in events):
        mine = [row for row in live if row["thread"] == thread]
        if is_birth:
            row = {"serial": len(rows) + 1, "thread": thread, "nbytes": nbytes, "allocation": -1, "birth": tick}
            if thread == 0:
                row["allocation"], clock = clock, clock + 1
            rows.append(row)
            live.append(row)
        elif mine:
            gone = mine[nbytes % len(mine)]
            gone |= {"freed_after": len(rows), "death": tick + 1}
            live.remove(gone)
        levels[tick].append([row["nbytes"] for row in live])
    for row in live:
        row |= {"freed_after": len(rows), "death": len(ticks)}

    names = ("serial", "thread", "nbytes", "allocation", "freed_after", "birth", "death")
    found: dict[str, Any] = {name: [row[name] for row in rows] for name in names}
    found |= {"scratch": [row["thread"] == 0 for row in rows], "kind": [4] * len(rows)}
    begins = [5 * tick for tick in range(len(ticks))]
    return make_recording.recording(tick_begin_ns=begins, time_ns=5 * len(ticks), **found), levels


def trace_of(*ticks: list[Event]) -> tuple[Trace, list[list[list[int]]]]:
    columns, levels = recording(ticks)
    return capture(columns, "scratch", lambda *_: 0).trace, levels


EVENTS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 1), st.sampled_from([64, 100, 128, 512, 2048, 2500, 5000])).map(
        lambda row: (row[0], row[1], row[2] * KIB)
    ),
    min_size=1,
    max_size=40,
)
TICKS = st.lists(EVENTS, min_size=1, max_size=3).filter(
    lambda ticks: any(is_birth for events in ticks for is_birth, _, _ in events)
)


@given(TICKS)
def test_room_is_no_less_than_what_is_there_and_no_more_than_all(ticks: list[list[Event]]) -> None:
    trace, levels = trace_of(*ticks)
    for pages in (exact, arena_pages):
        size = [round_up(row.nbytes, pages(row.nbytes)) for row in trace.storages]
        counted = live_bytes(trace, pages)
        for tick, there in enumerate(levels):
            most = max(sum(round_up(nbytes, pages(nbytes)) for nbytes in level) for level in there)
            alive = [row.birth <= tick < row.death for row in trace.storages]
            assert most <= counted[tick] <= sum(np.array(size)[alive])
        np.testing.assert_array_equal(needed_bytes(trace, pages), counted)


@given(TICKS)
def test_no_two_lie_in_one_room_at_once(ticks: list[list[Event]]) -> None:
    columns, _ = recording(ticks)
    found = capture(columns, "scratch", lambda *_: 0)
    row_of = {number: row for row, number in enumerate(found.numbers.tolist())}
    tenants: dict[int, list[int]] = {}
    for number, storage in enumerate(found.trace.storages):
        home = number if storage.room_of is None else storage.room_of
        tenants.setdefault(home, []).append(row_of[number])
    for rows in tenants.values():
        rows.sort(key=lambda row: int(columns.serial[row]))
        assert len({int(columns.thread[row]) for row in rows}) == 1
        for before, after in pairwise(rows):
            assert columns.freed_after[before] < columns.serial[after]


def test_what_comes_and_goes_one_after_another_counts_once() -> None:
    trace, _ = trace_of([(True, 0, 512 * KIB), (False, 0, 0)] * 100 + [(True, 1, 256 * KIB), (False, 1, 0)] * 100)
    assert live_bytes(trace)[0] == 768 * KIB
    assert sum(int(level[0]) for level in memory_of(trace).by_kind.values()) == peak_of(trace).nbytes == 768 * KIB
    assert sum(row.room_of is None for row in trace.storages) == 2


def test_what_comes_after_scratch_of_earlier_ticks_went_lies_in_its_room() -> None:
    big, small = 512 * KIB, 256 * KIB
    trace, _ = trace_of([(True, 0, big)], [(True, 0, small)], [(False, 0, 0), (True, 0, big), (True, 0, small)])
    first, _, second, third = trace.storages
    assert (second.room_of, third.room_of) == (list(trace.storages).index(first), None)
    assert live_bytes(trace).tolist() == [big, big + small, big + small + small]
