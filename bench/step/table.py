"""Prints results as Markdown, a table for each network.

python -m bench.step.table results.jsonl.gz            every figure
python -m bench.step.table results.jsonl.gz --brief    what a README has room for
python -m bench.step.table results.jsonl.gz --publish bench/results
                                              as a dated page there, with the raw results beside it
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from bench.step.cells import CELLS, Cell, cell
from bench.step.figures import LEAST_PAIRS, Paired, Row, row
from bench.step.nets import NETS
from bench.step.results import Results
from bench.step.table_text import markdown

Column = tuple[str, Callable[[Row], str]]

NAMES = {
    "stock": "plain PyTorch, stock",
    "tuned": "plain PyTorch, tuned glibc",
    "control": "tuned once more",
    "checkpoint": "activation checkpointing",
    "hooks": "saved tensors to disk (`torch.save`)",
    "compile-0.5": "`torch.compile`, activation budget 0.5",
    "deepspeed": "DeepSpeed ZeRO-3, optimizer on NVMe",
    "zero-offload": "DeepSpeed ZeRO-3, optimizer in memory",
}


def describe(found: Cell) -> str:
    if found.way in NAMES:
        return NAMES[found.way]
    budget = found.fast if found.fast.endswith("%") else f"{int(found.fast_argument) / 1e9:.2f} GB ({found.fast})"
    if found.way.startswith("swap-"):
        return f"kernel swap, as much memory as Ebbtide at {budget}"
    if found.way.startswith("zero-offload-"):
        return f"{NAMES['zero-offload']}, within Ebbtide {budget}"
    order = f", updates {found.order}" if found.order != "as-written" else ""
    moves = "" if found.remake else ", nothing made anew"
    return f"Ebbtide {budget}" + (f", {found.policy}" if found.policy != "ebbtide" else "") + order + moves


def ratio(paired: Paired | None) -> str:
    return f"{paired.median:.2f} ({paired.low:.2f}-{paired.high:.2f})" if paired else ""


def gigabytes(nbytes: float | None) -> str:
    return f"{nbytes / 1e9:.2f}" if nbytes is not None else ""


def seconds(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else ""


BRIEF: list[Column] = [
    ("step s", lambda r: seconds(r.step_s)),
    ("over tuned", lambda r: ratio(r.over_tuned)),
    ("over stock", lambda r: ratio(r.over_stock)),
    ("peak GB", lambda r: gigabytes(r.peak_bytes)),
    ("in GB", lambda r: gigabytes(r.in_bytes)),
    ("written GB", lambda r: gigabytes(r.written_bytes)),
    ("stall s", lambda r: seconds(r.stall_s)),
    ("same bits", lambda r: r.same_bits),
]
FULL: list[Column] = [
    ("pairs", lambda r: str(r.over_tuned.pairs) if r.over_tuned else ""),
    *BRIEF[:3],
    ("CPU s", lambda r: seconds(r.cpu_s)),
    BRIEF[3],
    ("mean GB", lambda r: gigabytes(r.mean_bytes)),
    ("out GB", lambda r: gigabytes(r.out_bytes)),
    *BRIEF[4:7],
    ("predicted", lambda r: seconds(r.predicted)),
    ("bound s", lambda r: seconds(r.bound_s)),
    ("over bound", lambda r: ratio(r.over_bound)),
    BRIEF[7],
]


def tables(results: Results, columns: list[Column]) -> list[tuple[str, str]]:
    """The network in words, and its table: tuned and stock first, then in the order of importance."""
    shown = []
    measured = dict.fromkeys([*(run["cell"] for run in results.runs), *results.failures])
    order = {found.name: number for number, found in enumerate(CELLS)}
    for net in NETS.values():
        names = [name for name in measured if name.startswith(f"{net.name}/")]
        names.sort(key=lambda name: ({"tuned": 0, "stock": 1}.get(name.partition("/")[2], 2), order.get(name, 0)))
        if not names:
            continue
        lines = [["", *(title for title, _ in columns)]]
        for name in names:
            found = row(results, cell(name))
            label = describe(cell(name)) + (" [1]" if name in results.failures else "")
            lines.append([label, *(text(found) if found else "" for _, text in columns)])
        shown.append((net.shape.describe(), markdown(lines)))
    return shown


def caption(results: Results) -> str:
    machine = results.machine
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 1e9:.0f} GB, Linux "
        f"{machine['kernel']}, torch {machine['torch']}. Ratios are medians over pairs of fresh processes, with their "
        f"95 % bootstrap interval (their range for fewer than {LEAST_PAIRS} pairs). Traffic, stall and CPU seconds are "
        "for one step. Peaks are the process's own (VmHWM), for a budget in percent since it took effect. The bound is "
        "max(the tuned run's step, bytes moved over the bandwidth probed in that round); none where runs were faster."
    )


def page(results: Results, columns: list[Column]) -> str:
    parts = [caption(results), *(f"**{title}**\n\n{table}" for title, table in tables(results, columns))]
    if results.failures:
        failures = "\n".join(f"- `{name}`: {why.splitlines()[0]}" for name, why in results.failures.items())
        parts.append(f"[1] not measured, or not in every round:\n\n{failures}")
    return "\n\n".join(parts)


def publish(results: Results, folder: Path, columns: list[Column]) -> Path:
    """Writes ``<date>_<commit>.md`` and the raw results beside it. Raises ValueError where nothing was measured."""
    if not results.runs:
        raise ValueError("they hold no runs")
    began = sorted(run["began"] for run in results.runs)
    written = folder / f"{began[0][:10]}_{results.machine['commit']}.md"
    held = results.machine.get("disk_bytes_per_s", 0)
    disk = f"held to {held / 1e9:.1f} GB/s each way for Ebbtide's runs; " if held else ""
    disk += ", ".join(
        f"{what} {min(speeds) / 1e9:.1f} to {max(speeds) / 1e9:.1f} GB/s"
        for what in ("read", "write", "both")
        if (speeds := [run["bandwidth"][what] for run in results.runs])
    )
    title = f"# Measured by build {results.machine['commit']}"
    when = f"Runs began from {began[0]} to {began[-1]} (UTC). Disk: {disk}."
    folder.mkdir(parents=True, exist_ok=True)
    written.write_text(f"{title}\n\n{when}\n\n{page(results, columns)}\n\nMade by `bench/step/table.py --publish`.\n")
    written.with_suffix(".jsonl.gz").write_bytes(results.path.read_bytes())
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--brief", action="store_true", help="fewer columns")
    parser.add_argument("--publish", type=Path, metavar="FOLDER", help="write a dated page, raw results beside it")
    args = parser.parse_args()
    try:
        results = Results.read(args.results)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read results: {error}")
    columns = BRIEF if args.brief else FULL
    if args.publish is None:
        print(page(results, columns))
        return
    try:
        print(publish(results, args.publish, columns))
    except (OSError, ValueError) as error:
        sys.exit(f"cannot publish the results: {error}")


if __name__ == "__main__":
    main()
