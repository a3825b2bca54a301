"""How well a plan's predicted step time agrees with the real run's: the simulator's calibration.

    python -m bench.step.calibrate --out calibration.jsonl.gz                     # all cells, one pair each
    python -m bench.step.calibrate --out calibration.jsonl.gz --only 'resnet50/*' --pairs 3
    python -m bench.step.calibrate --out calibration.jsonl.gz --table             # only prints what the file holds
    python -m bench.step.calibrate --out results.jsonl.gz --table                 # the same of what measure.py measured

Every run is a fresh process, kept in the file at once (``results.py``); started again, cells that have their pairs are
skipped. Beside each run stands one at ``--fast 100%``: the same arena with nothing moved, whose steady steps are *the
resident step*. What a plan is made from is no measure of that: the recorded step touches pages for the first time, and
steps that followed a plan have page moves beside them (``own`` is how much longer their operations took). In a file of
``measure.py``, where a tuned plain run stands beside each, the resident step is that of the round's 100 % run, brought
to the moment of the cell's own run by the two tuned ones. A pair's figures:

    predicted   the plan's predicted step over the time of its operations that it was made from
    measured    the steady step over the resident step
    error       predicted over measured, less 1
    in seconds  the predicted step over the steady step, less 1: what a user sees of the forecast

Ebbtide measures the machine itself here, and plans anew with what its own steps showed, as it does for a user. A
plan that does not keep its budget (``over_budget``) predicts another run than the one that the arena then makes, so
its row is shown and not counted. At the end stands what `ebbtide estimate` says of each network without training it
(``estimates.py``).
"""

import argparse
import fnmatch
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.step.cells import Cell, cell
from bench.step.children import Place
from bench.step.estimates import Estimate, beside, estimate
from bench.step.estimates import table as estimates_table
from bench.step.figures import steady, steady_step_s, step_s
from bench.step.measure import Benchmark, machine
from bench.step.results import Results
from bench.step.table_text import markdown
from ebbtide.errors import EbbtideError
from ebbtide.host.spill import choose_spill_directories

NETWORKS = ("gpt2-bf16", "resnet50", "gpt-210M")  # the last: state takes most of it
WAYS = ("50%", "25%", "35%", "15%", "tiertrain-50%")
SMALL_NETWORKS = ("resnet50-96px", "gpt-small", "resnet-small")  # steps of a second or less; the first has much state
SMALL_WAYS = ("25%", "50%", "35%")
CELLS = (
    *(cell(f"{net}/{way}") for way in SMALL_WAYS for net in SMALL_NETWORKS),
    *(cell(f"{net}/{way}") for way in WAYS for net in NETWORKS),
)
RESIDENT = "100%"
OVER_BUDGET = "over_budget"

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One cell: medians over its pairs. Times in seconds, all else shares; ``stall`` is of the steady step."""

    name: str
    pairs: int
    status: str
    resident_s: float
    measured_s: float
    predicted: float
    measured: float
    error: float
    error_in_seconds: float
    own: float
    stall: float

    @property
    def counts(self) -> bool:
        return self.status != OVER_BUDGET


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the rows that count: sizes of errors, as shares, of the ratios and in seconds."""

    cells: int
    median_error: float
    worst_error: float
    worst: str
    median_in_seconds: float
    worst_in_seconds: float
    worst_by_seconds: str


def row(results: Results, found: Cell) -> tuple[Row | None, str]:
    """What the cell's pairs say, or why they say nothing."""
    if found.name in results.failures:
        return None, results.failures[found.name].splitlines()[0]
    pairs = _pairs(results, found)
    if not pairs:
        return None, "no pair was measured"
    for run, resident, _ in pairs:
        if any(step["mode"] != "planned" for step in (*steady(run), *steady(resident))):
            return None, "a steady step followed no plan"
        if any(step["evicted_bytes"] or step["fetched_bytes"] for step in steady(resident)):
            return None, f"something moved at {RESIDENT}, so that its step is not the resident one"

    plans = [run["report"]["plan"] for run, _, _ in pairs]
    steps = [(steady_step_s(run), resident_s) for run, _, resident_s in pairs]
    predicted = [plan["predicted_s"] / plan["step_s"] for plan in plans]
    measured = [ours / resident for ours, resident in steps]
    stalls = [median(step["stall_s"] for step in steady(run)) for run, _, _ in pairs]
    return Row(
        name=found.name,
        pairs=len(pairs),
        status=plans[-1]["status"],
        resident_s=median(resident for _, resident in steps),
        measured_s=median(ours for ours, _ in steps),
        predicted=median(predicted),
        measured=median(measured),
        error=median(p / m - 1 for p, m in zip(predicted, measured, strict=True)),
        error_in_seconds=median(plan["predicted_s"] / ours - 1 for plan, (ours, _) in zip(plans, steps, strict=True)),
        own=median(plan["step_s"] / resident - 1 for plan, (_, resident) in zip(plans, steps, strict=True)),
        stall=median(stall / ours for stall, (ours, _) in zip(stalls, steps, strict=True)),
    ), ""


