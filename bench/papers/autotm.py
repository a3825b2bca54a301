"""AutoTM's findings: ``python -m bench.papers.findings autotm`` prints them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from time import perf_counter_ns

import numpy as np

from bench.papers.common import BLOCKS, GB, Row, least_of, mean_ratio, outcome_of, peak_of, spread, with_links, within
from bench.papers.memory_mode import memory_mode
from bench.papers.steps import GPU_FP32, XEON, densenet, inception_v4, resnet, vgg
from bench.papers.ten_cache import pcie
from bench.papers.tiertrain import AUDIT
from ebbtide.ir.machine import InPlace, Machine
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.trace import Trace
from ebbtide.machines import find_machine
from ebbtide.planners import BUILT_IN
from ebbtide.planners.published.autotm import autotm_async, autotm_sync
from ebbtide.planners.published.autotm_flow import stays_of_life
from ebbtide.planners.published.autotm_placement import Flow, step_of
from ebbtide.planners.search.make_plan import make_plan, pair_of
from ebbtide.simulator import Outcome, simulate_policy
from ebbtide.simulator.costs import costs_of
from ebbtide.simulator.step_columns import operand_bytes

SECONDS = 20.0
RATIOS = (1, 4, 8)
"""PMM to DRAM. 1 and 4 replace 50 and 80 % of the memory."""
SLOWS = (0.0, 0.2, 1.0, 2.0)
REST_USD = (4000.0, 8000.0, 16000.0)
"""All but memory: CPUs, board, power supply, rack share. Its price is assumed; this is its range."""
QUARTER = "PMM at a quarter of its rates"


def steps() -> list[Trace]:
    return [
        inception_v4(6144, XEON),
        vgg((80, 80, 82, 82, 89), 320, XEON),
        resnet((3, 24, 36, 3), 2560, XEON),
        densenet((6, 12, 64, 48), 3072, XEON),
    ]


def machines() -> dict[str, Machine]:
    """The file's, and one on which an operation gets a quarter of the PMM's data sheet."""
    optane = find_machine("dram-optane")
    dram, pmm = optane.tiers
    assert pmm.bytes_per_s is not None
    assert pmm.write_bytes_per_s is not None
    slower = replace(pmm, bytes_per_s=pmm.bytes_per_s // 4, write_bytes_per_s=pmm.write_bytes_per_s // 4)
    return {"as in the file": optane, QUARTER: replace(optane, tiers=(dram, slower))}


def all_slow(trace: Trace, machine: Machine) -> float:
    """Return the time with all in the slow tier over that with all in the fast one."""
    slow, (reads, writes) = machine.tiers[1].name, operand_bytes(trace)
    times = trace.ticks.time_ns.tolist()
    extra = (machine.in_place_ns(slow, *used) for used in zip(reads, writes, strict=True))
    taken = (machine.tick_ns(*tick) for tick in zip(times, reads, writes, extra, strict=True))
    return sum(taken) / trace.step_ns


@dataclass(frozen=True, slots=True)
class Result:
    """Times over that with all in DRAM. ``gap`` is the program's own, in per cent: how much its bound lies below its
    answer. ``in_dram``: of the bytes that operations read and write, in per cent; ``moved``: of the peak, both ways.
    ``first_touch`` is None where the largest operation does not fit."""

    autotm: float
    stopped: bool
    gap: float
    in_dram: float
    moved: float
    cache: float
    first_touch: float | None


def autotm(trace: Trace, machine: Machine, budget: int) -> tuple[Plan, float]:
    """Plan as ``autotm-sync`` does, and return the program's own gap in per cent."""
    pair, began = pair_of(machine, peak_of(trace)), perf_counter_ns()
    assert pair is not None
    step = step_of(trace, machine, pair)
    flow = Flow(step, np.full(len(trace.ticks), budget), False)
    lives, in_time = flow.solve(SECONDS)
    names = (pair.fast.name, pair.slow.name)
    stays = [*step.stays, *(stay for life in lives for stay in stays_of_life(life, *names, len(step.trace.ticks)))]
    made = make_plan("autotm-sync", trace, machine, budget, stays, began, out_of_time=not in_time)
    return made, 100 * flow.gap


