"""Step time and memory of Ebbtide beside plain PyTorch and what people use today: the benchmark of the README.

    python -m bench.step.measure --out results.jsonl.gz --only 'gpt2-bf16/*' --pairs 12
    python -m bench.step.measure --out results.jsonl.gz --minutes 30
    python -m bench.step.table results.jsonl.gz

Every run is a fresh process. A round runs each cell once, two cells around each *tuned* plain run (A tuned B, in the
next round B tuned A), so that the two halves of a pair are neighbours in time. Every run is kept on disk at once:
started again with the same file, cells that have their pairs are skipped. With ``--minutes`` the first round takes
cells, most important first, as long as ``--least-pairs`` rounds of them fit; then rounds run while a whole one fits.
A cell that fails is recorded with its reason and left out from then on (``--retry`` tries again).
"""

import argparse
import fnmatch
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from bench.step.cells import CELLS, EBBTIDE_SETTLE_STEPS, STEADY_STEPS, Cell, Door, cell
from bench.step.children import CellFailed, Place, run_child
from bench.step.figures import step_s
from bench.step.results import Results
from ebbtide.errors import EbbtideError
from ebbtide.host.spill import choose_spill_directories
from ebbtide.probe.measure import QUICK, measure
from ebbtide.probe.model import DRAM, FILE, machine_of
from ebbtide.units import parse_size

FULL_STEPS = EBBTIDE_SETTLE_STEPS + STEADY_STEPS  # in a cell's first pair, so that all end with the same weights
_SHORT = (Door.SWAP, Door.DEEPSPEED)  # too slow for that; their losses are compared

Block = tuple[Cell, ...]


def blocks(cells: Sequence[Cell]) -> list[Block]:
    """One or two cells of one network each, in the order of importance; between them goes the tuned run."""
    made = []
    for _, group in groupby(cells, key=lambda found: found.net.name):
        same = list(group)
        made += [tuple(same[i : i + 2]) for i in range(0, len(same), 2)]
    return made


class Benchmark:
    """Rounds over blocks, into results. ``baseline`` is the way of the run that stands beside each."""

    def __init__(self, results: Results, place: Place, pairs: int, baseline: str = "tuned") -> None:
        self._results = results
        self._place = place
        self._pairs = pairs
        self._baseline = baseline
        self._bandwidth: dict[str, float] = {}

    def wanted(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those that have neither all their pairs nor a failure."""
        done = self._results
        return [c for c in cells if len(done.of(c.name)) < self._pairs and c.name not in done.failures]

    def run(self, cells: Sequence[Cell], limit_s: float, least_pairs: int) -> None:
        began = time.monotonic()
        chosen: list[Cell] = []
        for block in self._first_round(self.wanted(cells), limit_s / least_pairs):
            chosen += block
        took = time.monotonic() - began
        while (still := self.wanted(chosen)) and time.monotonic() - began + took < limit_s:
            started = time.monotonic()
            self.probe()
            for block in blocks(still):
                self.run_block(block)
            took = time.monotonic() - started

    def _first_round(self, cells: Sequence[Cell], limit_s: float) -> Iterator[Block]:
        """The blocks that were run: another begins only if one as long as the longest so far fits."""
        began, longest = time.monotonic(), 0.0
        self.probe()
        for block in blocks(cells):
            started = time.monotonic()
            if started - began + longest > limit_s:
                return
            self.run_block(block)
            longest = max(longest, time.monotonic() - started)
            yield block

    def probe(self) -> None:
        """The disk in this round, for the bounds. Ebbtide's runs measure it for themselves, as a user's do."""
        machine = machine_of(measure([self._place.spill], QUICK))
        read, write = machine.link(FILE, DRAM), machine.link(DRAM, FILE)
        assert read is not None
        assert write is not None
        speeds = [read.bytes_per_s, write.bytes_per_s, machine.groups[0].bytes_per_s]
        if limit := self._place.disk_bytes_per_s:
            speeds = [min(speed, most) for speed, most in zip(speeds, (limit, limit, 2 * limit), strict=True)]
        self._bandwidth = dict(zip(("read", "write", "both"), map(float, speeds), strict=True))
        print("disk GB/s: " + ", ".join(f"{k} {v / 1e9:.2f}" for k, v in self._bandwidth.items()), flush=True)

    def run_block(self, block: Block) -> None:
        """A tuned B, or B tuned A in odd rounds, or another baseline between; a cell alone is before or after it."""
        pair = len(self._results.of(block[0].name))
        baseline = cell(f"{block[0].net.name}/{self._baseline}")
        full = any(not self._results.of(c.name) and c.door not in _SHORT for c in block)
        sequence = [*block[:1], baseline, *block[1:]]
        numbers: dict[str, int] = {}
        for found in sequence if pair % 2 == 0 else reversed(sequence):
            number = self._run_cell(found, full)
            if number is not None:
                numbers[found.name] = number
        for found in block:
            if found.name in numbers and baseline.name in numbers:
                self._results.runs[numbers[found.name]]["baseline"] = numbers[baseline.name]
        self._results.write()

    def _run_cell(self, found: Cell, full: bool) -> int | None:
        """The number of the run in the results. None: it failed, now or before."""
        if found.name in self._results.failures:
            return None
        steps = FULL_STEPS + found.net.more_steps if full and found.door not in _SHORT else found.steps
        began = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            outcome = run_child(found, steps, self._place, self._peak_at_budget(found))
        except CellFailed as failure:
            self._results.fail(found.name, str(failure))
            print(f"{began}  {found.name:24} FAILED: {failure}", flush=True)
            return None
        context = {"cell": found.name, "pair": len(self._results.of(found.name)), "began": began, "baseline": None}
        record: dict[str, Any] = context | {"bandwidth": self._bandwidth} | outcome
        peak = f"{record['peak_bytes'] / 1e9:.2f} GB"
        print(
            f"{began}  {found.name:24} {step_s(record):6.2f} s a step, peak {peak}, {record['took_s']:.0f} s",
            flush=True,
        )
        return self._results.add(record)

    def _peak_at_budget(self, found: Cell) -> int | None:
        peaks = [run["peak_bytes"] for run in self._results.of(f"{found.net.name}/{found.fast}")]
        return round(median(peaks)) if peaks else None


def machine() -> dict[str, Any]:
    """What the table's caption says."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "commit": git.stdout.strip(),
    }


