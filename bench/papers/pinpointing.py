"""The findings of "Pinpointing the Memory Behaviors of DNN Training" (ISPASS'21) on seven model families.

    python -m bench.papers.pinpointing [--traces DIR] [TRACE...]

Records one step of each family of ``train_family.py`` under ``ebbtide run --fast 100%`` (in DIR, where what is there is
not recorded again) and prints two tables. Further TRACEs, ours or of the format tiertrace/1, get rows of their own.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from ebbtide.analysis.columns import columns_of
from ebbtide.analysis.curves import mean_freed_bytes, moves_curve
from ebbtide.analysis.intervals import byte_seconds
from ebbtide.analysis.memory import memory_of, peak_of
from ebbtide.analysis.swapping import assumed_route, candidates_of
from ebbtide.ir.trace import Trace, idle_intervals
from ebbtide.pipeline.reading import read_trace
from ebbtide.units import format_bytes, format_time

FAMILIES = ("mlp", "vgg", "resnet", "bert", "gpt", "vit", "lstm")
BANDWIDTHS = (10**9, 6_400_000_000, 25 * 10**9)
"""An NVMe drive that is shared, PCIe 3 and PCIe 4 as a copy sees them; assumed."""
INTERVALS = ("step", "takes", "peak", "idle", "ATIs", "near 0", "median", "top 1 %", "top 10 %")
MOVES = ("step", *(f"{rate / 1e9:g} GB/s" for rate in BANDWIDTHS))


def record(family: str, path: Path) -> None:
    script = Path(__file__).with_name("train_family.py")
    command = [sys.executable, "-m", "ebbtide", "run", "--fast", "100%", "--quiet", "--save-trace", str(path)]
    subprocess.run([*command, str(script), family], check=True)


def intervals(name: str, trace: Trace) -> list[str]:
    """How ATIs and the bytes x time in them are distributed. Near 0: less than a thousandth of the step."""
    memory, found = memory_of(trace), idle_intervals(trace)
    weight = np.sort(byte_seconds(found.idle_ns, columns_of(trace).nbytes[found.storage]))[::-1]
    top = [percent(float(weight[: -(-len(weight) // part)].sum()), float(weight.sum())) for part in (100, 10)]
    return [
        name,
        format_time(trace.step_ns / 1e9),
        format_bytes(peak_of(trace).nbytes),
        percent(memory.mean(memory.idle_bytes), memory.mean(memory.live)),
        f"{len(found.storage):,}",
        percent(int((found.idle_ns < trace.step_ns / 1000).sum()), len(found.storage)),
        format_time(float(np.median(found.idle_ns)) / 1e9),
        *top,
    ]


def moves(name: str, trace: Trace) -> list[str]:
    """For each bandwidth: intervals that fit alone, and in a queue; live bytes then away on average; peak then left."""
    memory, texts = memory_of(trace), [name]
    for bytes_per_s in BANDWIDTHS:
        found = candidates_of(trace, assumed_route(bytes_per_s))
        away = mean_freed_bytes(trace, found, found.queued)
        left = moves_curve(trace, found)[-1].peak_bytes
        parts = (
            percent(int(found.alone.sum()), len(found)),
            percent(int(found.queued.sum()), len(found)),
            percent(away, memory.mean(memory.live)),
            percent(left, peak_of(trace).nbytes),
        )
        texts.append(" / ".join(parts))
    return texts


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description="Pinpointing's findings on seven model families.")
    parser.add_argument("--traces", type=Path, help="where recorded steps are kept")
    parser.add_argument("others", type=Path, nargs="*", metavar="TRACE")
    args = parser.parse_args()
    traces: dict[str, Trace] = {}
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            path = (args.traces or Path(folder)) / f"{family}.trace"
            if not path.exists():
                record(family, path)
            traces[family] = read_trace(path)[0]
    for path in args.others:
        trace = read_trace(path)[0]
        traces[trace.name] = trace
    for titles, row in ((INTERVALS, intervals), (MOVES, moves)):
        table = Table(box=box.MARKDOWN)
        for title in titles:
            table.add_column(title, justify="right")
        for name, trace in traces.items():
            table.add_row(*row(name, trace))
        Console(width=200).print(table)


if __name__ == "__main__":
    main()
