"""Whole runs of 10 and of 60 steps beside plain PyTorch, as users have them: all steps count, none waits for a plan.

    python -m bench.step.whole_runs --out whole.jsonl.gz --pairs 6
    python -m bench.step.whole_runs --out whole.jsonl.gz --table

A pair is two fresh processes, one after the other, and the next pair the other way round. Every run is kept at once:
started again, rows that have their pairs are skipped. Of each pair: the median step over that of plain PyTorch with
tuned glibc, of all steps and of the last third, and the CPU seconds of all steps. What plain PyTorch cannot hold runs
alone.
"""

import argparse
import fnmatch
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.step.cells import Cell, cell
from bench.step.children import CellFailed, Place, run_child
from bench.step.figures import Paired
from bench.step.measure import machine
from bench.step.results import Results
from bench.step.table_text import markdown
from ebbtide.errors import EbbtideError
from ebbtide.host.spill import choose_spill_directories
from ebbtide.units import GIB

CELLS = tuple(
    map(
        cell,
        (
            "resnet50-96px-20/25%",
            "llama/25%",
            "llama-1024/deferred-state/3",
            "gpt2-bf16/25%",
            "resnet50/25%",
            f"gpt2-xl/{8 * GIB}",
        ),
    )
)
STEPS = (10, 60)

Run = dict[str, Any]


def runs_of(results: Results, found: Cell, steps: int) -> list[Run]:
    return [run for run in results.of(found.name) if run["steps_run"] == steps]


def run_pair(results: Results, found: Cell, steps: int, place: Place) -> None:
    """The two runs of one pair. One that fails, or does not fit, is left out with its reason."""
    pair = len(runs_of(results, found, steps))
    numbers: dict[str, int] = {}
    both = [cell(f"{found.net.name}/tuned"), found]
    for each in both if pair % 2 == 0 else reversed(both):
        if each.name in results.failures:
            continue
        began = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            outcome = run_child(each, steps, place, waits=False)
        except CellFailed as failure:
            results.fail(each.name, str(failure))
            print(f"{began}  {each.name} FAILED: {failure}", flush=True)
            continue
        context = {"cell": each.name, "pair": pair, "steps_run": steps, "began": began, "baseline": None}
        numbers[each.name] = results.add(context | outcome)
        print(f"{began}  {each.name}, {steps} steps: {median(walls(context | outcome)):.2f} s", flush=True)
    if len(numbers) == 2:
        results.runs[numbers[found.name]]["baseline"] = numbers[both[0].name]
    results.write()


def walls(run: Run) -> list[float]:
    values: list[float] = run["steps"]["wall"]
    return values


def last_third(run: Run) -> list[float]:
    return walls(run)[-max(len(walls(run)) // 3, 1) :]


def row(results: Results, found: Cell, steps: int) -> list[str] | None:
    """As texts; None without runs."""
    runs = runs_of(results, found, steps)
    if not runs:
        return None
    pairs = [(run, results.runs[run["baseline"]]) for run in runs if run["baseline"] is not None]

    def over(figure: Any) -> str:
        paired = Paired.of([figure(run) / figure(plain) for run, plain in pairs])
        return f"{paired.median:.2f} ({paired.low:.2f}-{paired.high:.2f})" if paired is not None else ""

    same = all(
        run["losses"] == plain["losses"] and run["weights_sha256"] == plain["weights_sha256"] for run, plain in pairs
    )
    return [
        f"{found.net.shape.describe()}; {found.way}",
        str(steps),
        str(len(pairs) or len(runs)),
        f"{median(median(last_third(run)) for run in runs):.2f}",
        over(lambda run: median(walls(run))),
        over(lambda run: median(last_third(run))),
        over(lambda run: sum(run["steps"]["cpu"])),
        f"{max(run['peak_bytes'] for run in runs) / 1e9:.2f}",
        ("yes" if same else "NO") if pairs else "",
    ]


def table(results: Results) -> str:
    titles = [
        "",
        "steps",
        "pairs",
        "step s",
        "all over plain",
        "last third",
        "CPU s over plain",
        "peak GB",
        "same bits",
    ]
    rows = [row(results, found, steps) for found in CELLS for steps in STEPS]
    found = results.machine
    told = f"Build {found['commit']}, {found['cpu']}, {found['cores']} CPUs, Linux {found['kernel']}."
    failures = [f"- {name}: {why.splitlines()[0]}" for name, why in results.failures.items()]
    return "\n".join([told, "", markdown([titles, *filter(None, rows)]), "", *failures])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("whole.jsonl.gz"), help="runs are added to this file")
    parser.add_argument("--only", action="append", default=[], metavar="CELL", help="a name or a pattern; repeatable")
    parser.add_argument("--steps", type=int, action="append", choices=STEPS, help="these alone; repeatable")
    parser.add_argument("--pairs", type=int, default=6, help="how many each row shall have (6)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no pair after this")
    parser.add_argument("--spill", metavar="DIR", help="directory on a local disk for spilled data")
    parser.add_argument("--table", action="store_true", help="train nothing")
    args = parser.parse_args()
    try:
        results = Results.open(args.out, machine())
        (spill,) = choose_spill_directories([args.spill] if args.spill else [])
    except (ValueError, EbbtideError) as error:
        sys.exit(f"error: {error}")
    ends = time.monotonic() + args.minutes * 60
    cells = [each for each in CELLS if not args.only or any(fnmatch.fnmatchcase(each.name, p) for p in args.only)]
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-", dir=spill) as name:
        place = Place(Path(name), spill, None, 0, limit_s=3600)
        for pair in range(0 if args.table else args.pairs):
            for steps in args.steps or STEPS:
                for each in cells:
                    lacks = len(runs_of(results, each, steps)) <= pair and each.name not in results.failures
                    if lacks and time.monotonic() < ends:
                        run_pair(results, each, steps, place)
    print(table(results))


if __name__ == "__main__":
    main()
