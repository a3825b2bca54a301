"""Runs a case without Ebbtide and with it, and compares what the two leave behind."""

import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path

from bench.integrations.cases import Case
from ebbtide.ir.run_report import RunReport, StepMode
from ebbtide.pipeline.reading import read

OBSERVED = Path(__file__).parent / "observed"


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its exit status, what it printed, and step times in seconds (of the slowest rank)."""

    status: int
    printed: str
    step_s: tuple[float, ...]
    digests: tuple[tuple[str, str], ...]
    """SHA-256 of each file of weights and losses, by name."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A case's two sides, and the reports of the ranks that trained within the budget, of each run of theirs."""

    plain: Side
    within: Side
    reports: tuple[RunReport, ...]

    @property
    def same_bits(self) -> bool:
        return bool(self.plain.digests) and self.plain.digests == self.within.digests

    @property
    def modes(self) -> Counter[StepMode]:
        """Of all ranks' steps."""
        return Counter(step.mode for report in self.reports for step in report.steps)

    @property
    def evicted_bytes(self) -> int:
        """By the steps of all ranks together."""
        return sum(step.evicted_bytes.total for report in self.reports for step in report.steps)

    @property
    def worked(self) -> bool:
        """Same bits, planned steps in which bytes moved, and a budget that held, on every rank."""
        held = all(report.bounded_as_asked and not report.budget_violated for report in self.reports)
        moved = all(
            any(step.mode is StepMode.PLANNED and step.evicted_bytes.total for step in report.steps)
            for report in self.reports
        )
        return bool(self.reports) and self.within.status == 0 and self.same_bits and held and moved

    @property
    def step_ratio(self) -> float:
        """Of the medians over the last third of the steps, within the budget over plain."""
        within, plain = (statistics.median(_last(side.step_s)) for side in (self.within, self.plain))
        return within / plain


def missing(case: Case) -> str:
    """The first package of the case that is not installed, or ""."""
    for package in case.packages:
        try:
            version(package)
        except PackageNotFoundError:
            return package
    return ""


def compare(case: Case, folder: Path, steps: int, timeout_s: float | None = None) -> Comparison:
    """Everything is written below ``folder``. Raises subprocess.TimeoutExpired."""
    plain = run_side(case, folder / "plain", steps, timeout_s, within=False)
    return beside(plain, case, folder, steps, timeout_s)


def beside(plain: Side, case: Case, folder: Path, steps: int, timeout_s: float | None = None) -> Comparison:
    """The same with a plain side that has run: of this case, or of another whose ``plain`` is the same."""
    within = run_side(case, folder / "within", steps, timeout_s, within=True)
    return Comparison(plain, within, _reports(folder / "within"))


def run_side(case: Case, folder: Path, steps: int, timeout_s: float | None, within: bool) -> Side:
    out = folder / "out"
    out.mkdir(parents=True)
    runs = [(steps, ()), (2 * steps, ("--resume",))] if case.resumes else [(steps, ())]
    status, printed = 0, ""
    for number, (count, resumed) in enumerate(runs):
        more = ("--out", str(out), "--steps", str(count), *resumed)
        command = (case.within if within else case.plain)(sys.executable, more)
        status, said = _run(command, folder, f"report-{number}.json", timeout_s)
        printed += said
        if status:
            break
    return Side(status, printed, _step_seconds(folder), _digests(out))


def _run(command: Sequence[str], folder: Path, report: str, timeout_s: float | None) -> tuple[int, str]:
    paths = [str(OBSERVED), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "STEP_TIMES": str(folder)}
    environment |= {"EBBTIDE_REPORT": str(folder / report), "EBBTIDE_WAIT_FOR_PLAN": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        timeout=timeout_s,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout


def _reports(folder: Path) -> tuple[RunReport, ...]:
    reports = (read(path) for path in sorted(folder.glob("report*.json")))
    return tuple(report for report in reports if isinstance(report, RunReport))


def _digests(out: Path) -> tuple[tuple[str, str], ...]:
    files = sorted([*out.glob("weights.*.pt"), *out.glob("losses.*.json")])
    return tuple((path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files)


def _step_seconds(folder: Path) -> tuple[float, ...]:
    """From the end of one step to the end of the next, of the rank that took longest."""
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("times.*.json"))]
    between = [[after - before for before, after in pairwise(ended)] for ended in ranks]
    return tuple(max(between, key=sum, default=[]))


def _last(step_s: Sequence[float]) -> Sequence[float]:
    return step_s[-max(len(step_s) // 3, 1) :]
