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

    Storages die with their last use, or later; copies take about as long as a tick or two. Some are in pieces, of which
    one is used, or all.
    """
    n_ticks = draw(st.integers(3, most_ticks))
    sizes = st.integers(1, 4).map(lambda pages: PAGE * pages)
    rows = [parameter(draw(sizes), n_ticks) for _ in range(draw(st.integers(0, parameters)))]
    uses: dict[tuple[int, int], int] = {}
    ticks = []

    def used(number: int) -> list[int]:
        pieces = [
            other
            for other, row in enumerate(rows)
            if row.piece_of is not None and row.piece_of == rows[number].piece_of
        ]
        return pieces if pieces and draw(st.booleans()) else [number]

    for tick in range(n_ticks):
        known = list(range(len(rows)))
        does = draw(st.sampled_from(["makes", "makes", "makes", "changes", "reads", "odd"]))
        reads = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
        uses |= {(piece, tick): R for storage in reads for piece in used(storage)}
        operator, repeats = f"aten::{does}", draw(st.sampled_from([True, True, True, False]))
        if does == "makes":
            pieces = draw(st.sampled_from([1, 1, 2, 3]))
            made = Storage(
                draw(sizes), StorageKind.ACTIVATION, tick, tick + 1, piece_of=len(rows) if pieces > 1 else None
            )
            uses |= {(len(rows) + at, tick): W for at in range(pieces)}
            rows += [replace(made, allocation=at, maker=tick) for at in range(pieces)]
        elif does in ("changes", "odd") and known:
            mode = R | W if does == "changes" else W
            uses |= {(piece, tick): mode for piece in used(draw(st.sampled_from(known)))}
            operator, repeats = f"aten::{does}_", repeats and does == "changes"
        ticks.append(Tick(draw(st.integers(0, 20_000)), operator, repeats=repeats))
    last = dict[int, int]()  # by storage, or its first piece
    for number, tick in uses:
        whole = number if rows[number].piece_of is None else rows[number].piece_of
        last[whole] = max(last.get(whole, 0), tick)
    death = {whole: draw(st.integers(tick + 1, n_ticks)) for whole, tick in last.items() if not rows[whole].persistent}
    lives = [
        row if row.persistent else replace(row, death=death[number if row.piece_of is None else row.piece_of])
        for number, row in enumerate(rows)
    ]
    return step_of(ticks, lives, [(storage, tick, mode) for (storage, tick), mode in uses.items()])


def possible_together(trace: Trace, random: Random) -> Chosen:
    """Some of a step's remakes, in any order of preference; some of them early."""
    remakes, chosen = remakes_of(trace), list[tuple[int, int]]()
    pieces = remakes.pieces()
    for row in random.sample(range(len(remakes)), len(remakes)):
        gone, until = int(remakes.gone[row]), int(remakes.until[row])
        tick = random.choice([until, random.randint(gone + 1, until)])
        more = [(one, tick) for one in pieces[row]]
        if random.random() < 0.7 and together(remakes.chosen((*chosen, *more))):
            chosen += more
    return tuple(sorted(chosen))


def halved(trace: Trace) -> Trace:
    """The step, in which what it makes is in two pieces each."""
    rows, pieces = list[Storage](), dict[int, list[int]]()
    for number, row in enumerate(trace.storages):
        first, count = len(rows), 1 if row.persistent else 2
        pieces[number] = list(range(first, first + count))
        for at in range(count):
            place = None if row.allocation is None else count * row.allocation + at
            piece_of = None if row.persistent else first
            rows.append(replace(row, nbytes=row.nbytes // count, allocation=place, piece_of=piece_of))
    uses = [(piece, use.tick, use.mode) for use in trace.accesses for piece in pieces[use.storage]]
    return replace(step_of(list(trace.ticks), rows, uses), name=trace.name)


def repeating(trace: Trace) -> Trace:
    """The step, whose forward pass repeats, with a place on the clock for all that it makes."""
    rows, forward = trace.storages, np.arange(len(trace.ticks)) < len(trace.ticks) * 2 // 5
    places, makers = np.where(rows.persistent, -1, (np.arange(len(rows)), rows.birth))
    storages = replace(rows, allocation=places, maker=makers)
    return replace(trace, ticks=replace(trace.ticks, repeats=forward), storages=storages)
