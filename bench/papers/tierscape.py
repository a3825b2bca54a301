"""TierScape's several compressed tiers (EuroSys'26), simulated: what a second codec saves in a training step.

A tier is a codec over DRAM. Its ratios and rates are those measured on contents of training, one thread
(``bench/results/2026-11-23_compressed.md``). As there, a knob weighs memory against time: each storage goes to the tier
in which it gains most, in the idle intervals that pay. Only the knob ties storages together, so this is the optimum of
an integer program with one bound. Its copies are then simulated, and slow operations by the threads that they take.

Left out: how TierScape finds cold pages, and the allocators and media under its tiers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.papers.common import GB, Row, outcome_of, peak_of
from bench.papers.steps import ADAMW_FP32, BERT_LARGE, XEON, resnet, transformer
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Tier
from ebbtide.ir.occupancy import arena_pages, live_bytes
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.trace import StorageKind, Trace
from ebbtide.planners.published.pressure import Pressure

THREADS, CORES = 4, 24
"""Of each direction of a codec; of ``XEON``."""
KNOBS = (0.0, 0.1, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 3.0)
"""What a ns of a longer step costs, over the peak's bytes for a ns. Zero takes whatever saves memory."""
MOST_TIME = 5.0
"""Per cent by which a step may be longer where savings are compared."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What a codec makes of a kind of contents: bytes kept over bytes, and GB of contents a second, in and out."""

    ratio: float
    pack: float
    unpack: float


Codec = Mapping[str, Packed]
"""By kind of contents; what it refuses is not there."""

STATE = Packed(0.91, 1.25, 1.69)
FP32: Mapping[str, Codec] = {
    "LZ4": {"relu": Packed(0.62, 0.79, 2.70)},
    "zstd": {
        "relu": Packed(0.53, 0.43, 1.18),
        "activation": Packed(0.92, 1.27, 1.71),
        "weight": Packed(0.92, 1.23, 1.63),
        "state": STATE,
    },
    "ours": {"relu": Packed(0.532, 3.9, 16.6)},
}
BF16: Mapping[str, Codec] = {
    "LZ4": {"relu": Packed(0.63, 0.58, 2.21)},
    "zstd": {
        "relu": Packed(0.46, 0.39, 1.20),
        "activation": Packed(0.76, 1.18, 1.99),
        "weight": Packed(0.77, 1.12, 1.85),
        "state": STATE,
    },
    "ours": {"relu": Packed(0.556, 3.8, 17.5)},
}
SETS = (("LZ4",), ("zstd",), ("LZ4", "zstd"), ("ours",), ("ours", "zstd"))


def steps() -> list[tuple[Trace, Mapping[str, Codec]]]:
    return [
        (resnet((3, 4, 6, 3), 128, XEON), FP32),
        (transformer(BERT_LARGE, 16, 512, XEON, ADAMW_FP32), BF16),
    ]


def machine_of(codecs: Mapping[str, Codec]) -> Machine:
    """Return DRAM and a tier for each codec and kind of contents. The tiers of a codec share its threads."""
    tiers, links, groups = [Tier("dram", InPlace.ALL)], list[Link](), list[LinkGroup]()
    slows = THREADS / CORES
    for name, codec in codecs.items():
        for way in ("pack", "unpack"):
            fastest = max(round(getattr(packed, way) * THREADS * GB) for packed in codec.values())
            groups.append(LinkGroup(f"{name}.{way}", fastest))
        for contents, packed in codec.items():
            tier = f"{name}.{contents}"
            tiers.append(Tier(tier, InPlace.NOTHING))
            pack, unpack = (round(rate * THREADS * GB) for rate in (packed.pack, packed.unpack))
            links.append(Link("dram", tier, pack, shares=f"{name}.pack", slows_compute=slows))
            links.append(Link(tier, "dram", unpack, shares=f"{name}.unpack", slows_compute=slows))
    return Machine("compressed tiers", Origin.ASSUMED, tuple(tiers), tuple(links), tuple(groups))