def chosen_cells(patterns: Sequence[str]) -> list[Cell]:
    """All cells, or those that a pattern names; a name without wildcards may also be one outside the list."""
    if not patterns:
        return list(CELLS)
    found = [c for c in CELLS if any(fnmatch.fnmatchcase(c.name, pattern) for pattern in patterns)]
    listed = {c.name for c in CELLS}
    for pattern in patterns:
        if not set("*?[") & set(pattern):
            if pattern not in listed:
                found.append(cell(pattern))
        elif not fnmatch.filter(listed, pattern):
            raise ValueError(f"no cell is called {pattern!r}; `--list` shows them all")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results.jsonl.gz"), help="results are added to this file")
    parser.add_argument("--only", action="append", default=[], metavar="CELL", help="a name or a pattern; repeatable")
    parser.add_argument("--pairs", type=int, default=12, help="how many each cell shall have (12)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end before this")
    parser.add_argument(
        "--least-pairs", type=int, default=3, help="with --minutes: take no more cells than allow these"
    )
    parser.add_argument("--child-minutes", type=float, default=10, help="a run that takes longer has failed (10)")
    parser.add_argument("--spill", help="directory on a local disk for spilled data (as for `ebbtide run`)")
    parser.add_argument("--disk", default="0B", metavar="SIZE", help="hold Ebbtide's disk to so much a second each way")
    parser.add_argument("--swap-file", default="0B", metavar="SIZE", help="as root: make swap of this size when needed")
    parser.add_argument("--deepspeed-python", type=Path, metavar="FILE", help="an interpreter that has DeepSpeed")
    parser.add_argument("--retry", action="store_true", help="try cells again that failed before")
    parser.add_argument("--list", action="store_true", help="print the cells, most important first")
    args = parser.parse_args()
    try:
        cells = chosen_cells(args.only)
        (spill,) = choose_spill_directories([args.spill] if args.spill else [])
        swap_bytes, disk_bytes_per_s = parse_size(args.swap_file), parse_size(args.disk)
        results = Results.open(args.out, machine() | {"disk_bytes_per_s": disk_bytes_per_s})
    except (ValueError, EbbtideError) as error:
        sys.exit(f"error: {error}")
    if args.list:
        print("\n".join(c.name for c in cells))
        return
    if args.retry:
        results.failures.clear()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that a swap file, a cgroup and a child are cleared away
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-", dir=spill) as name:
        place = Place(Path(name), spill, args.deepspeed_python, swap_bytes, args.child_minutes * 60, disk_bytes_per_s)
        Benchmark(results, place, args.pairs).run(cells, args.minutes * 60, args.least_pairs)
    for found in cells:
        print(f"{found.name:28} {len(results.of(found.name)):3} pairs  {results.failures.get(found.name, '')[:80]}")


if __name__ == "__main__":
    main()
