"""What `ebbtide estimate` says of a network before a run, beside what runs measured: the process's peak, and steps.

The measured process is the one at 100 %, in which nothing moves; its steady step is the resident one. A budget's row
compares the times of a step over that.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.step.cells import Cell
from bench.step.children import ROOT
from bench.step.figures import steady_step_s
from bench.step.results import Results
from bench.step.table_text import markdown

Estimate = dict[str, Any]
LIMIT_S = 600


@dataclass(frozen=True, slots=True)
class Beside:
    """A figure of a network as it was estimated and as it was measured."""

    name: str
    figure: str
    estimated: float
    measured: float

    @property
    def error(self) -> float:
        return self.estimated / self.measured - 1


def estimate(net: str) -> Estimate:
    """Run the command for a network of the benchmark. Raises ValueError with its last words where it fails."""
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as name:
        program = ["-m", "bench.step.train", net, "--steps", "6", "--result", str(Path(name, "result.json"))]
        command = [sys.executable, "-m", "ebbtide", "estimate", "--json", *program]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it printed nothing")
    found: Estimate = json.loads(done.stdout)
    return found


def beside(results: Results, cells: Sequence[Cell], estimates: dict[str, Estimate], resident: str) -> list[Beside]:
    """Compare the estimates with the runs at ``resident``, and the cells' budgets where both have them."""
    rows = []
    for net, found in estimates.items():
        runs = results.of(f"{net}/{resident}")
        if not runs:
            continue
        resident_s = median(steady_step_s(run) for run in runs)
        peak = median(run["report"]["process_peak_bytes"] for run in runs)
        rows.append(Beside(net, "process, MiB", found["process_bytes"] / 2**20, peak / 2**20))
        rows.append(Beside(net, "step, ms", found["step_ns"] / 1e6, resident_s * 1e3))
        planned = {row["fast"]: row["step_ns"] for row in found["budgets"] if row["step_ns"] is not None}
        for each in cells:
            ours = results.of(each.name)
            if each.net.name == net and each.way in planned and ours:
                times = median(steady_step_s(run) for run in ours) / resident_s
                rows.append(Beside(net, f"times at {each.way}", planned[each.way] / found["step_ns"], times))
    return rows


def table(rows: Sequence[Beside]) -> str:
    """Return the rows, and the median and the worst size of the errors by kind of figure."""
    lines = [["", "", "estimated", "measured", "error"]]
    lines += [
        [row.name, row.figure, f"{row.estimated:,.2f}", f"{row.measured:,.2f}", f"{row.error:+.1%}"] for row in rows
    ]
    kinds: dict[str, list[float]] = {}
    for row in rows:
        kinds.setdefault(row.figure.split()[0].rstrip(","), []).append(abs(row.error))
    sums = [f"{kind}: median error {median(errors):.1%}, worst {max(errors):.1%}" for kind, errors in kinds.items()]
    return "\n".join([markdown(lines), "", *sums])
