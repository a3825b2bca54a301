"""``tm-training``: a static placement of data in two tiers, with energy in the objective.

After TM-Training (ACM TOS 21(4), 2025). Training repeats itself, so the best place of every page at every time is found
before it runs. Its rules and its energies are not available; this is a reconstruction, a linear program. Item i is an
idle interval: bytes that are idle between two uses. A share x_i of it stays in fast memory, and the rest is away:

    minimise   sum_i  watts * stall_i + (1 - x_i) S_i * (joules per byte in, and once for each write: out)
    stall_i >= (1 - x_i) S_i (1/B_r + 1/B_w) - idle_i;    total stall >= all copies in (or out) - the step's time
    at each tick: what is in use, what stays of the idle, and copies in flight, within the budget

Watts are those of the machine while it waits, so the objective is the energy of a step. The least energy for a step is
the most throughput for a watt. A basic solution has few fractions; an item that is kept in part leaves whole. Copies
are then timed: out at once, and in as late as the queue of the link allows. Pressure keeps the budget.

Left out: the paper's data splitting, which keeps a part of an item in the upper tier. A stay is of a whole storage,
since the runtime moves no parts that a plan chose. Also left out: the online adjustment of ratios by a timing monitor,
address translation, operations that read the lower tier in place, and more than one lower tier. Energies that a machine
does not state are 1 pJ/bit, as in the published configuration template, and its power is 1 W.
"""

from time import perf_counter_ns

import numpy as np

from ebbtide.ir.base import Floats, Ints
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import page_size_of
from ebbtide.planners.published.pressure import Pressure
from ebbtide.planners.published.solver import Outcome, Program, level_rows
from ebbtide.planners.resident import resident
from ebbtide.planners.search.make_plan import Pair, make_plan, outcome_of, pair_of

TIME_LIMIT_S = 20.0

_PJ = 8e-12
"""Joules per byte of one pJ/bit."""
_FLIGHT = (1.0, 0.5, 0.0)
"""The shares of a copy's time that count as room in flight. All are tried, and the plan with the least energy is
taken."""
_WHOLE = 1 - 1e-6
"""A share above it counts as whole."""


def tm_training(trace: Trace, machine: Machine, budget_bytes: int, time_limit_s: float = TIME_LIMIT_S) -> Plan:
    """Make the plan. Raises InfeasibleBudgetError for a budget that no plan can keep.

    Raises PlanError if the slow tiers have no room.
    """
    began = perf_counter_ns()
    pair = pair_of(machine, peak(live_bytes(trace, page_size_of(machine))))
    if pair is None:
        return resident(trace, machine, budget_bytes)
    pressure = Pressure(trace, machine)
    pressure.require(budget_bytes)
    found: list[tuple[float, list[Stay]]] = []
    for flight in _FLIGHT:
        kept = relaxed(pressure, pair, budget_bytes, flight, time_limit_s / len(_FLIGHT))
        if kept is not None:
            stays = _timed(pressure, kept, pair, budget_bytes)
            found.append((_joules(trace, machine, budget_bytes, stays, pair), stays))
    in_time = bool(found)
    if not found:
        found.append((0.0, _timed(pressure, np.zeros(len(pressure.idle)), pair, budget_bytes)))
    stays = min(found, key=lambda pair: pair[0])[1]
    return make_plan("tm-training", trace, machine, budget_bytes, stays, began, out_of_time=not in_time)


def _joules(trace: Trace, machine: Machine, budget_bytes: int, stays: list[Stay], pair: Pair) -> float:
    """Return the energy of a simulated step: that of its moves, and of the machine's power at rest."""
    outcome = outcome_of(trace, machine, budget_bytes, stays)
    read_j, write_j = _joules_per_byte(pair)
    moved = (outcome.moved_bytes.get(link.name, 0) for link in (pair.inward, pair.outward))
    return sum(n * j for n, j in zip(moved, (read_j, write_j), strict=True)) + _watts(machine) * outcome.step_ns / 1e9


# ---- the program -----------------------------------------------------------------------------------------------------


def relaxed(pressure: Pressure, pair: Pair, budget_bytes: int, flight: float, time_limit_s: float) -> Floats | None:
    """Return the share of each idle interval that stays in fast memory, or None if that is not solved in time."""
    answer = _program(pressure, pair, budget_bytes, flight).solve(time_limit_s, whole=False)
    if answer.outcome is not Outcome.SOLVED:
        return None
    return np.clip(answer.values[: len(pressure.idle)], 0.0, 1.0)


