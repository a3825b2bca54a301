"""``ebbtide plan`` on recorded steps: CPU seconds of the whole command, and how good the plan is. One table.

    python -m bench.planning STEP.trace... [--machine NAME|FILE] [--fast 10%,25%,50%] [--out FILE.json]
    python -m bench.planning --before OLD.json --after NEW.json [--markdown]

Each plan is made by a command of its own, as a user makes it, on one core. CPU seconds are user and system time of that
process, all of it: Python's start, reading the trace, planning, writing the plan. Of ``--repeats`` runs of a
plan the least counts.
The second form compares two such files.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from ebbtide.ir.files import load
from ebbtide.ir.plan import Plan
from ebbtide.units import format_time, seconds


@dataclass(frozen=True, slots=True)
class Row:
    """One plan. ``storages`` and ``operations`` are the step's; ``refused`` says why there is no plan."""

    step: str
    fast: str
    operations: int = 0
    storages: int = 0
    bound_ns: int = 0
    predicted_ns: int = 0
    status: str = ""
    cpu_s: float = 0.0
    most_bytes: int = 0
    refused: str = ""

    @property
    def of_limit(self) -> float:
        """Per cent of the speed that no plan can beat."""
        return 100 * self.bound_ns / max(self.predicted_ns, 1)


def planned(step: Path, machine: str | None, fast: str, repeats: int) -> Row:
    """The least CPU seconds of so many runs: what other work on the machine adds is never less than nothing."""
    found = [_planned_once(step, machine, fast) for _ in range(repeats)]
    return min(found, key=lambda row: row.cpu_s)


def _planned_once(step: Path, machine: str | None, fast: str) -> Row:
    with TemporaryDirectory() as folder:
        made = Path(folder) / "made.plan"
        command = [sys.executable, "-m", "ebbtide", "plan", str(step), "-o", str(made)]
        command += [*(["--machine", machine] if machine else []), *(["--fast", fast] if fast else [])]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as it is where Ebbtide is installed
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True)
        assert child.stdout is not None
        said = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            return Row(step.stem, fast, refused=(said.strip().splitlines() or ["it said nothing"])[-1])
        plan = load(made, Plan)
    counts = re.search(r"^step +(\d+) operations, (\d+) storages", said, re.MULTILINE)
    assert counts is not None
    return Row(
        step.stem,
        fast,
        int(counts[1]),
        int(counts[2]),
        plan.lower_bound_ns,
        plan.predicted_ns,
        str(plan.status),
        used.ru_utime + used.ru_stime,
        used.ru_maxrss * 1024,
    )


def shown(rows: Sequence[Row]) -> list[list[str]]:
    """The columns' names, and a line for each plan."""
    names = ["step", "fast", "operations", "storages", "bound", "predicted", "of the limit", "status", "CPU s"]
    lines = [names]
    for row in rows:
        if row.refused:
            lines.append([row.step, row.fast, *[""] * 5, row.refused, ""])
            continue
        times = [format_time(seconds(ns)) for ns in (row.bound_ns, row.predicted_ns)]
        counts = [str(row.operations), str(row.storages)]
        lines.append([row.step, row.fast, *counts, *times, f"{row.of_limit:.2f} %", row.status, f"{row.cpu_s:.2f}"])
    return lines


def compared(before: Sequence[Row], after: Sequence[Row]) -> list[list[str]]:
    """Likewise, of plans that both have. Both are held against the bound of after: bounds differ, too."""
    names = ["step", "fast", "storages", "predicted before", "after", "after / before"]
    names += ["of the limit before", "after", "CPU s before", "after"]
    lines = [names]
    old = {(row.step, row.fast): row for row in before}
    for row in after:
        was = old.get((row.step, row.fast))
        if was is None or was.refused or row.refused:
            continue
        times = [format_time(seconds(ns)) for ns in (was.predicted_ns, row.predicted_ns)]
        limits = [f"{100 * row.bound_ns / ns:.2f} %" for ns in (was.predicted_ns, row.predicted_ns)]
        share = f"{row.predicted_ns / was.predicted_ns:.4f}"
        spent = [f"{was.cpu_s:.2f}", f"{row.cpu_s:.2f}"]
        lines.append([row.step, row.fast or "its own", str(row.storages), *times, share, *limits, *spent])
    return lines


def show(lines: list[list[str]], markdown: bool) -> None:
    names, *rows = lines
    if markdown:
        print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
        for row in rows:
            print("| " + " | ".join(row) + " |")
        return
    table = Table(title="ebbtide plan (times of steps are simulated)", title_justify="left")
    for name in names:
        table.add_column(name, justify="left" if name in ("step", "status") else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=150).print(table)


def read(path: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", type=Path)
    parser.add_argument("--machine", metavar="NAME|FILE")
    parser.add_argument("--fast", default="10%,25%,50%", help="budgets; empty for the machine's own")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path)
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    if asked.before is not None and asked.after is not None:
        show(compared(read(asked.before), read(asked.after)), asked.markdown)
        return
    rows = []
    for step in asked.steps:
        for fast in asked.fast.split(","):
            print(f"{step.stem} {fast} ...", file=sys.stderr)
            rows.append(planned(step, asked.machine, fast, asked.repeats))
            if asked.out is not None:
                asked.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    show(shown(rows), asked.markdown)


if __name__ == "__main__":
    main()