def result(trace: Trace, machine: Machine, ratio: int) -> Result:
    budget = peak_of(trace) // (ratio + 1)
    blocking, bounded = with_links(machine, slows_compute=BLOCKS), machine.with_budget(budget)
    made, gap = autotm(trace, blocking, budget)
    outcome = outcome_of(made, trace, blocking)
    used = {name: use.read_bytes + use.written_bytes for name, use in outcome.tiers.items()}
    first_touch = None
    if least_of(trace) <= budget:
        first_touch = simulate_policy("first-touch", trace, bounded, arena_pages).step_ns / trace.step_ns
    return Result(
        outcome.step_ns / trace.step_ns,
        made.status is PlanStatus.STOPPED,
        gap,
        100 * used[machine.tiers[0].name] / sum(used.values()),
        100 * sum(outcome.moved_bytes.values()) / peak_of(trace),
        memory_mode(trace, machine, budget).step_ns / trace.step_ns,
        first_touch,
    )


# ---- moves beside compute --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moves:
    """Times over that with all in fast memory, at 60 % of it: moves that compute waits for, and those that may also go
    beside it, if operations then take longer by each of ``SLOWS``."""

    waited: float
    beside: dict[float, float]


def moves(trace: Trace, machine: Machine) -> Moves:
    """Operations use the fast tier alone, so that moves decide."""
    budget, waits = peak_of(trace) * 6 // 10, with_links(machine, slows_compute=BLOCKS, beside_bytes_per_s=None)
    made = autotm_async(trace, machine, budget, SECONDS)
    return Moves(
        outcome_of(autotm_sync(trace, waits, budget, SECONDS), trace, waits).step_ns / trace.step_ns,
        {
            slows: outcome_of(made, trace, with_links(machine, slows_compute=slows)).step_ns / trace.step_ns
            for slows in SLOWS
        },
    )


# ---- cost ------------------------------------------------------------------------------------------------------------


