"""TM-Training's findings: ``python -m bench.papers.findings tm-training`` prints them."""

from dataclasses import dataclass, replace

import numpy as np

from bench.papers.common import GB, Row, least_of, peak_of, spread, with_tiers, within
from bench.papers.steps import BERT_LARGE, XEON, resnet, transformer
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace
from ebbtide.machines import find_machine
from ebbtide.pipeline.trials import try_plan, try_policy
from ebbtide.planners import BUILT_IN
from ebbtide.planners.base import page_size_of
from ebbtide.planners.published.pressure import Pressure
from ebbtide.planners.published.tm_training import relaxed
from ebbtide.planners.search.make_plan import pair_of
from ebbtide.simulator import recost

OTHERS = ("sentinel", "autotm-sync", "lru", "evict-all")
"""Planners, and policies: a cache of whole storages, and one that takes everything out after each operation."""


@dataclass(frozen=True, slots=True)
class Result:
    """GB between the tiers and steps per joule, of each policy by name, and the share of the peak that is HBM."""

    share: float
    moved: dict[str, float]
    steps_per_j: dict[str, float]


def energies(machine: Machine) -> dict[str, Machine]:
    """The file's, the public skeleton's (1 pJ/bit everywhere), flash at twice and at half of the file's, and the file's
    with links four times as fast."""

    def flash(factor: float) -> Machine:
        hbm, slow = machine.tiers
        read, write = slow.read_pj_per_bit, slow.write_pj_per_bit
        assert read is not None
        assert write is not None
        changed = replace(slow, read_pj_per_bit=read * factor, write_pj_per_bit=write * factor)
        return replace(machine, tiers=(hbm, changed))

    links = tuple(replace(link, bytes_per_s=4 * link.bytes_per_s) for link in machine.links)
    return {
        "as in the file": machine,
        "flash x 2": flash(2.0),
        "flash / 2": flash(0.5),
        "1 pJ/bit": with_tiers(machine, read_pj_per_bit=1.0, write_pj_per_bit=1.0, static_mw_per_gb=10.0),
        "links x 4": replace(machine, links=links),
    }


def steps(machine: Machine) -> list[Trace]:
    made = (
        resnet((3, 4, 6, 3), 64, XEON),
        resnet((3, 8, 36, 3), 32, XEON),
        transformer(BERT_LARGE, 16, 384, XEON),
    )
    return [recost(trace, machine) for trace in made]


def eighth(trace: Trace) -> int:
    """Return 12.5 % of the peak, or what the largest operation needs."""
    return max(peak_of(trace) // 8, least_of(trace))


def results(trace: Trace, machine: Machine, plans: dict[str, Plan]) -> Result:
    """``plans`` are of planners that know no energies."""
    budget, moved, steps_per_j = eighth(trace), dict[str, float](), dict[str, float]()
    for name in ("tm-training", *OTHERS):
        if name in plans:
            trial = try_plan(plans[name], trace, machine, budget)
        else:
            trial = try_policy(name, trace, machine, budget)
        assert trial.outcome is not None
        assert trial.costs is not None
        assert trial.costs.steps_per_j is not None
        moved[name] = sum(trial.outcome.moved_bytes.values()) / GB
        steps_per_j[name] = trial.costs.steps_per_j
    return Result(budget / peak_of(trace), moved, steps_per_j)


def split(trace: Trace, machine: Machine) -> tuple[int, int, float]:
    """Return how many items the program keeps in part, of how many, and their bytes in per cent of all items'."""
    pair = pair_of(machine, peak(live_bytes(trace, page_size_of(machine))))
    assert pair is not None
    pressure = Pressure(trace, machine)
    answers = (relaxed(pressure, pair, eighth(trace), flight, 20.0) for flight in (1.0, 0.5, 0.0))
    kept = next(answer for answer in answers if answer is not None)  # copies in flight may need too much room
    part = (kept > 1e-6) & (kept < 1 - 1e-6)
    nbytes = pressure.idle.nbytes
    return int(np.count_nonzero(part)), len(part), 100 * float(nbytes[part].sum()) / float(nbytes.sum())


def memory_cost(share: float, machine: Machine) -> float:
    """Return what HBM for this share of the peak and flash for the rest cost, in per cent less than HBM for all."""
    hbm, flash = (tier.usd_per_gb for tier in machine.tiers)
    assert hbm is not None
    assert flash is not None
    return 100 * (share + (1 - share) * flash / hbm - 1)


def rows() -> list[Row]:
    npu = find_machine("npu-flash")
    traces, found = steps(npu), dict[str, list[Result]]()
    plans: list[dict[str, Plan]] = []
    for label, machine in energies(npu).items():
        if label in ("as in the file", "links x 4"):
            planners = [name for name in OTHERS if name in BUILT_IN]
            plans = [{name: BUILT_IN[name](trace, machine, eighth(trace)) for name in planners} for trace in traces]
        found[label] = [results(trace, machine, made) for trace, made in zip(traces, plans, strict=True)]

    def less(label: str, name: str) -> list[float]:
        return [100 * (one.moved["tm-training"] / one.moved[name] - 1) for one in found[label]]

    def more(label: str, name: str) -> list[float]:
        return [100 * (one.steps_per_j["tm-training"] / one.steps_per_j[name] - 1) for one in found[label]]

    base, shares = "as in the file", [one.share for one in found["as in the file"]]
    traffic = {name: less(base, name) for name in OTHERS}
    naive = traffic["evict-all"]
    swept = [value for label in found for value in less(label, "sentinel")]
    watts = {label: more(label, "evict-all") for label in found}
    parts = [split(trace, npu) for trace in traces]
    costs = [memory_cost(share, npu) for share in shares]
    return [
        Row(
            "traffic between tiers, against prior work", "-64 % (its simulator)",
            "; ".join(f"{name} {spread(values, '{:+.0f} %')}" for name, values in traffic.items()), "",
            f"part: against a naive baseline alone ({spread(naive, '{:+.0f} %')} of `evict-all`): the others here drop "
            "what is dead and write nothing that is clean, so little is left to save. Its rule is not public",
        ),
        Row(
            "the same, by the energies that are assumed", "not public",
            f"sentinel {spread(swept, '{:+.0f} %')} over " + ", ".join(found), "",
            "no: the energies change it little",
        ),
        Row(
            "throughput for a watt, against prior work", "+55 %",
            "; ".join(f"{name} {spread(more(base, name), '{:+.0f} %')}" for name in OTHERS), "",
            "part: against a naive baseline alone. By the energies: "
            + ", ".join(f"{label} {spread(values, '{:+.0f} %')}" for label, values in watts.items()),
        ),
        Row(
            "HBM of 12.5 % suffices", "12.5 %", ", ".join(
                f"{trace.name} {share:.1%}" for trace, share in zip(traces, shares, strict=True)
            ), "", f"{within(shares, 0, 0.125)}: an operation's operands lie in HBM together, and ResNet-50's largest "
            "needs more",
        ),
        Row(
            "cost of hardware", "-87 %", spread(costs, "{:+.0f} %") + " of memory", "",
            f"{within(costs, -88, -84)}: by the prices assumed, $180 and $0.5 for a GB, and for memory alone",
        ),
        Row(
            "data is split: a part of an item stays", "its rule is not public",
            "items kept in part: " + ", ".join(f"{n} of {of} ({share:.1f} % of bytes)" for n, of, share in parts), "",
            "no, and little is lost: a basic solution of the linear program has so few, and they leave whole",
        ),
    ]  # fmt: skip
