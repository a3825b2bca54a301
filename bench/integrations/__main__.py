"""What people train with, without Ebbtide and with it: a table of bench/results.

    python -m bench.integrations                              # all; what is not installed is left out and named
    python -m bench.integrations --only trainer --only ddp
    python -m bench.integrations --write bench/results/2026-11-25_integrations.md

The exit status is 0 if every case that ran gave the same bits, planned steps, moved bytes and kept its budget.
"""

import platform
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click
import torch

from bench.integrations.cases import CASES, Case
from bench.integrations.runs import Comparison, compare, missing
from ebbtide.ir.run_report import StepMode
from ebbtide.units import format_bytes

BEGIN, END = "<!-- table: `python -m bench.integrations --write` wrote it -->", "<!-- end of table -->"


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice([case.name for case in CASES]), help="A case, repeated for more."
)
@click.option("--steps", default=15, show_default=True, help="Optimizer steps of each run.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep what the runs leave behind, in this directory.")
@click.option("--write", type=click.Path(path_type=Path, exists=True), help="Put the table into this page.")
def main(only: tuple[str, ...], steps: int, keep: Path | None, write: Path | None) -> None:
    """Trains each case twice, plainly and within a budget, and prints a table in Markdown."""
    rows, left_out, worked = [], [], True
    for case in CASES:
        if only and case.name not in only:
            continue
        if package := missing(case):
            left_out.append(f"{case.name} ({package} is not installed)")
            continue
        with tempfile.TemporaryDirectory() as temporary:
            comparison = compare(case, (keep or Path(temporary)) / case.name, steps)
        worked &= comparison.worked
        rows.append(row(case, comparison))
        print(rows[-1], file=sys.stderr, flush=True)
        if not comparison.worked:
            print(comparison.within.printed[-3000:], file=sys.stderr)
    text = table(rows, left_out, steps)
    print(text)
    if write is not None:
        page = write.read_text()
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        write.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    sys.exit(not worked)


HEAD = """\
| framework | version | what | same bits | steps planned | tensors at the peak | within | moved a step | step |
|---|---|---|---|---|---|---|---|---|"""


def row(case: Case, comparison: Comparison) -> str:
    """Sizes are of a rank, moved bytes of the steps that followed a plan; the step is over that of plain PyTorch."""
    name = case.packages[0]
    cells = [name, version(name), case.about]
    if not comparison.reports or not comparison.same_bits:
        status = f"exit status {comparison.within.status}"
        return _cells([*cells, "**no**" if comparison.within.status == 0 else status, *[""] * 5])
    bounded = [step for report in comparison.reports for step in report.steps if step.mode is not StepMode.RECORDED]
    planned = [step for step in bounded if step.mode is StepMode.PLANNED]
    moved = sum(step.evicted_bytes.total for step in planned) // max(len(planned), 1)
    largest = max(comparison.reports, key=lambda report: report.unbounded_peak_bytes)
    arena = largest.arena_budget_bytes
    kept = comparison.within.status == 0 and all(not report.budget_violated for report in comparison.reports)
    cells += ["yes", f"{len(planned)} of {len(bounded)}", format_bytes(largest.unbounded_peak_bytes)]
    cells += [format_bytes(arena) if arena and kept else "**not kept**"]
    return _cells([*cells, format_bytes(moved), f"{comparison.step_ratio:.2f}"])


def table(rows: list[str], left_out: list[str], steps: int) -> str:
    cpus = torch.get_num_threads()
    about = (
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {cpus} {'CPU' if cpus == 1 else 'CPUs'}, torch "
        f"{torch.__version__}, Python {platform.python_version()}. Each row is two runs of {steps} steps in fresh "
        "processes, one thread each; *step* is the median of the last third, over that of the plain run."
    )
    said = [about, "", HEAD, *rows]
    if left_out:
        said += ["", f"Left out: {', '.join(left_out)}."]
    return "\n".join(said)


def _cells(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
