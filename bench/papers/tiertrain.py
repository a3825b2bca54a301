"""TierTrain's findings: ``python -m bench.papers.findings tiertrain`` prints them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.papers import tierscape
from bench.papers.common import GB, Row, outcome_of, peak_of, spread, with_links, with_tiers, within
from bench.papers.steps import XEON, resnet
from ebbtide.ir.machine import Machine
from ebbtide.ir.trace import Trace
from ebbtide.machines import find_machine
from ebbtide.pipeline.trials import try_policy
from ebbtide.planners import BUILT_IN

MACHINES = {"CXL": "dram-cxl", "Optane": "dram-optane"}
NETS = {"ResNet-50": (3, 4, 6, 3), "ResNet-152": (3, 8, 36, 3)}
SLOWS = (0.0, 0.05, 0.2, 0.5, 1.0)
SHARES = (20, 25, 40, 60, 80)
FACTORS = (1, 2, 4, 10, 100)
"""By which links are slower."""
AUDIT = "audit of build 31eaabc, 2 AMD CPUs"
"""The audit of 2026-11-26; its scripts and its table came with it."""
QUIET = f"{AUDIT}, quiet, file tier, ResNet"
RANKED = (
    "build 6e77f716, 2 AMD EPYC CPUs, quiet, file tier, ResNet-50 with steps of 0.4 s, one pair, "
    "`2026-11-27_ranking.jsonl.gz`"
)
ONCE = "build 1682f73, 2 CPUs with AMX, file tier, ResNet-50, once, `2026-11-22_2-cpus-amx.md`"
PAIRS = "2 networks on 2 machines"


def steps() -> dict[str, Trace]:
    """CIFAR in one batch, as the source has it."""
    return {net: resnet(blocks, 50_000, XEON, size=32) for net, blocks in NETS.items()}


def roomy(machine: Machine) -> Machine:
    """Return a machine whose tiers have no bounds: the source moves what it can hide, whatever there is room for."""
    return with_tiers(machine, capacity_bytes=None)


def saved(trace: Trace, machine: Machine) -> tuple[float, float, float]:
    """Return the change of fast memory's mean and peak, and of time, in per cent of all in fast memory."""
    most, fast = peak_of(trace), machine.tiers[0].name
    before = outcome_of(BUILT_IN["resident"](trace, machine, most), trace, machine)
    after = outcome_of(BUILT_IN["tiertrain"](trace, machine, most), trace, machine)
    mean = after.tiers[fast].mean_bytes / before.tiers[fast].mean_bytes
    top = after.tiers[fast].peak_bytes / before.tiers[fast].peak_bytes
    return 100 * (mean - 1), 100 * (top - 1), 100 * (after.step_ns / before.step_ns - 1)


@dataclass(frozen=True, slots=True)
class Constrained:
    """In a budget: by how much faster a step is than under ``reactive``, in per cent, and what each uses of the budget
    in the mean and at most, in per cent."""

    faster: float
    mean: tuple[float, float]
    peak: tuple[float, float]


def constrained(trace: Trace, machine: Machine, share: int) -> Constrained | None:
    budget = peak_of(trace) * share // 100
    ours, reactive = (try_policy(name, trace, machine, budget).outcome for name in ("tiertrain", "reactive"))
    if ours is None or reactive is None:
        return None
    mine, its = (outcome.tiers[machine.tiers[0].name] for outcome in (ours, reactive))
    return Constrained(
        100 * (reactive.step_ns / ours.step_ns - 1),
        (100 * mine.mean_bytes / budget, 100 * its.mean_bytes / budget),
        (100 * mine.peak_bytes / budget, 100 * its.peak_bytes / budget),
    )


