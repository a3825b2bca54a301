"""AutoTM's integer program for one step: columns, rows, and answers as lives. ``autotm`` explains the method.

Columns are edges of the storages' networks (``autotm_flow``). Levels of the fast tier and the extra times of operations
are columns of their own. Storages that are scratch or outlive a step are fixed in the fast tier. Persistent storages
that no operation uses are fixed in the slow tier.
"""

from dataclasses import dataclass
from math import inf
from time import perf_counter

import numpy as np

from ebbtide.errors import PlanError
from ebbtide.ir.base import Floats, Ints
from ebbtide.ir.machine import InPlace, Machine
from ebbtide.ir.occupancy import levels, paged_sizes
from ebbtide.ir.plan import Stay
from ebbtide.ir.trace import Access, Trace
from ebbtide.planners.base import page_size_of
from ebbtide.planners.published.autotm_flow import Gadgets, Life, gadgets_of, gaps
from ebbtide.planners.published.solver import Outcome, Program, level_rows
from ebbtide.planners.search.make_plan import Pair
from ebbtide.simulator.step_columns import operand_bytes

_NS = 1e-6
"""Objectives are in ms, which suits the solver's tolerances."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The fixed part of a step's programs: the networks, and the level of the storages fixed in the fast tier."""

    trace: Trace
    machine: Machine
    pair: Pair
    networks: list[Gadgets]
    fixed: Ints
    stays: list[Stay]

    @property
    def in_place(self) -> InPlace:
        return self.pair.slow.in_place


def step_of(trace: Trace, machine: Machine, pair: Pair, longest: int = 0) -> Step:
    networks, fixed, stays = [], [], []
    used = set(trace.accesses.storage.tolist())
    paged = paged_sizes(trace, page_size_of(machine)).tolist()
    for number, storage in enumerate(trace.storages):
        gadgets = gadgets_of(trace, number, paged[number], machine.exclusive, longest)
        if gadgets is not None:
            networks.append(gadgets)
            continue
        homeless = storage.persistent and number not in used and not storage.scratch
        tier = pair.slow.name if homeless else pair.fast.name
        stays.append(Stay(number, tier, storage.birth, storage.birth, storage.death))
        if not homeless:
            fixed.append((storage.birth, storage.death, paged[number]))
    return Step(trace, machine, pair, networks, _levels(fixed, len(trace.ticks)), stays)


def _levels(intervals: list[tuple[int, int, int]], n_ticks: int) -> Ints:
    start, stop, nbytes = np.array(intervals, dtype=np.int64).reshape(-1, 3).T
    return levels(start, stop, nbytes, n_ticks)


def least_of(step: Step, static: bool) -> Ints:
    """Return the bytes that have to be in the fast tier at each tick, whatever is chosen."""
    needed = []
    for gadgets in step.networks:
        must = [at for at in range(len(gadgets)) if not gadgets.may_be_slow(at, step.in_place)]
        if static and must:
            needed.append((gadgets.ticks[0], gadgets.end, gadgets.paged_bytes))
        elif not static:
            needed += [(gadgets.ticks[at], gadgets.ticks[at] + 1, gadgets.paged_bytes) for at in must]
    return step.fixed + _levels(needed, len(step.trace.ticks))