def _program(pressure: Pressure, pair: Pair, budget_bytes: int, flight: float) -> Program:
    idle, program = pressure.idle, Program()
    watts = _watts(pressure.machine)
    read_j, write_j = _joules_per_byte(pair)
    in_ns = np.where(idle.returns, pair.inward.copy_ns(idle.nbytes), 0.0)
    out_ns = np.where(idle.dirty[idle.group], pair.outward.copy_ns(idle.nbytes), 0.0)
    low = pressure.clock.at_or_after(pressure.clock.of(idle.after + 1) + flight * out_ns)
    high = pressure.clock.at_or_before(pressure.clock.of(idle.until) - flight * in_ns)
    low, high = np.minimum(low, idle.until), np.minimum(high, idle.until)
    high = np.where(idle.returns, np.maximum(high, low), idle.until)
    idle_ns = pressure.idle_ns
    # The objective is in mJ. (1 - x) costs: minus the cost on x, and a constant.
    millijoules = np.where(idle.returns, idle.nbytes * read_j, 0.0) * 1e3
    occupancy = []
    limit = budget_bytes - pressure.live
    for row in range(len(idle)):
        program.column(-float(millijoules[row]), integer=False)
        size = int(idle.paged_bytes[row])
        if high[row] > low[row]:
            occupancy.append((row, int(low[row]), int(high[row]), size))
            for part in pressure.parts(int(low[row]), int(high[row])):
                limit[part] += size
    program.offset = float(millijoules.sum())
    to_mj = watts * 1e-6
    for row in np.flatnonzero(in_ns + out_ns > idle_ns).tolist():  # stall >= (1 - x) copies - idle
        stall = program.column(to_mj, float("inf"), integer=False)
        copies = float(in_ns[row] + out_ns[row])
        program.row([(stall, 1.0), (row, copies)], copies - float(idle_ns[row]))
    written = [program.column(0.0, integer=False) for _ in range(len(idle.dirty))]
    inward, outward = [], []
    for row, group in enumerate(idle.group.tolist()):
        if idle.dirty[group]:  # written once for all idle intervals of the group
            program.row([(written[group], 1.0), (row, 1.0)], 1.0)
        inward.append((row, float(in_ns[row])))
    of_group = np.zeros(len(idle.dirty))
    of_group[idle.group] = idle.nbytes
    for group, column in enumerate(written):
        program.cost[column] = float(of_group[group]) * write_j * 1e3
        outward.append((column, -pair.outward.copy_ns(float(of_group[group]))))
    total = program.column(to_mj, float("inf"), integer=False)
    step_ns = pressure.clock.step_ns
    program.row([(total, 1.0), *inward], float(in_ns.sum()) - step_ns)  # the links' queues
    program.row([(total, 1.0), *outward], -step_ns)
    level_rows(program, occupancy, limit)
    return program


def _watts(machine: Machine) -> float:
    """Return the machine's power while it waits."""
    static = sum((tier.static_mw_per_gb or 0.0) * 1e-3 * (tier.capacity_bytes or 0) / 1e9 for tier in machine.tiers)
    return machine.compute.idle_w + static or 1.0


def _joules_per_byte(pair: Pair) -> tuple[float, float]:
    """Return the energy of copying a byte in, and out: reading one tier, writing the other, and the way between."""
    values = [
        1.0 if value is None else value
        for value in (
            pair.slow.read_pj_per_bit,
            pair.fast.write_pj_per_bit,
            pair.fast.read_pj_per_bit,
            pair.slow.write_pj_per_bit,
        )
    ]
    read = values[0] + values[1] + pair.inward.pj_per_bit
    return read * _PJ, (values[2] + values[3] + pair.outward.pj_per_bit) * _PJ


# ---- the copies ------------------------------------------------------------------------------------------------------


def _timed(pressure: Pressure, kept: Floats, pair: Pair, budget_bytes: int) -> list[Stay]:
    """Return the stays of all storages. What is not kept whole leaves whole."""
    pressure, idle = pressure.copy(), pressure.idle
    rows = np.flatnonzero(kept <= _WHOLE)
    back = _as_late_as_the_queue_allows(pressure, rows, pair)
    for row in rows.tolist():
        pressure.leave(row, int(back[row]))
    pressure.squeeze(budget_bytes)
    return pressure.stays([pair.slow.name] * len(idle) if _roomy(pressure, pair) else None)


def _roomy(pressure: Pressure, pair: Pair) -> bool:
    """Say whether the pair's slow tier has room for everything."""
    capacity = pair.slow.capacity_bytes
    return capacity is None or capacity >= peak(live_bytes(pressure.trace, pressure.page_bytes))


def _as_late_as_the_queue_allows(pressure: Pressure, rows: Ints, pair: Pair) -> Ints:
    """Return the ticks at which fetches start. The last is done at its need, and each other by the start of the
    next."""
    idle, clock = pressure.idle, pressure.clock
    back = np.array(idle.until)
    need = clock.of(idle.until)
    free_from = np.inf
    for row in rows[np.argsort(-need[rows], kind="stable")].tolist():
        if idle.returns[row]:
            free_from = min(float(need[row]), free_from) - pair.inward.copy_ns(float(idle.nbytes[row]))
            back[row] = int(clock.at_or_before(np.array([max(free_from, -clock.step_ns)]))[0])
    return back