def slower_by(machine: Machine, factor: int) -> Machine:
    """Return a machine whose links all have the slowest one's rate, and these and their groups so much less."""
    rate = min(link.bytes_per_s for link in machine.links) // factor
    groups = tuple(replace(group, bytes_per_s=group.bytes_per_s // factor) for group in machine.groups)
    return replace(with_links(machine, bytes_per_s=rate), groups=groups)


def rows() -> list[Row]:
    nets, on = steps(), {name: roomy(find_machine(file)) for name, file in MACHINES.items()}
    cells = {(net, name): saved(trace, machine) for net, trace in nets.items() for name, machine in on.items()}
    mean, top, longer = zip(*cells.values(), strict=True)
    swept = {
        slows: [saved(trace, with_links(machine, slows_compute=slows))[2] for trace in nets.values()]
        for slows in SLOWS
        for machine in (on["CXL"],)
    }
    within_budget = {
        name: [constrained(nets["ResNet-50"], machine, share) for share in SHARES] for name, machine in on.items()
    }
    slower = {factor: saved(nets["ResNet-50"], slower_by(on["CXL"], factor))[0] for factor in FACTORS}
    waits = {
        name: [
            saved(nets["ResNet-50"], with_links(slower_by(machine, factor), slows_compute=0.0))[2] for factor in FACTORS
        ]
        for name, machine in on.items()
    }
    waited = max(max(many) for many in waits.values())
    held = {name: [found for found in cells if found is not None] for name, cells in within_budget.items()}
    inside = [slows for slows, values in swept.items() if within(values, 1, 16) == "yes"]
    slows = ", ".join(
        f"{max(link.slows_compute for link in machine.links):.0%} on {name}" for name, machine in on.items()
    )
    rate = min(link.bytes_per_s for link in on["CXL"].links) / GB
    return [
        Row(
            "mean of fast memory", "-59 to -83 %, with moves at 0.8 GB/s in its logs", spread(mean, "{:+.0f} %"),
            f"-58 % ({QUIET}); -31 % ({RANKED})",
            f"{places(mean, (-58, -31), -83, -59)}. With links of CXL slowed to {rate / 2:.0f} GB/s ResNet-50's mean "
            f"falls by {-slower[2]:.0f} %, to {rate / 4:.0f} GB/s by {-slower[4]:.0f} %",
        ),
        Row(
            "peak of fast memory", "-25 to -74 %", spread(top, "{:+.0f} %"), f"-31 % ({QUIET}); -24 % ({RANKED})",
            places(top, (-31, -24), -74, -25),
        ),
        Row(
            "overhead", "+1 to +16 %", spread(longer, "{:+.1f} %"),
            f"+6 to +10 %, same bits ({QUIET}); +38 % of a step in which nothing moves, same bits ({RANKED})",
            f"{within([*longer, 6, 10, 38], 1, 16)}: all lie in the range but +38 %, of steps of 0.4 s. What is "
            f"simulated hangs on how much copies are assumed to slow operations down: {slows}",
        ),
        Row(
            "overhead, by that assumption", "+1 to +16 %", "; ".join(
                f"{slows:.0%}: {spread(values, '{:+.1f} %')}" for slows, values in swept.items()
            ) + " (CXL, 2 networks)", "",
            f"{'yes' if len(inside) == len(SLOWS) else 'part' if inside else 'no'}: in the source's range with a "
            f"slow-down of {' and '.join(f'{slows:.0%}' for slows in inside)}. With 0% the overhead is "
            f"{max(swept[0.0]):+.1f} %: hidden moves cost only what they slow down",
        ),
        *(
            Row(
                f"in a budget, against reactive tiering, {name}", "+35 to +84 %", "faster, by budget (per cent of the "
                "peak): " + ", ".join(f"{share} %: {'no plan' if one is None else f'{one.faster:+.0f} %'}"
                                      for share, one in zip(SHARES, within_budget[name], strict=True))
                + " (ResNet-50). Of the budget, used in the mean and at most: " + "; ".join(
                    f"{who} {spread([one.mean[at] for one in held[name]], '{:.0f} %')} and "
                    f"{spread([one.peak[at] for one in held[name]], '{:.0f} %')}"
                    for at, who in enumerate(("tiertrain", "reactive"))
                ), "",
                f"{within([one.faster for one in held[name]], 35, 84)}: "
                f"{sum(35 <= one.faster <= 84 for one in held[name])} of {len(SHARES)} budgets in the range. It hangs "
                "on `reactive`, our reconstruction of TPP, and on its telemetry, which is assumed to cost 0 ns. "
                "`tiertrain` has no rule for a budget, so the simulator's own keeps it",
            )
            for name in on
        ),
        Row(
            "in a budget, against reactive tiering, on a file", "+35 to +84 %", "",
            f"faster, by budget: 50 %: +38 % ({ONCE}); 60 %: +3 to +9 %, 80 %: -3 to +6 % ({QUIET}); 25 %: +17 %, "
            "50 %: +8 %, 80 %: -10 %, of the budget used in the mean: tiertrain 89, 81 and 76 %, reactive 89, 92 and "
            f"87 % ({RANKED})",
            f"{within([38, 3, 9, -3, 6, 17, 8, -10], 35, 84)}: 1 of 6 measurements in the range, of the oldest build. "
            "It hangs on `reactive`, our reconstruction of TPP",
        ),
        Row(
            "a queue keeps links from overload", "no figure", "mean of fast memory by how much slower links are: "
            + ", ".join(f"{factor} times {value:+.0f} %" for factor, value in slower.items())
            + " (ResNet-50, CXL). Time, where copies slow no operation: "
            + ", ".join(f"{name} {spread(many, '{:+.1f} %')}" for name, many in waits.items()), "",
            f"{within([waited], 0, 1)}: up to 1 % longer counts as yes. The links of both machines share a group, "
            f"which the queue does not know: a step gets at most {waited:.1f} % longer. The queue of each direction "
            "equals a FIFO server in 3,000 of 3,000 random cases "
            f"(`lindley.py`, {AUDIT})",
        ),
        Row(
            "pages of a CXL node", "measured", "both machines, above",
            f"QEMU's second node: 14 tests, same bits (`make numa-test`, {AUDIT})", "part: 0 tests ran on CXL memory",
        ),
        Row(
            "memory is given back", "in the mean, above", "in the mean, above",
            "file tier: 224 of 224 MiB held with 57 in use; a node: mean 148 of 223 MiB "
            f"({AUDIT}). 32 MiB written where pages were given back: 9.4 ms, kept: 3.8 ms (compressed tier, build "
            "0aacb58, 2 AMD EPYC CPUs, `2026-11-23_compressed.md`)",
            "part: a node's pages are given back (148 of 223 MiB). The file tier keeps all 224 MiB for storages to "
            "come, since a new page has to be cleared first (9.4 to 3.8 ms)",
        ),
        tierscape.row(),
    ]  # fmt: skip


def places(simulated: Sequence[float], real: Sequence[float], low: float, high: float) -> str:
    """Return the verdict on savings, and how many lie in the source's range and on either side of it."""
    counts = [
        f"{sum(low <= one <= high for one in many)} of {len(many)} in the range, {sum(one < low for one in many)} save "
        f"more, {sum(one > high for one in many)} less"
        for many in (simulated, real)
    ]
    return f"{within([*simulated, *real], low, high)}: simulated ({PAIRS}) {counts[0]}; real {counts[1]}"
