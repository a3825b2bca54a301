"""Chooses what is made anew instead of moved (``ir.remakes``), at a rate of exchange between two kinds of time.

Copies take their links' time, and what is made anew takes compute time. At a *rate*, a ns of copies is worth so many ns
of compute: 0 where no copy is waited for, and much where links are all that a step waits for. Then each interval that
can be remade costs the lesser of both, and the covering problem of ``choice`` says which intervals go at all. Of those,
the ones that are cheaper to make anew are remade. An input that is gone is made anew early, for the one that needs it.
An operation needs its inputs at once, so at each tick as many are remade as the budget has room for.

Left out: what of the inputs would have to be there longer because of that.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.occupancy import paged_sizes
from ebbtide.ir.plan import Stay
from ebbtide.ir.remakes import Chosen, Remakes, remakes_of
from ebbtide.ir.trace import Trace
from ebbtide.planners.search.choice import Demand, choose_rows
from ebbtide.planners.search.idle_table import remake_rows
from ebbtide.planners.search.problem import Problem
from ebbtide.planners.search.timing import Headroom

_LOST = 0.25
"""The share of a remake's relief that may be lost where its inputs are made early, in bytes and ticks."""


@dataclass(frozen=True, slots=True, eq=False)
class Remaking:
    """The remakes of a step, for the search. ``row`` is each one's interval in the problem's table, ``pieces`` are the
    remakes of its storage's pieces."""

    problem: Problem
    trace: Trace
    remakes: Remakes
    pieces: list[tuple[int, ...]]
    row: Ints
    budget_bytes: int

    @staticmethod
    def of(problem: Problem, trace: Trace, budget_bytes: int) -> "Remaking | None":
        """``problem`` is that of the step if nothing repeats. Returns None where nothing can be remade."""
        remakes, machine = remakes_of(trace), problem.machine
        if not len(remakes) or any(tier.in_place.reads for tier in machine.tiers[1:]):
            return None
        row = remake_rows(trace, machine.exclusive, problem.page_bytes)
        return Remaking(problem, trace, remakes, remakes.pieces(), row, budget_bytes)

    def wanted_at(self, rate: float, price: float = 0.0) -> Ints:
        """Return the remakes that the best choice at this rate would have, those that save the most first.

        A byte that is written to any tier costs ``price`` ns on top.
        """
        problem, idle = self.problem, self.problem.idle
        nbytes = np.zeros(len(idle.dirty))
        nbytes[idle.group] = idle.nbytes
        fetch, write = problem.fetch_cost * rate, problem.write_cost * rate + price * np.where(idle.dirty, nbytes, 0)
        anew = np.full(len(idle), np.inf)
        anew[self.row] = self.remakes.time_ns
        cheaper = anew < fetch + write[idle.group]
        if not cheaper.any():
            return np.empty(0, dtype=np.int64)
        demand = Demand(idle.after + 1, idle.until, problem.live - self.budget_bytes)
        cost = np.where(cheaper, anew, fetch)
        group = np.where(cheaper, len(write) + np.arange(len(idle)), idle.group)
        write_cost = np.concatenate((write, np.zeros(len(idle))))
        chosen = choose_rows(demand, demand, idle.paged_bytes, cost, group, write_cost)
        if chosen is None:
            return np.empty(0, dtype=np.int64)
        rows = np.flatnonzero((chosen & cheaper)[self.row])
        saved = (fetch + write[idle.group] - anew)[self.row[rows]]
        return rows[np.argsort(-saved, kind="stable")]

    def possible(self, wanted: Ints, early: bool) -> Chosen:
        """Return as many of the ``wanted`` remakes as can be made together, with inputs that are made ``early`` or not.

        A storage in pieces is remade if at least half of them are wanted.
        """
        chosen, is_wanted = Choosing(self, _LOST if early else 0.0), set(wanted.tolist())
        for row in wanted.tolist():
            pieces = self.pieces[row]
            if 2 * len(is_wanted.intersection(pieces)) >= len(pieces):
                chosen.add(row)
        return tuple(sorted(chosen.until.items()))

    def without_unneeded(self, chosen: Chosen, stays: Sequence[Stay], free: Ints) -> tuple[Chosen, tuple[Stay, ...]]:
        """Let stay what a plan has room for, the dearest remakes first. Return the others, and the plan's stays.

        ``free`` is the plan's free room.
        """
        paged, remakes, headroom = self.problem.idle.paged_bytes[self.row], self.remakes, Headroom(free)
        anew, fast = set(remakes.chosen(chosen).storage.tolist()), self.problem.machine.tiers[0].name
        mine = [stay for stay in stays if stay.storage in anew and stay.tier == fast]
        ends, begins = ({(stay.storage, getattr(stay, end)): stay for stay in mine} for end in ("stop", "start"))
        instead, left = dict[Stay, Stay | None](), list[tuple[int, int]]()
        until = dict(chosen)
        for rows in sorted(
            {self.pieces[row] for row in until}, key=lambda rows: (-int(remakes.time_ns[list(rows)].sum()), rows)
        ):
            low, high, nbytes = int(remakes.gone[rows[0]]), until[rows[0]], int(paged[list(rows)].sum())
            numbers = remakes.storage[list(rows)].tolist()
            before = [stay for number in numbers if (stay := ends.get((number, low))) is not None]
            if len(before) < len(rows) or not headroom.has_room(low, high, nbytes):
                left += [(row, high) for row in rows]
                continue
            headroom.take(low, high, nbytes)
            for number, stay in zip(numbers, before, strict=True):
                after = begins[number, high]
                instead |= {stay: replace(stay, stop=after.stop), after: None}
        found = (instead.get(stay, stay) if stay.storage in anew else stay for stay in stays)
        return tuple(sorted(left)), tuple(stay for stay in found if stay is not None)


