"""Random steps whose operators repeat, and remakes of theirs that are possible together."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import strategies as st

from ebbtide.ir.base import Origin
from ebbtide.ir.remakes import Chosen, remakes_of, together
from ebbtide.ir.trace import Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace
from tests.helpers.make_steps import PAGE, R, W, parameter


def step_of(ticks: Sequence[Tick], storages: Sequence[Storage], uses: Sequence[tuple[int, int, int]]) -> Trace:
    """``uses`` are (storage, tick, mode) in any order."""
    columns = np.array(sorted(uses), dtype=np.int64).reshape(-1, 3).T
    return Trace("made up", Origin.ASSUMED, Ticks.from_rows(ticks), Storages.from_rows(storages), Accesses(*columns))


@st.composite
def made_steps(draw: st.DrawFn, most_ticks: int = 14, parameters: int = 2) -> Trace:
    """Each operator makes a storage of others, changes one in place, or does something odd that does not repeat.

    Storages die with their last use, or later; copies take about as long as a tick or two.
    """
    n_ticks = draw(st.integers(3, most_ticks))
    sizes = st.integers(1, 4).map(lambda pages: PAGE * pages)
    rows = [parameter(draw(sizes), n_ticks) for _ in range(draw(st.integers(0, parameters)))]
    uses: dict[tuple[int, int], int] = {}
    ticks = []
    for tick in range(n_ticks):
        known = list(range(len(rows)))
        does = draw(st.sampled_from(["makes", "makes", "makes", "changes", "reads", "odd"]))
        reads = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
        uses |= {(storage, tick): R for storage in reads}
        operator, repeats = f"aten::{does}", draw(st.sampled_from([True, True, True, False]))
        if does == "makes":
            uses[len(rows), tick] = W
            rows.append(Storage(draw(sizes), StorageKind.ACTIVATION, tick, tick + 1, allocation=0))
        elif does in ("changes", "odd") and known:
            uses[draw(st.sampled_from(known)), tick] = R | W if does == "changes" else W
            operator, repeats = f"aten::{does}_", repeats and does == "changes"
        ticks.append(Tick(draw(st.integers(0, 20_000)), operator, repeats=repeats))
    last = dict(sorted(uses))
    lives = [
        row if row.persistent else replace(row, death=draw(st.integers(last[number] + 1, n_ticks)))
        for number, row in enumerate(rows)
    ]
    return step_of(ticks, lives, [(storage, tick, mode) for (storage, tick), mode in uses.items()])


def possible_together(trace: Trace, random: Random) -> Chosen:
    """Some of a step's remakes, in any order of preference; some of them early."""
    remakes, chosen = remakes_of(trace), list[tuple[int, int]]()
    for row in random.sample(range(len(remakes)), len(remakes)):
        gone, until = int(remakes.gone[row]), int(remakes.until[row])
        one = (row, random.choice([until, random.randint(gone + 1, until)]))
        if random.random() < 0.7 and together(remakes.chosen((*chosen, one))):
            chosen.append(one)
    return tuple(sorted(chosen))


def repeating(trace: Trace) -> Trace:
    """The step, whose forward pass repeats, with a place on the clock for all that it makes."""
    rows, forward = trace.storages, np.arange(len(trace.ticks)) < len(trace.ticks) * 2 // 5
    places = np.where(rows.persistent, -1, np.arange(len(rows)))
    return replace(trace, ticks=replace(trace.ticks, repeats=forward), storages=replace(rows, allocation=places))