class Flow:
    """The program of one step for given limits, and its answers as lives."""

    def __init__(self, step: Step, limit: Ints, static: bool) -> None:
        self.step, self.limit, self.static = step, limit, static
        self.program = Program(offset=step.trace.step_ns * _NS)
        self.columns: list[dict[tuple[int, str], int]] = []
        self.occupancy: list[tuple[int, int, int, int]] = []  # column, from tick, to tick, bytes
        self.slowed: dict[int, list[tuple[int, float]]] = {}  # tick -> (column, ms) of operands in place
        self.beside: dict[int, list[tuple[int, float]]] = {}  # tick -> (column, ms) of moves beside its operation
        self.longest: dict[int, tuple[float, float]] = {}  # tick -> ms that z_k hides of operands, and of moves
        self.gap = inf  # of the last answer: by which part of the solver's bound it lies above that
        for gadgets in step.networks:
            self.columns.append(self._choice(gadgets) if static else self._network(gadgets))
        self._operations()
        level_rows(self.program, self.occupancy, limit - step.fixed)

    def _choice(self, gadgets: Gadgets) -> dict[tuple[int, str], int]:
        """Add the columns of a static placement: x = 1 in the slow tier, 1 - x in the fast one."""
        possible = all(gadgets.may_be_slow(at, self.step.in_place) for at in range(len(gadgets)))
        slow = self.program.column(upper=float(possible))
        fast = self.program.column()
        self.program.row([(slow, 1.0), (fast, 1.0)], 1.0, 1.0)  # one tier
        self.occupancy.append((fast, gadgets.ticks[0], gadgets.end, gadgets.paged_bytes))
        for at in range(len(gadgets)):
            self._in_place(gadgets, at, slow)
        return {(0, "slow"): slow, (0, "stay_dirty"): fast}

    def _network(self, gadgets: Gadgets) -> dict[tuple[int, str], int]:
        """Add a storage's network. Columns are edges, named by the gadget that they leave. Rows are its vertices.

        The vertices are dirty, clean and slow.
        """
        program, pair = self.program, self.step.pair
        column: dict[tuple[int, str], int] = {}
        for at, mode in enumerate(gadgets.modes):
            beside = not mode
            read_ms, write_ms = (link.copy_ns(gadgets.nbytes, beside) * _NS for link in (pair.inward, pair.outward))
            dirty = not gadgets.never_written
            clean = not mode & Access.WRITE and not gadgets.exclusive
            names = [*(("stay_dirty", "write") if dirty else ()), *(("stay_clean", "drop") if clean else ())]
            for name in names:
                cost = write_ms if name == "write" and not beside else 0.0
                edge = column[at, name] = program.column(cost)
                stop = gadgets.after(at) if name.startswith("stay") else gadgets.ticks[at] + 1
                self.occupancy.append((edge, gadgets.ticks[at], stop, gadgets.paged_bytes))
                if name == "write" and beside:
                    self._move(gadgets, at, edge, write_ms)
            born = at == 0 and not gadgets.persistent
            if not born:
                edge = column[at, "read"] = program.column(0.0 if beside else read_ms)
                if beside:
                    self._move(gadgets, at, edge, read_ms)
            if gadgets.may_be_slow(at, self.step.in_place):
                column[at, "slow"] = program.column()
                self._in_place(gadgets, at, column[at, "slow"])
        self._vertices(gadgets, column)
        return column

    def _vertices(self, gadgets: Gadgets, column: dict[tuple[int, str], int]) -> None:
        """Add the vertices' rows: one unit comes to the first gadget, and as much leaves a vertex as comes in."""

        def flow(sign: float, at: int | None, *names: str) -> list[tuple[int, float]]:
            return [(column[at, name], sign) for name in names if at is not None and (at, name) in column]

        self.program.row(flow(1.0, 0, "stay_dirty", "write", "stay_clean", "drop", "slow"), 1.0, 1.0)
        for at, mode in enumerate(gadgets.modes):
            before = at - 1 if at else len(gadgets) - 1 if gadgets.persistent else None
            if before is None:
                continue
            kept = flow(1.0, before, "stay_clean") + flow(1.0, at, "read")
            dirty = flow(1.0, before, "stay_dirty") + flow(-1.0, at, "stay_dirty", "write")
            clean = flow(-1.0, at, "stay_clean", "drop")
            slow = flow(1.0, before, "write", "drop", "slow") + flow(-1.0, at, "slow", "read")
            vertices = (dirty + kept, slow) if mode & Access.WRITE or gadgets.exclusive else (dirty, clean + kept, slow)
            for entries in vertices:
                if entries:
                    self.program.row(entries, 0.0, 0.0)

    def _move(self, gadgets: Gadgets, at: int, edge: int, milliseconds: float) -> None:
        tick = gadgets.ticks[at] % len(self.step.trace.ticks)
        self.beside.setdefault(tick, []).append((edge, milliseconds))

    def _in_place(self, gadgets: Gadgets, at: int, edge: int) -> None:
        mode, tick = gadgets.modes[at], gadgets.ticks[at] % len(self.step.trace.ticks)
        if not mode:
            return
        read = gadgets.nbytes if mode & Access.READ else 0
        written = gadgets.nbytes if mode & Access.WRITE else 0
        longer = self.step.machine.in_place_ns(self.step.pair.slow.name, read, written)
        if longer:
            self.slowed.setdefault(tick, []).append((edge, longer * _NS))

    def _operations(self) -> None:
        """Add each operation's extra time: rho_k for operands in place, and z_k >= rho_k where moves go on beside
        it."""
        hidden = _hidden_ms(self.step.trace, self.step.machine)
        for tick in sorted(self.slowed.keys() | self.beside.keys()):
            operands = self.slowed.get(tick, [])
            moves = self.beside.get(tick, [])
            if not moves and not hidden[tick]:
                for edge, ms in operands:
                    self.program.cost[edge] += ms
                continue
            time_ms = int(self.step.trace.ticks.time_ns[tick]) * _NS
            self.longest[tick] = (hidden[tick], time_ms)
            z = self.program.column(1.0, float("inf"), integer=False)
            if operands:  # z_k >= sum of T[k, c] - time_k
                self.program.row([(z, 1.0), *((edge, -ms) for edge, ms in operands)], -hidden[tick])
            if moves:  # z_k >= sum of the moves beside it - time_k
                self.program.row([(z, 1.0), *((edge, -ms) for edge, ms in moves)], -time_ms)

    # ---- answers -----------------------------------------------------------------------------------------------------

    def solve(self, time_limit_s: float, known: list[Life] | None = None) -> tuple[list[Life], bool]:
        """Return lives that keep the limits, and whether they are the program's best. ``known`` is an answer to begin
        with."""
        began = perf_counter()
        relaxed = self.program.solve(time_limit_s / 2, whole=False)
        rounded = self._kept(self._rounded(relaxed.values)) if relaxed.outcome is Outcome.SOLVED else None
        found = [lives for lives in (known, rounded) if lives is not None]
        if not found and (away := self._kept(self._everything_away())) is not None:
            found.append(away)
        lives = min(found, key=self._objective, default=None)
        start = None if lives is None else self._values(lives)
        answer = self.program.solve(time_limit_s - (perf_counter() - began), start=start)
        if len(answer.values) and (better := self._kept(self._rounded(answer.values))) is not None:
            lives = better
        if lives is None:
            raise PlanError(("the solver found no placement in time: give it more time or the step a larger budget",))
        if (bound := max(relaxed.bound, answer.bound)) > 0:
            self.gap = (self.program.offset + self._objective(lives)) / bound - 1
        return lives, answer.outcome is Outcome.SOLVED

    def _objective(self, lives: list[Life]) -> float:
        """Return the objective in ms, less the offset. The answers MUST keep the limits."""
        values = self._values(lives)
        total = float(np.array(self.program.cost) @ values)
        for tick in self.beside.keys() | self.slowed.keys():
            operands = sum(ms * values[edge] for edge, ms in self.slowed.get(tick, []))
            moves = sum(ms * values[edge] for edge, ms in self.beside.get(tick, []))
            if tick in self.longest:
                hidden, time_ms = self.longest[tick]
                total += max(0.0, operands - hidden, moves - time_ms)
        return total

    def _rounded(self, values: Floats) -> list[Life]:
        lives = []
        for gadgets, column in zip(self.step.networks, self.columns, strict=True):
            if self.static:
                lives.append(Life.always(gadgets, bool(values[column[0, "slow"]] < 0.5)))
                continue
            life = Life.always(gadgets, False)
            for at in range(len(gadgets)):
                stays = sum(values[column[at, name]] for name in ("stay_dirty", "stay_clean") if (at, name) in column)
                leaves = sum(values[column[at, name]] for name in ("write", "drop") if (at, name) in column)
                life.stay[at], life.fast[at] = bool(stays >= 0.5), bool(stays + leaves >= 0.5)
            life.settle(self.step.in_place)
            lives.append(life)
        return lives

    def _everything_away(self) -> list[Life]:
        lives = []
        for gadgets in self.step.networks:
            possible = all(gadgets.may_be_slow(at, self.step.in_place) for at in range(len(gadgets)))
            life = Life.always(gadgets, not (self.static and possible))
            if not self.static:
                for at, until in gaps(gadgets):
                    life.leave(at, until)
                life.settle(self.step.in_place)
            lives.append(life)
        return lives

    def _kept(self, lives: list[Life]) -> list[Life] | None:
        """Send more of the lives away where ticks hold too much. Returns None if that does not help."""
        if self.static:
            return lives if np.all(_level_of(self.step, lives) <= self.limit) else None
        return lives if _keep(self.step, lives, self.limit) else None

    def _values(self, lives: list[Life]) -> Floats:
        """Return the columns of an answer."""
        values = np.zeros(len(self.program.cost))
        for life, column in zip(lives, self.columns, strict=True):
            if self.static:
                values[column[0, "stay_dirty" if life.fast[0] else "slow"]] = 1.0
            else:
                values[[column[edge] for edge in life.edges()]] = 1.0
        return values