class Choosing:
    """Remakes that are possible together, one added after the other, each with its other pieces. ``until`` has the tick
    of each row. ``lost`` is the share of a remake's relief that inputs made early may take."""

    def __init__(self, remaking: Remaking, lost: float) -> None:
        self.lost, remakes = lost, remaking.remakes
        self.storage: list[int] = remakes.storage.tolist()
        self.gone: list[int] = remakes.gone.tolist()
        self.latest: list[int] = remakes.until.tolist()
        self.inputs, self.pieces = remakes.inputs, remaking.pieces
        self.nbytes: list[int] = remaking.trace.storages.nbytes[remakes.storage].tolist()
        self.until = dict[int, int]()
        self.row_of = dict[int, int]()  # by storage
        self.readers: dict[int, list[int]] = defaultdict(list)  # by storage, the rows that have it as an input
        self.at_ticks = _RoomAtTicks(remaking)

    def add(self, row: int) -> None:
        """Add a remake if that is possible, at the last tick at which its storage may be made."""
        storage = self.storage[row]
        if storage in self.row_of:
            return
        read_at = (self.until[reader] for one in self.pieces[row] for reader in self.readers[self.storage[one]])
        until = min((tick for tick in read_at if self.gone[row] <= tick), default=self.latest[row])
        until = min(until, self.latest[row])
        early = dict[int, None]()
        if not self._can_be_made(row, until, early) or not self._pays(row, until, early):
            return
        if not self.at_ticks.take(list(early), until):
            return
        self.row_of |= {self.storage[one]: one for one in self.pieces[row]}
        for number in self.inputs[row]:
            self.readers[number].append(row)
        self.until |= dict.fromkeys(early, until)

    def _pays(self, row: int, tick: int, early: Iterable[int]) -> bool:
        """Say whether a remake gives much more relief than is lost where inputs are made early for it."""
        lost: int = sum(self.nbytes[one] * (self.until[one] - tick) for one in early if one in self.until)
        return lost <= self.lost * sum(self.nbytes[one] for one in self.pieces[row]) * (tick - self.gone[row])

    def _can_be_made(self, row: int, tick: int, found: dict[int, None]) -> bool:
        """Say whether a storage can be made at a tick. ``found`` gets its rows, and those of inputs that are early
        then."""
        waiting = [row]  # thousands may be made of each other, and a stack is short
        while waiting:
            row = waiting.pop()
            found |= dict.fromkeys(self.pieces[row])
            if tick <= self.gone[row]:
                return False
            others = (self.row_of[number] for number in self.inputs[row] if number in self.row_of)
            waiting += (one for one in others if self.gone[one] <= tick < self.until[one] and one not in found)
        return True


class _RoomAtTicks:
    """What operations need at once at the ticks at which something is made anew."""

    def __init__(self, remaking: Remaking) -> None:
        self.remakes, problem = remaking.remakes, remaking.problem
        self.budget_bytes, self.needed = remaking.budget_bytes, problem.needed
        self.paged = paged_sizes(problem.trace, problem.page_bytes)
        self.page_bytes, self.accesses = problem.page_bytes, remaking.trace.accesses
        self.taken = dict[int, tuple[set[int], int]]()

    def take(self, rows: Sequence[int], tick: int) -> bool:
        """Note remakes at a tick, if there is room for what they read beside all else that the tick needs."""
        known, most = self.taken.get(tick, (set(), 0))
        read = {number for row in rows for number in self.remakes.inputs[row]}
        others = (number for number in read if tick not in self.accesses.tick[self.accesses.of(number)])
        inputs = known.union(others)
        most = max(most, *(int(self.remakes.scratch_bytes[row]) for row in rows))
        unit = self.page_bytes(most) if most else 1
        needed = int(self.needed[tick]) + sum(int(self.paged[number]) for number in inputs) + -(-most // unit) * unit
        if needed > self.budget_bytes:
            return False
        self.taken[tick] = (inputs, most)
        return True
