"""The findings of the sources, in shape, in the simulator: by

    python -m bench.papers.findings [autotm contention cost 10cache tm-training tiertrain] [--quick]

Every figure of ours is simulated, on machines whose figures are assumed or from data sheets (`ebbtide/machines`), with
steps made from the networks' shapes (`steps.py`). Source figures were measured by their authors on other hardware (TM-
Training's: simulated) and stand beside ours as context; only the shape is compared.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

from bench.papers.common import BLOCKS, GB, outcome_of, show, with_links
from bench.papers.steps import BLOOM_7B, FALCON_7B, GPU, GPU_FP32, OPT_6_7B, XEON, resnet, transformer, vgg
from bench.papers.tm_training import tm_training
from ebbtide.errors import InfeasibleBudgetError
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.occupancy import arena_pages, live_bytes, needed_bytes, peak
from ebbtide.ir.trace import StorageKind, Trace
from ebbtide.machines import find_machine
from ebbtide.planners import BUILT_IN
from ebbtide.planners.published.autotm import autotm_async, autotm_static, autotm_sync
from ebbtide.simulator import Outcome, simulate_policy
from ebbtide.simulator.costs import costs_of

QUICK = "--quick" in sys.argv
SECONDS = 20.0 if QUICK else 60.0


# ---- AutoTM ----------------------------------------------------------------------------------------------------------


def autotm_steps() -> list[Trace]:
    if QUICK:
        return [resnet((3, 4, 6, 3), 2560, XEON), vgg((2, 2, 4, 4, 4), 2048, XEON)]
    return [resnet((3, 24, 36, 3), 2560, XEON), vgg((80, 80, 82, 82, 89), 320, XEON)]


def autotm() -> None:
    """Time over all-DRAM time, by the share of memory that is PMM."""
    optane = find_machine("dram-optane")
    blocking = with_links(optane, slows_compute=BLOCKS)
    rows = []
    for trace in autotm_steps():
        most = peak(live_bytes(trace, arena_pages))
        for ratio in (8, 4, 1):
            budget = most // (ratio + 1)
            cells = []
            for planner in (autotm_static, autotm_sync):
                made = planner(trace, blocking, budget, SECONDS)
                cells.append(f"{outcome_of(made, trace, blocking).step_ns / trace.step_ns:.2f}")
            bounded = optane.with_budget(budget)
            fits = peak(needed_bytes(trace, arena_pages)) <= budget
            for policy in ("lru", "first-touch"):
                if not fits:
                    cells.append("does not fit")
                    continue
                cells.append(f"{simulate_policy(policy, trace, bounded, arena_pages).step_ns / trace.step_ns:.2f}")
            rows.append([trace.name, f"{most / GB:.0f} GB", f"{ratio}:1", *cells])
    show(
        "AutoTM against a cache (2LM) and first touch: time over all-DRAM time",
        ["step", "peak", "PMM:DRAM", "autotm-static", "autotm-sync", "lru (2LM)", "first-touch"],
        rows,
        "Source (measured on Optane): 50-80 % of DRAM replaced at a geometric mean of 1.28x, first touch 1.72x; about "
        "2x faster than 2LM.",
        "lru is a cache of whole storages that fetches on demand and drops what is dead; a hardware cache has lines, "
        "and writes dead data back, so the source's gap is wider.",
    )


def contention() -> None:
    """Moves beside operations, at several rates and degrees of interference, against moves that compute waits for."""
    optane = find_machine("dram-optane")
    optane = replace(optane, tiers=(optane.tiers[0], replace(optane.tiers[1], in_place=InPlace.NOTHING)))
    trace = resnet((3, 4, 6, 3), 2560, XEON)
    rows = _rows(
        "CPU, ResNet-50", trace, optane, {"12 / 29": (12.0, 29.0), "3 / 7": (3.0, 7.25), "2.5 / 2": (2.5, 2.0)}
    )
    gpu = resnet((3, 4, 6, 3), 128, GPU_FP32)
    rows += _rows("GPU, ResNet-50", gpu, pcie(12 * GB, 11 * GB, 10**12), {"12 / 12": (12.0, 12.0)})
    show(
        "AutoTM's moves at 60 % of the memory: time over all-fast time",
        [
            "step",
            "GB/s out / in beside compute",
            "sync, full rate",
            "sync, same rates",
            *(f"async, slows by {slows:.0%}" for slows in SLOWS),
        ],
        rows,
        "Source (measured): asynchronous moves (one thread, 2.5 / 2 GB/s) hurt on the CPU and helped on the GPU. Its "
        "program knows no interference, so neither does ours: a plan is made for its rates alone, then simulated.",
        "Here operations use the fast tier alone, so that moves decide. At the same rates, what differs is whether "
        "compute waits; at the full rate all threads copy, as synchronous moves can.",
    )


SLOWS = (0.0, 0.2, 1.0, 2.0)


def _rows(name: str, trace: Trace, machine: Machine, rates: dict[str, tuple[float, float]]) -> list[list[str]]:
    budget = peak(live_bytes(trace, arena_pages)) * 6 // 10
    waits = with_links(machine, slows_compute=BLOCKS)
    full = outcome_of(autotm_sync(trace, waits, budget, SECONDS), trace, waits).step_ns
    rows = []
    for label, (out, into) in rates.items():
        fast = machine.tiers[0].name
        links = tuple(
            replace(link, bytes_per_s=round(GB * (out if link.source == fast else into))) for link in machine.links
        )
        beside = replace(machine, links=links)
        waits = with_links(beside, slows_compute=BLOCKS)
        same = outcome_of(autotm_sync(trace, waits, budget, SECONDS), trace, waits).step_ns
        made = autotm_async(trace, beside, budget, SECONDS)
        times = [outcome_of(made, trace, with_links(beside, slows_compute=slows)).step_ns for slows in SLOWS]
        cells = [f"{time / trace.step_ns:.2f}" for time in (full, same, *times)]
        rows.append([name, label, *cells])
    return rows


def cost() -> None:
    """What 1:8 DRAM:PMM costs: memory alone, and a step's share of the whole machine."""
    optane = with_links(find_machine("dram-optane"), slows_compute=BLOCKS)
    rows = []
    for trace in autotm_steps():
        most = peak(live_bytes(trace, arena_pages))
        dram = replace(optane, tiers=(replace(optane.tiers[0], capacity_bytes=most), *optane.tiers[1:]))
        alone = replace(dram, tiers=(dram.tiers[0], replace(optane.tiers[1], capacity_bytes=0)))
        resident = outcome_of(BUILT_IN["resident"](trace, alone, most), trace, alone)
        base = costs_of(resident, alone)
        made = autotm_sync(trace, optane, most // 9, SECONDS)
        outcome = outcome_of(made, trace, optane)
        mixed = replace(optane.with_budget(most // 9), tiers=(
            replace(optane.tiers[0], capacity_bytes=most // 9),
            replace(optane.tiers[1], capacity_bytes=most - most // 9),
        ))  # fmt: skip
        ours = costs_of(outcome, mixed)
        assert base.memory_usd
        assert ours.memory_usd
        rows.append([
            trace.name,
            f"{outcome.step_ns / trace.step_ns - 1:+.0%}",
            f"{ours.memory_usd / base.memory_usd - 1:+.0%}",
            *(f"{step_usd(outcome, mixed, rest) / step_usd(resident, alone, rest) - 1:+.0%}" for rest in REST_USD),
        ])  # fmt: skip
    show(
        "AutoTM at 1:8 DRAM:PMM",
        ["step", "time", "memory cost", *(f"cost of a step (TCO), rest ${rest:,.0f}" for rest in REST_USD)],
        rows,
        "Source: about -50 % of memory cost for +30 to +60 % of time; with whole-system TCO the saving disappears.",
        "The rest is all but memory: CPUs, board, power supply, rack share. Its price is assumed; this is its range.",
    )


REST_USD = (4000.0, 8000.0, 16000.0)


def step_usd(outcome: Outcome, machine: Machine, rest_usd: float) -> float:
    priced = replace(machine, cost=replace(machine.cost, rest_usd=rest_usd))
    found = costs_of(outcome, priced).step_usd
    assert found
    return found


# ---- 10Cache ---------------------------------------------------------------------------------------------------------


def pcie(bytes_per_s: int, gpu_bytes: int, host_bytes: int, nvme_bytes_per_s: int | None = None) -> Machine:
    tiers = [Tier("gpu", InPlace.ALL, gpu_bytes), Tier("host", InPlace.NOTHING, host_bytes)]
    links = [Link("gpu", "host", bytes_per_s, 10_000), Link("host", "gpu", bytes_per_s, 10_000)]
    if nvme_bytes_per_s is not None:
        tiers.append(Tier("nvme", InPlace.NOTHING))
        links += [Link("gpu", "nvme", nvme_bytes_per_s, 90_000), Link("nvme", "gpu", nvme_bytes_per_s, 90_000)]
    return Machine("a GPU, assumed", Origin.ASSUMED, tuple(tiers), tuple(links))


TEN_CACHE = {  # hit rates in per cent of ZeRO-Infinity and 10Cache, and how much faster it was, CPU + GPU
    "OPT-6.7B": (OPT_6_7B, "3.68 -> 100", "2.54x"),
    "Bloom-7B": (BLOOM_7B, "17.21 -> 83.87", "2.75x"),
    "Falcon-7B": (FALCON_7B, "1.03 -> 89.18", "2.62x"),
}


def ten_cache() -> None:
    """Against ZeRO-Infinity's fixed prefetch, where parameters come over PCIe and where some come from NVMe."""
    rows = []
    for name, (shape, hits, faster) in TEN_CACHE.items():
        trace = transformer(shape, 16, 128, GPU)
        for place, machine in (
            ("host", pcie(12 * GB, 16 * GB, 10**12)),
            ("host, waits", with_links(pcie(12 * GB, 16 * GB, 10**12), slows_compute=BLOCKS)),
            ("host + NVMe", pcie(12 * GB, 16 * GB, 60 * GB, 3 * GB)),
        ):
            times, cells = {}, []
            for planner in ("zero-infinity", "10cache"):
                outcome = outcome_of(BUILT_IN[planner](trace, machine, 16 * GB), trace, machine)
                times[planner] = outcome.step_ns
                read = sum(n for link, n in outcome.moved_bytes.items() if link.endswith(">gpu"))
                use = outcome.tiers["gpu"].mean_bytes / (16 * GB)
                lost = 1 - trace.step_ns / outcome.step_ns
                hits_in = parameter_hits(outcome, trace)
                cells.append(f"{hits_in:.0f} / {lost:.0%} / {use:.0%} / {read / GB:.1f}")
            gain = times["zero-infinity"] / times["10cache"]
            source = (hits, faster) if place == "host" else ("", "")
            rows.append([name, place, *cells, f"{gain:.2f}x", *source])
    show(
        "10Cache against ZeRO-Infinity, GPU of 16 GB: hit rate % / exposed transfer time / GPU utilisation / GB read",
        ["step", "parameters in", "zero-infinity", "10cache", "faster", "source: hit rate %", "source: faster"],
        rows,
        "`waits`: copies are synchronous, as in 10Cache's code, so that every use is a hit and nothing is gained: its "
        "hit rate counts what was waited for before. Hit rate: uses of parameters that were there at their turn.",
        "Exposed transfer time: the part of a step in which nothing is computed. The source's GPU, its memory and its "
        "data path are others. Left out: the optimizer, which runs on the CPU there.",
    )


def parameter_hits(outcome: Outcome, trace: Trace) -> float:
    """In per cent, of uses of parameters; all misses are theirs, since these planners move nothing else here."""
    parameters = {number for number, row in enumerate(trace.storages) if row.kind is StorageKind.PARAMETER}
    uses = sum(number in parameters for number in trace.accesses.storage.tolist())
    return 100 * (1 - (outcome.n_uses - outcome.hits) / uses)


# ---- TierTrain -------------------------------------------------------------------------------------------------------


def tiertrain() -> None:
    """The share of fast memory that is saved without a budget, by hiding what can be hidden."""
    rows = []
    for machine in (find_machine("dram-cxl"), find_machine("dram-optane")):
        for step in (resnet((3, 4, 6, 3), 50_000, XEON, size=32), resnet((3, 8, 36, 3), 50_000, XEON, size=32)):
            most = peak(live_bytes(step, arena_pages))
            roomy = replace(machine, tiers=tuple(replace(tier, capacity_bytes=None) for tier in machine.tiers))
            before = outcome_of(BUILT_IN["resident"](step, roomy, most), step, roomy)
            after = outcome_of(BUILT_IN["tiertrain"](step, roomy, most), step, roomy)
            mean = after.tiers["dram"].mean_bytes / before.tiers["dram"].mean_bytes - 1
            top = after.tiers["dram"].peak_bytes / before.tiers["dram"].peak_bytes - 1
            rows.append([
                step.name, machine.name, f"{most / GB:.0f} GB", f"{mean:+.0%}", f"{top:+.0%}",
                f"{after.step_ns / before.step_ns - 1:+.1%}",
            ])  # fmt: skip
    show(
        "TierTrain, CIFAR in one batch: fast memory saved",
        ["step", "machine", "peak", "mean fast memory", "peak fast memory", "time"],
        rows,
        "Source (measured): mean -59 to -83 %, peak -25 to -74 %, time +1 to +16 %.",
    )


FINDINGS: dict[str, Callable[[], None]] = {
    "autotm": autotm,
    "contention": contention,
    "cost": cost,
    "10cache": ten_cache,
    "tm-training": tm_training,
    "tiertrain": tiertrain,
}


if __name__ == "__main__":
    chosen = [name for name in sys.argv[1:] if not name.startswith("--")] or list(FINDINGS)
    if unknown := set(chosen) - FINDINGS.keys():
        sys.exit(f"there is no finding {', '.join(sorted(unknown))}; there are {', '.join(FINDINGS)}")
    for name in chosen:
        try:
            FINDINGS[name]()
        except InfeasibleBudgetError as error:
            print(f"{name}: {error}")