def costs(trace: Trace) -> tuple[float, float, list[float]]:
    """Return by how much time, memory's price and a step's cost (by ``REST_USD``) change at 1:8 DRAM:PMM, in per
    cent."""
    optane, most = with_links(find_machine("dram-optane"), slows_compute=BLOCKS), peak_of(trace)
    alone = replace(optane, tiers=(
        replace(optane.tiers[0], capacity_bytes=most), replace(optane.tiers[1], capacity_bytes=0)
    ))  # fmt: skip
    resident = outcome_of(BUILT_IN["resident"](trace, alone, most), trace, alone)
    outcome = outcome_of(autotm_sync(trace, optane, most // 9, SECONDS), trace, optane)
    mixed = replace(optane, tiers=(
        replace(optane.tiers[0], capacity_bytes=most // 9), replace(optane.tiers[1], capacity_bytes=most - most // 9)
    ))  # fmt: skip
    before, after = costs_of(resident, alone).memory_usd, costs_of(outcome, mixed).memory_usd
    assert before
    assert after
    return (
        100 * (outcome.step_ns / trace.step_ns - 1),
        100 * (after / before - 1),
        [100 * (step_usd(outcome, mixed, rest) / step_usd(resident, alone, rest) - 1) for rest in REST_USD],
    )


def step_usd(outcome: Outcome, machine: Machine, rest_usd: float) -> float:
    priced = replace(machine, cost=replace(machine.cost, rest_usd=rest_usd))
    found = costs_of(outcome, priced).step_usd
    assert found
    return found


# ---- rows ------------------------------------------------------------------------------------------------------------


def rows() -> list[Row]:
    nets, on = steps(), machines()
    names = [trace.name.split()[0] for trace in nets]
    every = ", ".join(names)
    found = {
        label: {ratio: [result(trace, machine, ratio) for trace in nets] for ratio in RATIOS}
        for label, machine in on.items()
    }
    asked = [one for by_ratio in found.values() for many in by_ratio.values() for one in many]
    stopped = sum(one.stopped for one in asked)
    replaced = {label: [one for ratio in (1, 4) for one in by_ratio[ratio]] for label, by_ratio in found.items()}
    slow = {label: [all_slow(trace, machine) for trace in nets] for label, machine in on.items()}
    ours = {label: mean_ratio([one.autotm for one in many]) for label, many in replaced.items()}
    touched = {
        label: mean_ratio([one.first_touch for one in many if one.first_touch is not None])
        for label, many in replaced.items()
    }
    over_cache = {
        label: [one.cache / one.autotm for many in by_ratio.values() for one in many]
        for label, by_ratio in found.items()
    }
    optane = find_machine("dram-optane")
    apart = replace(optane, tiers=(optane.tiers[0], replace(optane.tiers[1], in_place=InPlace.NOTHING)))
    cpu, gpu = resnet((3, 4, 6, 3), 2560, XEON), resnet((3, 4, 6, 3), 128, GPU_FP32)
    beside = (2_500_000_000, 2_000_000_000)  # one thread; all threads make the moves that compute waits for
    links = tuple(replace(link, beside_bytes_per_s=rate) for link, rate in zip(apart.links, beside, strict=True))
    equal, thread = moves(cpu, apart), moves(cpu, replace(apart, links=links))
    loses = min((slows for slows in SLOWS if thread.beside[slows] > thread.waited), default=float("inf"))
    on_gpu = moves(gpu, pcie(12 * GB, 1000 * GB))
    cost = dict(zip(names, (costs(trace) for trace in nets), strict=True))
    priced = sum(-55 <= price <= -45 for _, price, _ in cost.values())
    timed = sum(30 <= time <= 60 for time, _, _ in cost.values())
    fits = sum(one.first_touch is not None for one in replaced[QUARTER])

    def by_machine(values: dict[str, list[float]], form: str) -> str:
        return "; ".join(f"{label} {', '.join(form.format(one) for one in many)}" for label, many in values.items())

    return [
        Row(
            "the program finds its optimum", "Gurobi's", f"`stopped` in {stopped} of {len(asked)}, in "
            f"{SECONDS:.0f} s each; its own gap is {spread([one.gap for one in asked], '{:.1f} %')}",
            "all 3 kinds train to the same bits (`tests/training/test_planners_running.py`)",
            f"{'part' if stopped else 'yes'}: in small steps equal to brute force in 60 of 60 cases ({AUDIT}, "
            f"`autotm_async_oracle.py`). In steps of this size it ends in {SECONDS:.0f} s in {len(asked) - stopped} of "
            f"{len(asked)}, and its answers lie at most {max(one.gap for one in asked):.1f} % above the optimum",
        ),
        Row(
            "the networks' bytes", "659, 658, 651, 688 GB", ", ".join(
                f"{trace.name} {peak_of(trace) / GB:.0f} GB" for trace in nets
            ), "", f"{within([peak_of(trace) / GB for trace in nets], 600, 760)}: 600 to 760 GB counts as yes. "
            "They are made from the networks' shapes, and it is assumed that no operations are fused",
        ),
        Row(
            "everything in PMM", "3 to 8x", f"{by_machine(slow, '{:.2f}')} ({every})", "",
            f"{within([one for many in slow.values() for one in many], 3, 8)}: {inside(slow, 3, 8)}. It hangs on the "
            "PMM's rates, and on reading each operand once",
        ),
        Row(
            "50 to 80 % of DRAM replaced", "+27.7 % (geometric mean)", "; ".join(
                f"{label} {100 * (value - 1):+.1f} %" for label, value in ours.items()
            ), "", f"{within([100 * (value - 1) for value in ours.values()], 15, 40)}: +15 to +40 % counts as yes. It "
            "is the mean of PMM:DRAM of 1:1 and 4:1 on its 4 networks, and hangs on the PMM's rates",
        ),
        Row(
            "statistics of a placement", "printed, no figure", "; ".join(
                f"{ratio}:1 {spread([one.in_dram for one in many], '{:.0f} %')} of operands' bytes in DRAM, moved "
                f"{spread([one.moved for one in many], '{:.0f} %')} of the peak"
                for ratio, many in found["as in the file"].items()
            ), "", f"{within([one.in_dram for many in found['as in the file'].values() for one in many], 50, 100)}: "
            "50 % and more of operands' bytes in DRAM count as yes. DRAM holds a half, a fifth and a ninth of the peak",
        ),
        Row(
            "first touch there", "+71.9 %", "; ".join(
                f"{label} {100 * (value - 1):+.1f} %" for label, value in touched.items()
            ), "", f"{within([100 * (value - 1) for value in touched.values()], 50, 95)}: +50 to +95 % counts as yes. "
            f"In {fits} of {len(replaced[QUARTER])} cases the largest operation fits. It hangs on the PMM's rates",
        ),
        Row(
            "against memory mode (2LM)", "about 2x", "; ".join(
                f"{label} {spread(many, '{:.2f}')}, mean {mean_ratio(many):.2f}" for label, many in over_cache.items()
            ), "", f"{within([mean_ratio(many) for many in over_cache.values()], 1.5, 2.5)}: a mean of 1.5 to 2.5 "
            "counts as yes. It hangs on the PMM's rates. The cache is direct-mapped and writes dead data back "
            "(`memory_mode.py`); traffic for tags is assumed to cost 0 ns",
        ),
        Row(
            "moves beside compute hurt on a CPU, by interference", "slower (no figure): 2.5 / 2 GB/s beside, 12 / 29 "
            "waited for", f"step over all in DRAM ({cpu.name}, 60 % of the memory): waited for {thread.waited:.2f}; "
            "both offered, by slow-down of operations beside moves: "
            + ", ".join(f"{slows:.0%} {value:.2f}" for slows, value in thread.beside.items())
            + f". With equal rates: waited for {equal.waited:.2f}, both {equal.beside[0.0]:.2f} at 0%, "
            f"{equal.beside[max(SLOWS)]:.2f} at {max(SLOWS):.0%}", "",
            f"{within([value - thread.waited for value in thread.beside.values()], 0, 99)}: it hangs on that "
            f"slow-down, which is assumed. They hurt from {loses:.0%} on, and help at the machine file's "
            f"{max(link.slows_compute for link in optane.links):.0%}. With equal rates they "
            f"{'help' if max(equal.beside.values()) < equal.waited else 'hurt'} at {max(SLOWS):.0%}",
        ),
        Row(
            "and help on a GPU", "up to 4x", f"step over all in the GPU ({gpu.name}, 60 % of the memory, 12 GB/s): "
            f"beside {on_gpu.beside[0.0]:.2f}, waited for {on_gpu.waited:.2f}", "",
            f"{'part' if on_gpu.beside[0.0] < on_gpu.waited else 'no'}: {on_gpu.waited / on_gpu.beside[0.0]:.2f}x, in "
            "the same direction. 0 GPUs have run it",
        ),
        Row(
            "memory's cost at 1:8", "-50 % for +30 to +60 % of time", "; ".join(
                f"{name} {price:+.0f} % for {time:+.0f} %" for name, (time, price, _) in cost.items()
            ), "", f"{'yes' if priced == timed == len(cost) else 'part' if priced else 'no'}: the price of {priced} "
            f"of {len(cost)} changes by -45 to -55 %, the time of {timed} by +30 to +60 %. It hangs on the source's "
            "price ratio of 2.1",
        ),
        Row(
            "the saving disappears in the cost of ownership", "disappears", "; ".join(
                f"{name} {spread(tco, '{:+.0f} %')}" for name, (_, _, tco) in cost.items()
            ) + f" of a step's cost, all but memory at ${REST_USD[0]:,.0f} to ${REST_USD[-1]:,.0f}", "",
            f"{within([one for _, _, tco in cost.values() for one in tco], 0, 99)}: "
            f"{_signs(one for _, _, tco in cost.values() for one in tco)}. It hangs on the price of all but memory, "
            "which is assumed",
        ),
    ]  # fmt: skip


def inside(values: dict[str, list[float]], low: float, high: float) -> str:
    """Say how many lie in the source's range, by machine."""
    return ", ".join(
        f"{label} {sum(low <= one <= high for one in many)} of {len(many)} in the range"
        for label, many in values.items()
    )


def _signs(changes: Iterable[float]) -> str:
    values = list(changes)
    return f"{sum(one >= 0 for one in values)} of {len(values)} cells cost as much or more"