def _pairs(results: Results, found: Cell) -> list[tuple[Run, Run, float]]:
    """The cell's runs, each with the run at RESIDENT to compare it with and that one's step in seconds."""
    name = f"{found.net.name}/{RESIDENT}"
    of_round = {run["pair"]: run for run in results.of(name) if run["baseline"] is not None}
    pairs = []
    for run in results.of(found.name):
        if run["baseline"] is None:
            continue
        beside = results.runs[run["baseline"]]
        if beside["cell"] == name:
            pairs.append((run, beside, steady_step_s(beside)))
        elif resident := of_round.get(run["pair"]):
            drift = step_s(beside) / step_s(results.runs[resident["baseline"]])
            pairs.append((run, resident, steady_step_s(resident) * drift))
    return pairs


def summary(rows: Sequence[Row]) -> Summary | None:
    """None where no row counts."""
    counted = [found for found in rows if found.counts]
    if not counted:
        return None
    worst = max(counted, key=lambda found: abs(found.error))
    worst_by_seconds = max(counted, key=lambda found: abs(found.error_in_seconds))
    return Summary(
        cells=len(counted),
        median_error=median(abs(found.error) for found in counted),
        worst_error=abs(worst.error),
        worst=worst.name,
        median_in_seconds=median(abs(found.error_in_seconds) for found in counted),
        worst_in_seconds=abs(worst_by_seconds.error_in_seconds),
        worst_by_seconds=worst_by_seconds.name,
    )


def table(rows: Sequence[Row]) -> str:
    titles = ["", "pairs", "plan", "resident s", "measured s", "predicted", "measured", "error"]
    lines = [[*titles, "in seconds", "own", "stall"]]
    for found in rows:
        times = [
            f"{found.resident_s:.3f}",
            f"{found.measured_s:.3f}",
            f"{found.predicted:.3f}",
            f"{found.measured:.3f}",
        ]
        shares = [
            f"{found.error:+.1%}",
            f"{found.error_in_seconds:+.1%}",
            f"{found.own:+.1%}",
            f"{found.stall:.1%}",
        ]
        lines.append([found.name, str(found.pairs), found.status, *times, *shares])
    return markdown(lines)


def show(
    results: Results, cells: Sequence[Cell], json_file: Path | None, estimates: dict[str, Estimate] | None = None
) -> None:
    found = [(each.name, *row(results, each)) for each in cells]
    rows = [each for _, each, _ in found if each is not None]
    total = summary(rows)
    print(table(rows))
    if total is not None:
        print(
            f"\nerror over {total.cells} cells: median {total.median_error:.1%}, "
            f"worst {total.worst_error:.1%} ({total.worst}); in seconds: median {total.median_in_seconds:.1%}, worst "
            f"{total.worst_in_seconds:.1%} ({total.worst_by_seconds})"
        )
    for name, each, why in found:
        if each is None:
            print(f"- {name}: {why}")
    rows_estimated = beside(results, cells, estimates or {}, RESIDENT)
    if rows_estimated:
        print(f"\n{estimates_table(rows_estimated)}")
    if json_file is not None:
        left_out = {name: why for name, each, why in found if each is None}
        value = {"machine": results.machine, "rows": [asdict(each) for each in rows], "left_out": left_out}
        value["summary"] = asdict(total) if total is not None else None
        value["estimates"] = [asdict(each) | {"error": each.error} for each in rows_estimated]
        json_file.write_text(json.dumps(value, indent=1) + "\n")


def estimates_of(results: Results, cells: Sequence[Cell]) -> dict[str, Estimate]:
    """What `ebbtide estimate` says now of each network that has runs to compare with."""
    found = {}
    for net in dict.fromkeys(each.net.name for each in cells):
        if results.of(f"{net}/{RESIDENT}"):
            try:
                found[net] = estimate(net)
            except (ValueError, subprocess.TimeoutExpired) as error:
                print(f"- {net} was not estimated: {error}")
    return found


def chosen(patterns: Sequence[str]) -> list[Cell]:
    """All cells, or those a pattern names; one without wildcards may also be outside the list. Raises ValueError."""
    cells = [each for each in CELLS if not patterns or any(fnmatch.fnmatchcase(each.name, p) for p in patterns)]
    listed = {each.name for each in CELLS}
    return cells + [cell(pattern) for pattern in patterns if not set("*?[") & set(pattern) and pattern not in listed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("calibration.jsonl.gz"), help="runs are added to this file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table's rows and the summary")
    parser.add_argument("--only", action="append", default=[], metavar="CELL", help="a name or a pattern; repeatable")
    parser.add_argument("--pairs", type=int, default=1, help="how many each cell shall have (1)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end before this")
    parser.add_argument("--child-minutes", type=float, default=10, help="a run that takes longer has failed (10)")
    parser.add_argument("--spill", metavar="DIR", help="directory on a local disk for spilled data")
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--estimates", action="store_true", help="with --table: still run `ebbtide estimate`")
    args = parser.parse_args()
    try:
        cells = chosen(args.only)
        results = Results.open(args.out, machine(), beside=("tuned", RESIDENT))
        (spill,) = choose_spill_directories([args.spill] if args.spill else [])
    except (ValueError, EbbtideError) as error:
        sys.exit(f"error: {error}")
    if not args.table:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a child is cleared away
        with tempfile.TemporaryDirectory(prefix="ebbtide-bench-", dir=spill) as name:
            place = Place(Path(name), spill, None, 0, args.child_minutes * 60)
            Benchmark(results, place, args.pairs, RESIDENT).run(cells, args.minutes * 60, 1)
    estimates = {} if args.table and not args.estimates else estimates_of(results, cells)
    show(results, cells, args.json, estimates)


if __name__ == "__main__":
    main()