def _hidden_ms(trace: Trace, machine: Machine) -> list[float]:
    """Return how much of its operands' extra time each operation hides: [Note: in place]."""
    hidden = []
    for time_ns, read, written in zip(trace.ticks.time_ns.tolist(), *operand_bytes(trace), strict=True):
        longer = time_ns + 1.0  # more than can be hidden
        hidden.append((time_ns + longer - machine.tick_ns(time_ns, read, written, longer)) * _NS)
    return hidden


def _level_of(step: Step, lives: list[Life]) -> Ints:
    rows = [(low, high, life.gadgets.paged_bytes) for life in lives for low, high in life.levels()]
    return step.fixed + _levels(rows, len(step.trace.ticks))


def _keep(step: Step, lives: list[Life], limit: Ints) -> bool:
    """Send away what costs least for its bytes and ticks until the limits hold. Returns False if they cannot.

    A gap between two uses goes before a use in place.
    """
    n_ticks = len(limit)
    level = _level_of(step, lives)
    rows: list[tuple[int, int, int, int, int]] = []  # life, gadget, gadget until, ticks
    score: list[float] = []
    for number, life in enumerate(lives):
        gadgets = life.gadgets
        links = (step.pair.inward,) if gadgets.never_written else (step.pair.inward, step.pair.outward)
        cost = sum(link.copy_ns(gadgets.nbytes) for link in links)
        for at, until in gaps(gadgets):
            low, high = gadgets.ticks[at] + 1, gadgets.ticks[until] if until < len(gadgets) else gadgets.end
            rows.append((number, at, until, low, high))
            score.append(cost / (gadgets.paged_bytes * (high - low)))
        for at in gadgets.users():
            if gadgets.may_be_slow(at, step.in_place):
                rows.append((number, at, at, gadgets.ticks[at], gadgets.ticks[at] + 1))
                score.append(1e12 / gadgets.paged_bytes)
    lows, highs = (np.array([row[at] for row in rows], dtype=np.int64) for at in (3, 4))
    cheap, left = np.array(score), np.zeros(len(rows), dtype=bool)
    while np.any(over := level > limit):
        tick = int(over.argmax())
        here = ~left & (((lows <= tick) & (tick < highs)) | ((lows <= tick + n_ticks) & (tick + n_ticks < highs)))
        if not here.any():
            return False
        row = int(np.where(here, cheap, np.inf).argmin())
        number, at, until = rows[row][:3]
        left[row] = True
        life = lives[number]
        level -= _levels([(*span, life.gadgets.paged_bytes) for span in life.levels()], n_ticks)
        if at == until:
            life.fast[at] = life.stay[at] = life.stay[at - 1] = False
        else:
            life.leave(at, until)
        life.settle(step.in_place)
        level += _levels([(*span, life.gadgets.paged_bytes) for span in life.levels()], n_ticks)
    return True