def contents_of(trace: Trace) -> list[str]:
    """Return each storage's kind of contents."""
    names = {StorageKind.ACTIVATION: "activation", StorageKind.OPTIMIZER_STATE: "state"}
    makers = trace.ticks.operator[trace.storages.birth].tolist()
    kinds = [names.get(kind, "weight") for kind in trace.storages.kind.tolist()]
    return [
        "relu" if kind == "activation" and maker in ("relu", "add_relu") else kind
        for kind, maker in zip(kinds, makers, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Saved:
    """The change of memory in bytes x time, and of the step's time, in per cent of all in DRAM."""

    memory: float
    time: float


def saved(trace: Trace, codecs: Mapping[str, Codec], knob: float) -> Saved:
    machine = machine_of(codecs)
    pressure = Pressure(trace, machine)
    idle, clock, contents = pressure.idle, pressure.clock, contents_of(trace)
    home, takes = [""] * len(idle), np.zeros(len(idle), dtype=bool)
    longer = knob * peak_of(trace) * THREADS / CORES  # of a ns of copying
    for number in np.unique(idle.storage).tolist():
        rows, best = np.flatnonzero(idle.storage == number), 0.0
        nbytes, returns = idle.nbytes[rows], idle.returns[rows]
        for name, codec in codecs.items():
            if (packed := codec.get(contents[number])) is None:
                continue
            copies = (nbytes / packed.pack + np.where(returns, nbytes / packed.unpack, 0.0)) / THREADS
            gains = (1 - packed.ratio) * nbytes * (pressure.idle_ns[rows] - copies) - longer * copies
            if (total := float(gains[gains > 0].sum())) > best:
                best = total
                takes[rows] = gains > 0
                for row in rows.tolist():
                    home[row] = f"{name}.{contents[number]}"
    free_from: dict[str, float] = {}
    need = clock.of(idle.until)
    chosen = np.flatnonzero(takes)
    for row in chosen[np.argsort(-need[chosen], kind="stable")].tolist():
        back = int(idle.until[row])
        if idle.returns[row]:
            link = machine.link(home[row], "dram")
            assert link is not None
            begin = min(float(need[row]), free_from.get(home[row], np.inf))
            begin -= float(idle.nbytes[row]) * 1e9 / link.bytes_per_s
            free_from[home[row]] = begin
            back = int(clock.at_or_before(np.array([max(begin, -clock.step_ns)]))[0])
        gone = int(idle.after[row]) + 1
        pressure.set(row, gone, gone, gone, max(back, gone))
    tier = machine.tiers[1].name  # of rows that stay, which no move has
    stays = tuple(pressure.stays([name or tier for name in home]))
    made = Plan("tierscape", PlanStatus.FEASIBLE, trace.signature(), 2**60, 0, 0, 0, stays)
    outcome = outcome_of(made, trace, machine)
    ratios = {f"{name}.{kind}": packed.ratio for name, codec in codecs.items() for kind, packed in codec.items()}
    held = sum(use.mean_bytes * ratios.get(name, 1.0) for name, use in outcome.tiers.items())
    before = round(float(np.average(live_bytes(trace, arena_pages), weights=trace.ticks.time_ns)))
    return Saved(100 * (held / before - 1), 100 * (outcome.step_ns / trace.step_ns - 1))


def within_time(tried: Sequence[Saved]) -> float:
    """Return the change of memory of the best that is not too slow; 0 where all are."""
    return min((one.memory for one in tried if one.time <= MOST_TIME), default=0.0)


def row() -> Row:
    found = {
        trace.name.split()[0]: {
            names: [saved(trace, {name: codecs[name] for name in names}, knob) for knob in KNOBS] for names in SETS
        }
        for trace, codecs in steps()
    }
    best = {net: {names: within_time(tried) for names, tried in sets.items()} for net, sets in found.items()}
    points = [of["LZ4", "zstd"] - min(of["LZ4",], of["zstd",]) for of in best.values()]
    beyond = [of["ours", "zstd"] - min(of["ours",], of["zstd",]) for of in best.values()]
    knob = next(iter(found.values()))["LZ4", "zstd"]
    ours, zstd = FP32["ours"]["relu"], FP32["zstd"]["relu"]
    return Row(
        "several compressed tiers, a knob, cost of ownership (TierScape)", "-22 to -40 points of TCO", "; ".join(
            f"{net}: " + ", ".join(f"{' and '.join(names)} {change:+.0f} %" for names, change in of.items())
            for net, of in best.items()
        ) + f", of memory x time for at most {MOST_TIME:+.0f} % of time. The knob ({next(iter(found))}, LZ4 and zstd): "
        + ", ".join(
            f"{weight:g} {one.memory:+.0f} % for {one.time:+.0f} %" for weight, one in zip(KNOBS, knob, strict=True)
        ),
        "",
        f"{'yes' if min(points) <= -22 else 'part' if min(points) <= -5 else 'no'}: a second codec adds "
        f"{', '.join(f'{round(value):+d}' for value in points)} points to the better of LZ4 and zstd, and "
        f"{', '.join(f'{round(value):+d}' for value in beyond)} to the better of ours and zstd. It hangs on the "
        "codecs' ratios and rates, measured on 2 AMD EPYC CPUs (build 0aacb58, `2026-11-23_compressed.md`): of what "
        f"ReLU left (fp32), ours keeps {ours.ratio:.0%} at {ours.pack} GB/s, zstd {zstd.ratio:.0%} at {zstd.pack} "
        "GB/s. The runtime has 1 compressed tier",
    )  # fmt: skip
