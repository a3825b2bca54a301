"""``chen``: what lies within a segment of the forward pass is made anew for the backward pass, and its ends stay.

After Chen et al. (2016, "Training Deep Nets with Sublinear Memory Cost"). What the backward pass needs is cut, in the
order of birth, into segments of about B bytes (algorithm 3). The last of each stays, and so does all that another
segment is made from. The rest goes after its last use forward. All of a segment is made anew when its first is needed.
B begins with the n-th root's share, sqrt(n) segments of n. It becomes sqrt(x y), for x bytes that stay and y bytes of
the largest segment. Of sizes around it, the least peak wins, whatever the budget.

The paper moves nothing. Here LRU moves what then exceeds the budget. A step that fits is left as it is. Left out:
recursion into segments, and storages of less than 64 KiB, for which whole operators would run. What several remakes are
made from and nobody keeps is made for each of them.
"""

from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.remakes import Chosen, Remakes, remakes_of, split
from ebbtide.ir.trace import Phase, Trace
from ebbtide.planners.base import page_size_of
from ebbtide.planners.published.pressure import SMALLEST_REMADE, with_moves

_AROUND = (0.5**0.5, 0.5**0.25, 1.0, 2**0.25, 2**0.5)
"""The paper looks for B within a square root of two of the first."""


def chen(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Make the plan. Raises InfeasibleBudgetError if the budget is too small even with all away that may leave.

    Raises PlanError if the slow tiers have no room.
    """
    began = perf_counter_ns()
    pages = page_size_of(machine)
    made = split(trace, ())
    if peak(live_bytes(trace, pages)) > budget_bytes:
        ways = [made, *(split(trace, chosen) for chosen in _ways(trace))]
        made = min(ways, key=lambda way: peak(live_bytes(way.trace, pages)))
    return with_moves("chen", made, trace, machine, budget_bytes, began)


@dataclass(frozen=True, slots=True)
class _Saved:
    """A storage that the backward pass needs, idle during ticks [gone, until). ``rows`` are its pieces' remakes."""

    rows: tuple[int, ...]
    gone: int
    until: int
    nbytes: int


def _ways(trace: Trace) -> list[Chosen]:
    """Return the remakes of segments of several sizes."""
    remakes = remakes_of(trace)
    saved = _saved(trace, remakes)
    if not saved:
        return []
    inside = _segments(saved, sum(one.nbytes for one in saved) / len(saved) ** 0.5)
    held = sum(one.nbytes for one in saved) - sum(one.nbytes for segment in inside for one in segment)
    largest = max(sum(one.nbytes for one in segment) for segment in inside)
    return [_possible(remakes, _segments(saved, factor * (held * largest) ** 0.5)) for factor in _AROUND]


def _saved(trace: Trace, remakes: Remakes) -> list[_Saved]:
    """Return what can be made anew and is idle from the forward to the backward pass, in the order of birth."""
    phase, nbytes, pieces = trace.ticks.phase, trace.storages.nbytes, remakes.pieces()
    across = (phase[remakes.gone - 1] == Phase.FORWARD) & (phase[remakes.until] == Phase.BACKWARD)
    found = dict[int, _Saved]()  # by storage, or its first piece
    for row in np.flatnonzero(across)[np.argsort(remakes.operator[across], kind="stable")].tolist():
        rows = pieces[row]
        numbers = remakes.storage[list(rows)]
        if (size := int(nbytes[numbers].sum())) >= SMALLEST_REMADE:
            found.setdefault(int(numbers[0]), _Saved(rows, int(remakes.gone[row]), int(remakes.until[row]), size))
    return list(found.values())


def _segments(saved: list[_Saved], nbytes: float) -> list[list[_Saved]]:
    """Cut what is saved where more than ``nbytes`` have come together. Return each segment without its end."""
    found, held = [list[_Saved]()], 0
    for one in saved:
        held += one.nbytes
        if held > nbytes:
            found.append([])
            held = 0
        else:
            found[-1].append(one)
    return found


def _possible(remakes: Remakes, segments: list[list[_Saved]]) -> Chosen:
    """Return the remakes of these segments without what others are made from, or what would not be gone by then."""
    while True:
        ticks = [min((one.until for one in segment), default=0) for segment in segments]
        anew = {
            int(remakes.storage[row]): (one, tick)
            for segment, tick in zip(segments, ticks, strict=True)
            for one in segment
            for row in one.rows
        }
        stay = {one for one, tick in anew.values() if one.gone >= tick}
        for one, tick in anew.values():
            for number in (number for row in one.rows for number in remakes.inputs[row] if number in anew):
                source, made_at = anew[number]
                if source.gone <= tick < made_at:
                    stay.add(source)
        if not stay:
            return tuple(sorted({(row, tick) for one, tick in anew.values() for row in one.rows}))
        segments = [[one for one in segment if one not in stay] for segment in segments]
