"""The findings of "Pinpointing the Memory Behaviors of DNN Training" (ISPASS'21) on seven model families.

    python bench/pinpointing.py [--traces DIR] [TRACE...]

Records one step of each family of ``train_family.py`` under ``ebbtide run --fast 100%`` (in DIR, where what is there is
not recorded again) and prints a table. Further TRACEs, ours or of the format tiertrace/1, get a row of their own.
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
from ebbtide.commands.inputs import read_trace
from ebbtide.ir.trace import Trace, idle_intervals
from ebbtide.units import format_bytes, format_time

FAMILIES = ("mlp", "vgg", "resnet", "bert", "gpt", "vit", "lstm")
BANDWIDTHS = (10**9, 6_400_000_000, 25 * 10**9)
"""An NVMe drive that is shared, PCIe 3 and PCIe 4 as a copy sees them; assumed."""
TITLES = (
    "step",
    "ms a step",
    "ticks",
    "peak",
    "idle",
    "ATIs",
    "< 0.1 % of the step",
    "median",
    "top 1 % hold",
    "top 10 % hold",
    *(
        f"{rate / 1e9:g} GB/s: {what}"
        for rate in BANDWIDTHS
        for what in ("ATIs that fit", "in a queue", "away", "peak left")
    ),
)


def record(family: str, path: Path) -> None:
    script = Path(__file__).with_name("train_family.py")
    command = [sys.executable, "-m", "ebbtide", "run", "--fast", "100%", "--quiet", "--save-trace", str(path)]
    subprocess.run([*command, str(script), family], check=True)


def row(name: str, trace: Trace) -> list[str]:
    memory, found = memory_of(trace), idle_intervals(trace)
    weight = np.sort(byte_seconds(found.idle_ns, columns_of(trace).nbytes[found.storage]))[::-1]
    live = memory.mean(memory.live)
    return [
        name,
        f"{trace.step_ns / 1e6:,.0f}",
        f"{len(trace.ticks):,}",
        format_bytes(peak_of(trace).nbytes),
        percent(memory.mean(memory.idle_bytes), live),
        f"{len(found.storage):,}",
        percent(int((found.idle_ns < trace.step_ns / 1000).sum()), len(found.storage)),
        format_time(float(np.median(found.idle_ns)) / 1e9),
        percent(float(weight[: -(-len(weight) // 100)].sum()), float(weight.sum())),
        percent(float(weight[: -(-len(weight) // 10)].sum()), float(weight.sum())),
        *(text for rate in BANDWIDTHS for text in at_bandwidth(trace, rate, live)),
    ]


def at_bandwidth(trace: Trace, bytes_per_s: int, live_bytes: int) -> list[str]:
    """Shares of the intervals that fit, of the live bytes that are then away, and of the peak that is left."""
    found = candidates_of(trace, assumed_route(bytes_per_s))
    away = mean_freed_bytes(trace, found, found.queued)
    left = moves_curve(trace, found)[-1].peak_bytes
    return [
        percent(int(found.alone.sum()), len(found)),
        percent(int(found.queued.sum()), len(found)),
        percent(away, live_bytes),
        percent(left, peak_of(trace).nbytes),
    ]


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description="Pinpointing's findings on seven model families.")
    parser.add_argument("--traces", type=Path, help="where recorded steps are kept")
    parser.add_argument("others", type=Path, nargs="*", metavar="TRACE")
    args = parser.parse_args()
    table = Table(box=box.MARKDOWN)
    for title in TITLES:
        table.add_column(title, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            path = (args.traces or Path(folder)) / f"{family}.trace"
            if not path.exists():
                record(family, path)
            table.add_row(*row(family, read_trace(path)[0]))
    for path in args.others:
        trace = read_trace(path)[0]
        table.add_row(*row(trace.name, trace))
    Console(width=400).print(table)


if __name__ == "__main__":
    main()
