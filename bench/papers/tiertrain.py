"""TierTrain's findings: ``python -m bench.papers.findings tiertrain`` prints them."""

from dataclasses import dataclass, replace

from bench.papers import tierscape
from bench.papers.common import Row, outcome_of, peak_of, spread, with_links, with_tiers, within
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
MEASURED = "audit of build 31eaabc, 2 AMD CPUs, quiet, file tier, ResNet"
RANKED = "build 6e77f71, steps of 0.4 s, one pair, `2026-11-27_corpus.md`"


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
    return [
        Row(
            "mean of fast memory", "-59 to -83 %", spread(mean, "{:+.0f} %"), f"-58 % ({MEASURED}); -31 % ({RANKED})",
            f"{within(mean, -83, -59)}: {sum(-83 <= one <= -59 for one in mean)} of {len(mean)} lie in the range and "
            f"the rest save more. Links twice as slow save {slower[2]:+.0f} %, four times {slower[4]:+.0f} % "
            "(ResNet-50, CXL); the source's logs show moves at 0.8 GB/s",
        ),
        Row(
            "peak of fast memory", "-25 to -74 %", spread(top, "{:+.0f} %"), f"-31 % ({MEASURED}); -24 % ({RANKED})",
            f"{within(top, -74, -25)}: {sum(-74 <= one <= -25 for one in top)} of {len(top)} lie in the range and the "
            "rest save more",
        ),
        Row(
            "overhead", "+1 to +16 %", spread(longer, "{:+.1f} %"),
            f"+6 to +10 % ({MEASURED}); +38 % ({RANKED}); same bits",
            f"{within(longer, 1, 16)}: it is the assumed slow-down of operations beside copies, 5 % on CXL and 20 % on "
            "Optane",
        ),
        Row(
            "overhead, by that assumption", "", "; ".join(
                f"{slows:.0%}: {spread(values, '{:+.1f} %')}" for slows, values in swept.items()
            ) + " (CXL)", "",
            f"yes, up to {max((s for s in SLOWS if max(swept[s]) <= 16), default=0):.0%}: with none it is "
            f"{max(swept[0.0]):+.1f} %, so all moves are hidden, and hidden moves cost what they slow down",
        ),
        *(
            Row(
                f"memory-constrained, against reactive tiering, {name}", "+35 to +84 %",
                ", ".join(f"{share} %: {'no plan' if one is None else f'{one.faster:+.0f} %'}"
                          for share, one in zip(SHARES, within_budget[name], strict=True)) + " (ResNet-50). Of the "
                "budget, used in the mean and at most: " + "; ".join(
                    f"{who} {spread([one.mean[at] for one in held[name]], '{:.0f} %')} and "
                    f"{spread([one.peak[at] for one in held[name]], '{:.0f} %')}"
                    for at, who in enumerate(("tiertrain", "reactive"))
                ),
                f"50 %: +38 % (ResNet-50, once, `2026-11-22_2-cpus-amx.md`); 60 %: +3 to +9 %, 80 %: -3 to +6 % "
                f"({MEASURED}); 25 %: +17 %, 50 %: +8 %, 80 %: -10 %, of the budget used in the mean: tiertrain 89, 81 "
                f"and 76 %, reactive 90, 92 and 87 % ({RANKED})",
                f"{within([one.faster for one in held[name]], 35, 84)}: `reactive` is our reconstruction of TPP, "
                "which pays no telemetry here. A method without a rule for a budget has the simulator's own",
            )
            for name in on
        ),
        Row(
            "a queue keeps links from overload", "no figure", "mean of fast memory by how much slower links are: "
            + ", ".join(f"{factor} times {value:+.0f} %" for factor, value in slower.items())
            + ". Time, where copies slow no operation: "
            + ", ".join(f"{name} {spread(many, '{:+.1f} %')}" for name, many in waits.items()), "plans are followed",
            f"{within([waited], 0, 1)}: the links of both machines share a group, which the queue does not know. That "
            f"makes steps wait for up to {waited:.1f} %. One server each way equals a FIFO server in 3,000 of "
            "3,000 random cases (the audit's `lindley.py`)",
        ),
        Row(
            "pages of a CXL node", "measured", "both machines, above",
            "QEMU's second node: 14 tests, same bits (`make numa-test`)", "part: no CXL memory was at hand",
        ),
        Row(
            "memory is given back", "in the mean, above", "in the mean, above",
            "file tier: 224 of 224 MiB held with 57 in use; a node: mean 148 of 223 MiB (audit of build 31eaabc)",
            "no on the file tier: freed pages stay with the runtime for the next birth, since new ones have to be "
            "cleared: giving pages back made 32 MiB take 9.4 ms in place of 3.8 (`2026-11-23_compressed.md`). A "
            "smaller budget gives them back",
        ),
        tierscape.row(),
    ]  # fmt: skip
