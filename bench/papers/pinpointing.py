"""The findings of "Pinpointing the Memory Behaviors of DNN Training" (ISPASS'21), which `bench.papers.findings` prints.

    python -m bench.papers.pinpointing [STEP...]

records steps of the families of ``train_family.py`` in ``FOLDER``, where what is there is not recorded again. Each
family once under ``ebbtide run --fast 100%``: those are the *real* figures. The *simulated* ones are of steps on fake
tensors, in modelled times: some architectures, on two data sets each, in two batch sizes.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from bench.papers.common import Row, spread, within
from bench.step.measure import machine
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
        weight = np.sort(byte_seconds(found.idle_ns, trace.storages.nbytes[found.storage]))[::-1]
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
    return {name: with_inputs(read_trace(traced(name))[0]) for name in commands() if noted(name).exists()}


def traced(name: str) -> Path:
    return FOLDER / f"{name}.trace"


def noted(name: str) -> Path:
    """Return the file that says which build recorded the step, and on what; it is written last."""
    return FOLDER / f"{name}.json"


def record(name: str) -> None:
    path = traced(name)
    if noted(name).exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".part")
    words = [str(made) if word == FILE else word for word in commands()[name]]
    subprocess.run([sys.executable, "-m", "ebbtide", *words], check=True)
    made.replace(path)
    noted(name).write_text(json.dumps(machine()))


def where(names: Iterable[str]) -> str:
    """Say which builds recorded these steps, and on what."""
    found = [json.loads(noted(name).read_text()) for name in names]
    return " and ".join(sorted({f"build {on['commit']}, {on['cores']} CPUs ({on['cpu']})" for on in found}))


def rows() -> list[Row]:
    traces = recorded()
    found = {name: Shares.of(trace) for name, trace in traces.items()}
    real = {name: one for name, one in found.items() if name in FAMILIES}
    made = {name: one for name, one in found.items() if name not in FAMILIES}
    took = [traces[name].step_ns / 1e9 for name in real]
    on = f"{len(real)} families ({', '.join(real)}), steps of {spread(took, '{:.1f} s')}, {where(real)}" if real else ""

    def texts(of: str, form: str = "{:.0f} %") -> tuple[str, str]:
        simulated, ours = ([getattr(one, of) for one in many.values()] for many in (made, real))
        return spread(simulated, form), f"{spread(ours, form)} of {on}" if ours else ""

    def all_of(of: str) -> list[float]:
        return [getattr(one, of) for many in (made, real) for one in many.values()]

    rule = assumed_route(6_300_000_000, RATE).most_bytes(25_000)
    cells = [
        Row(
            f"ATIs near 0, {name.replace(',', ' pixels,' if 'resnet' in name else ' tokens,')}",
            "no figure that could be read", f"near 0 {one.near_0:.0f} %, worth swapping {one.fit:.0f} %; if all moves "
            f"that fit a queue are made, {one.freed:.0f} % of bytes are away and the peak is at {one.left:.0f} %", "",
            f"{within([one.near_0], 50, 100)}: {one.near_0:.0f} % is {'less' if one.near_0 < 50 else 'more'} than half",
        )
        for name, one in made.items()
    ]  # fmt: skip
    return [
        Row(
            "ATIs concentrate near 0", "no figure that could be read", *texts("near_0"),
            f"{within(all_of('near_0'), 50, 100)}: 50 % and more count as yes. Near 0 is less than a thousandth of the "
            f"step; less than a hundredth are {spread(all_of('short'), '{:.0f} %')}",
        ),
        Row(
            "few blocks are worth swapping", "most are not", *texts("fit"),
            f"{within(all_of('fit'), 0, 50)}: up to 50 % counts as yes. Counted are the intervals that a copy each way "
            "fits, each alone, at 6.4 GB/s, which is assumed",
        ),
        Row(
            "outliers, large and idle for long, are the pressure", "a few", *texts("top_1"),
            f"{within(all_of('top_1'), 10, 100)}: 10 % and more count as yes. It is the share that 1 % of intervals, "
            "the largest, have of all bytes x ATI",
        ),
        Row(
            "the swap rule", "79.4 kB at 25 us, 6.3 and 6.4 GB/s (recalled, unconfirmed)", f"{rule:,} B", "",
            f"{within([rule], 79_300, 79_500)}: 79.3 to 79.5 kB counts as yes. It hangs on "
            "S = ATI / (1/out + 1/back), our reconstruction",
        ),
        Row(
            "contents are inputs, parameters and intermediate results", "intermediate results lead",
            f"inputs {texts('inputs', '{:.1f} %')[0]}, results {texts('results')[0]} of the peak",
            f"inputs {texts('inputs', '{:.1f} %')[1].partition(' of ')[0]}, results {texts('results')[1]}"
            if real else "",
            f"{within(all_of('results'), 50, 100)}: results of 50 % and more count as yes. Inputs have at most "
            f"{max(all_of('inputs')):.1f} %",
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
