"""The findings of "Pinpointing the Memory Behaviors of DNN Training" (ISPASS'21), which `bench.papers.findings` prints.

    python -m bench.papers.pinpointing [STEP...]

records steps of the families of ``train_family.py`` in ``FOLDER``, where what is there is not recorded again. Each
family once under ``ebbtide run --fast 100%``: those are the *real* figures. The *simulated* ones are of steps on fake
tensors, in modelled times: some architectures, on two data sets each, in two batch sizes.
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from bench.papers.common import Row, spread, within
from ebbtide.analysis.columns import columns_of
from ebbtide.analysis.curves import mean_freed_bytes, moves_curve
from ebbtide.analysis.intervals import byte_seconds
from ebbtide.analysis.memory import memory_of, peak_of
from ebbtide.analysis.swapping import assumed_route, candidates_of
from ebbtide.capture.inputs import with_inputs
from ebbtide.ir.trace import StorageKind, Trace, idle_intervals
from ebbtide.pipeline.reading import read_trace

FAMILIES = ("mlp", "vgg", "resnet", "bert", "gpt", "vit", "lstm")
GRID = {"resnet": ((32, 160), (8, 32)), "bert": ((64, 256), (8, 32)), "gpt": ((64, 256), (4, 16))}
"""Of an architecture, the extents of its data (pixels a side, tokens), and batch sizes."""
FOLDER, FILE = Path("build/sources"), "FILE"
RATE = 6_400_000_000
"""PCIe 3 as a copy sees it; assumed."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Figures of one step, in per cent. ``near_0``: ATIs of less than a thousandth of the step; ``short``: than a
    hundredth. ``fit``: intervals that
    the swap rule lets move. ``top_1``: of bytes x ATI, what the first 1 % of intervals have. ``freed``: of live bytes,
    what is away in the mean if all moves that fit a queue are made. ``left``: the peak then. ``inputs``: of the bytes
    at the peak, the batch's; ``results``: what operators made of it."""

    near_0: float
    short: float
    fit: float
    top_1: float
    freed: float
    left: float
    inputs: float
    results: float

    @staticmethod
    def of(trace: Trace) -> "Shares":
        found, memory = idle_intervals(trace), memory_of(trace)
        moves = candidates_of(trace, assumed_route(RATE))
        weight = np.sort(byte_seconds(found.idle_ns, columns_of(trace).nbytes[found.storage]))[::-1]
        peak, kept = peak_of(trace), (StorageKind.PARAMETER, StorageKind.OPTIMIZER_STATE)
        lasting = sum(one.nbytes for one in peak.residents if one.kind in kept)
        fed = sum(one.nbytes for one in peak.residents if one.kind is StorageKind.INPUT)
        return Shares(
            percent(int((found.idle_ns < trace.step_ns / 1000).sum()), len(found.storage)),
            percent(int((found.idle_ns < trace.step_ns / 100).sum()), len(found.storage)),
            percent(int(moves.alone.sum()), len(moves)),
            percent(float(weight[: -(-len(weight) // 100)].sum()), float(weight.sum())),
            percent(mean_freed_bytes(trace, moves, moves.queued), memory.mean(memory.live)),
            percent(moves_curve(trace, moves)[-1].peak_bytes, peak.nbytes),
            percent(fed, peak.nbytes),
            percent(peak.nbytes - lasting - fed, peak.nbytes),
        )


def percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def commands() -> dict[str, list[str]]:
    """Return what records each step; FILE stands for its file."""
    script = [FILE, str(Path(__file__).with_name("train_family.py"))]
    found = {family: ["run", "--fast", "100%", "--quiet", "--save-trace", *script, family] for family in FAMILIES}
    for family, (extents, batches) in GRID.items():
        for extent, batch in product(extents, batches):
            shape = ["--batch", str(batch), "--extent", str(extent)]
            fake = ["trace", "--fake", "--machine", "rtx4090", "-o"]
            found[f"{family} of {extent}, batch {batch}"] = [*fake, *script, family, *shape]
    return found


def recorded() -> dict[str, Trace]:
    paths = {name: FOLDER / f"{name}.trace" for name in commands()}
    return {name: with_inputs(read_trace(path)[0]) for name, path in paths.items() if path.exists()}


def record(name: str) -> None:
    path = FOLDER / f"{name}.trace"
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".part")
    words = [str(made) if word == FILE else word for word in commands()[name]]
    subprocess.run([sys.executable, "-m", "ebbtide", *words], check=True)
    made.replace(path)


def rows() -> list[Row]:
    traces = recorded()
    found = {name: Shares.of(trace) for name, trace in traces.items()}
    real = {name: one for name, one in found.items() if name in FAMILIES}
    made = {name: one for name, one in found.items() if name not in FAMILIES}
    took = [traces[name].step_ns / 1e9 for name in real]
    on = f"{len(real)} families ({', '.join(real)}), steps of {spread(took, '{:.1f} s')}" if real else ""

    def texts(of: str, form: str = "{:.0f} %") -> tuple[str, str]:
        simulated, ours = ([getattr(one, of) for one in many.values()] for many in (made, real))
        return spread(simulated, form), f"{spread(ours, form)} of {on}" if ours else ""

    def all_of(of: str) -> list[float]:
        return [getattr(one, of) for many in (made, real) for one in many.values()]

    rule = assumed_route(6_300_000_000, RATE).most_bytes(25_000)
    cells = [
        Row(
            name, "", f"near 0 {one.near_0:.0f} %, worth swapping {one.fit:.0f} %, bytes away {one.freed:.0f} %, peak "
            f"then {one.left:.0f} %", "", within([one.near_0], 50, 100),
        )
        for name, one in made.items()
    ]  # fmt: skip
    return [
        Row(
            "ATIs concentrate near 0", "no figure that could be read", *texts("near_0"),
            f"{within(all_of('near_0'), 50, 100)}: of all ATIs, those of less than a thousandth of the step; of less "
            f"than a hundredth, {spread(all_of('short'), '{:.0f} %')}",
        ),
        Row(
            "few blocks are worth swapping", "most are not", *texts("fit"),
            f"{within(all_of('fit'), 0, 50)}: the intervals that a copy each way fits, at 6.4 GB/s, each alone",
        ),
        Row(
            "outliers, large and idle for long, are the pressure", "a few", *texts("top_1"),
            f"{within(all_of('top_1'), 10, 100)}: of all bytes x ATI, what the first 1 % of intervals have",
        ),
        Row(
            "the swap rule", "79.4 kB at 25 us, 6.3 and 6.4 GB/s (recalled, unconfirmed)", f"{rule:,} B", "",
            f"{within([rule], 79_300, 79_500)}: S = ATI / (1/out + 1/back), our reconstruction",
        ),
        Row(
            "contents are inputs, parameters and intermediate results", "intermediate results lead",
            f"inputs {texts('inputs', '{:.1f} %')[0]}, results {texts('results')[0]} of the peak",
            f"inputs {spread([one.inputs for one in real.values()], '{:.1f} %')} of it" if real else "",
            f"{within(all_of('results'), 50, 100)}: the kind `input` is found by who makes a storage and who uses it "
            "(`capture/inputs.py`). So small a share decides no plan",
        ),
        *cells,
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the steps of the sources' page.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(commands())}; default: all")
    for name in parser.parse_args().steps or commands():
        record(name)


if __name__ == "__main__":
    main()
