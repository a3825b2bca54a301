"""Ebbtide's default planner on the G10 traces, judged by their own checker: one table.

    python -m bench.papers.g10 FOLDER [--set gpu.capacity_bytes=32GiB]...

FOLDER holds the traces (``*.json``, tiertrace/1), ``check.py``, the judge, and the README with the published results.
It is no part of this repository. Each plan is made by ``ebbtide plan``'s own functions, written as tierplan/1, and
judged in its third iteration. Every figure is of a simulation; the column says whose.
"""

import argparse
import importlib.util
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.papers.common import Row as Finding
from ebbtide.commands.inputs import Inputs, read_inputs
from ebbtide.ir.tierplan import to_tierplan
from ebbtide.ir.tiertrace import read_tensor_ids
from ebbtide.planners import plan
from ebbtide.planners.base import page_size_of
from ebbtide.simulator import simulate_policy
from ebbtide.units import format_bytes

CHUNK_BYTES = 16 * 1024 * 1024
"""The judge's default."""


@dataclass(frozen=True, slots=True)
class Row:
    """Per cent of the ideal throughput, all resident: the limit, and what each reaches. ``judged`` is check.py's."""

    workload: str
    capacity_bytes: int
    limit: float
    published: float | None
    judged: float
    predicted: float
    demand_fetches: int
    lru_judged: float
    lru_predicted: float
    plan_s: float


def judge_in(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("g10_check", folder / "check.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"{folder} has no check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def published_in(folder: Path) -> dict[str, float]:
    """What the README reports for G10 itself, on the machine of the traces."""
    row = r"^\| (\w+) \| G10 \(`prefetch_lru`\) \| [\d.]+ \| ([\d.]+) \|"
    found = re.findall(row, (folder / "README.md").read_text(), re.MULTILINE)
    return {workload: float(share) for workload, share in found}


def judged(judge: ModuleType, trace: dict[str, Any], tierplan: dict[str, Any] | None) -> dict[str, Any]:
    """The third iteration."""
    simulation = judge.Sim(trace, tierplan, chunk=CHUNK_BYTES)
    results: list[dict[str, Any]] = [simulation.iteration() for _ in range(3)]
    return results[-1]


def changed_trace(path: Path, inputs: Inputs) -> dict[str, Any]:
    """The file with the machine as it was changed, for the judge."""
    trace: dict[str, Any] = json.loads(path.read_text())
    machine = inputs.machine
    for tier in trace["machine"]["tiers"]:
        tier["capacity_bytes"] = machine.tier(tier["name"]).capacity_bytes
    for link in trace["machine"]["links"]:
        found = machine.link(link["src"], link["dst"])
        assert found is not None
        link["bytes_per_s"], link["latency_ns"] = found.bytes_per_s, found.latency_ns
    rates = {group.name: group.bytes_per_s for group in machine.groups}
    for port in trace["machine"]["ports"]:
        port["bytes_per_s"] = rates[port["name"]]
    return trace


def row_of(path: Path, changes: list[str], judge: ModuleType, published: dict[str, float]) -> Row:
    inputs = read_inputs(path, None, changes, None)
    trace, machine, budget_bytes = inputs
    made = plan("ebbtide", trace, machine, budget_bytes)
    tierplan = json.loads(to_tierplan(made, trace, machine, read_tensor_ids(path)))
    for_judge = changed_trace(path, inputs)
    ours, lru = judged(judge, for_judge, tierplan), judged(judge, for_judge, None)
    lru_here = simulate_policy("lru", trace, machine, page_size_of(machine))
    return Row(
        path.stem,
        budget_bytes,
        100 * trace.step_ns / made.lower_bound_ns,
        published.get(path.stem) if not changes else None,
        ours["pct_of_ideal"],
        100 * trace.step_ns / made.predicted_ns,
        ours["demand_fetches"],
        lru["pct_of_ideal"],
        100 * trace.step_ns / lru_here.step_ns,
        made.plan_ns / 1e9,
    )


def table_of(rows: list[Row], changes: list[str]) -> Table:
    table = Table(title=" ".join(["G10's traces: per cent of the throughput with everything resident", *changes]))
    for name in ("workload", "GPU", "limit", "G10, published", "LRU", "LRU", "ours", "ours", "of the limit", "demand"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    table.add_column("planned in", justify="right")
    here, there = "our simulator", "check.py"
    says = ("", "", "our bound", "their simulator", there, here, there, here, there)
    table.add_row(*says, "fetches", "measured", style="dim")
    for row in rows:
        published = "-" if row.published is None else f"{row.published:.2f}"
        shares = [f"{share:.2f}" for share in (row.lru_judged, row.lru_predicted, row.judged, row.predicted)]
        share = f"{100 * row.judged / row.limit:.2f} %"
        first = (row.workload, format_bytes(row.capacity_bytes), f"{row.limit:.2f}", published)
        table.add_row(*first, *shares, share, str(row.demand_fetches), f"{row.plan_s:.1f} s")
    return table


def rows() -> list[Finding]:
    """Return the findings for the sources' page, of the traces in the folder that ``G10`` names."""
    folder = Path(os.environ.get("G10", "../shared/g10"))
    if not (folder / "check.py").exists():
        return [Finding("its traces", "published", f"0 traces: there is no {folder}", "", "no: not tried")]
    judge, published = judge_in(folder), published_in(folder)
    found = [row_of(path, [], judge, published) for path in sorted(folder.glob("*.json"))]
    return [
        *(
            Finding(
                f"{row.workload}: per cent of the throughput with everything resident", f"{row.published:.1f}",
                f"{row.judged:.1f} by the traces' `check.py`, LRU {row.lru_judged:.1f}", "",
                f"{verdict(row)}: what reaches the source's {row.published:.1f} and 99 % of our limit counts as yes. "
                f"It reaches {100 * row.judged / row.limit:.2f} % of the limit of {row.limit:.1f}, with "
                f"{row.demand_fetches} demand fetches, planned in {row.plan_s:.1f} s",
            )
            for row in found
        ),
        Finding(
            "Inception-v3 and SENet-154, converted from the authors' repository", "97.7 and 93.4",
            "99.58 and 99.07 % of our limit, by our simulator (build aecf384b, 2026-11-28)", "",
            "part: 99 % of our limit is reached, but 0 of the 2 were judged by `check.py`: their traces are not in the "
            "folder, and this command does not make the figures again",
        ),
    ]  # fmt: skip


def verdict(row: Row) -> str:
    reached = [row.judged >= (row.published or 0), row.judged >= 0.99 * row.limit]
    return "yes" if all(reached) else "part" if any(reached) else "no"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--only", metavar="WORKLOAD", help="one trace")
    asked = parser.parse_args()
    judge, published = judge_in(asked.folder), published_in(asked.folder)
    paths = [path for path in sorted(asked.folder.glob("*.json")) if asked.only in (None, path.stem)]
    if not paths:
        sys.exit(f"no traces in {asked.folder}")
    rows = []
    for path in paths:
        print(f"{path.stem} ...", file=sys.stderr)
        rows.append(row_of(path, asked.changes, judge, published))
    console = Console(width=180)
    console.print(table_of(rows, asked.changes))


if __name__ == "__main__":
    main()
