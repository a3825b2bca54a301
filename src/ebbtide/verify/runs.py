"""Runs the script once in a fresh process and a fresh directory, and reads its record."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ebbtide.errors import BudgetError, EbbtideError, how_it_ended
from ebbtide.ir.run_report import RunReport
from ebbtide.settings import PREFIX
from ebbtide.verify.child import EVERY
from ebbtide.verify.folders import Folder
from ebbtide.verify.record import FILE_NAME, Ending, Record, read_record

_LAST_LINES = 15


class RunError(EbbtideError):
    """A run of the script did not come to its end. ``said`` is the last of its output."""

    def __init__(self, name: str, status: int, said: str) -> None:
        super().__init__(name, status, said)
        self.name = name
        self.status = status
        self.said = said

    def __str__(self) -> str:
        ended = how_it_ended(self.status)
        return f"the {self.name} run {ended}, so there is nothing to compare. It said last:\n{self.said}"


@dataclass(frozen=True, slots=True)
class Run:
    """A run's record and ending. ``report`` is None for a plain run."""

    record: Record
    ending: Ending
    report: RunReport | None

    @property
    def steps(self) -> int:
        return self.ending.steps


def plain_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of stock PyTorch, which loads nothing of ours."""
    kept = {name: value for name, value in environment.items() if not name.startswith(PREFIX)}
    return kept | {f"{PREFIX}DISABLE": "1"}


def bounded_environment(
    options: Mapping[str, str], report: Path, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the user's variables, overridden by the command's options (EBBTIDE_... without the prefix).

    By default, the run has checksums, also of what is made anew. It waits for plans, so that as many steps as possible
    follow one.
    """
    kept = {name: value for name, value in environment.items() if name != f"{PREFIX}DISABLE"}
    ours = dict(options) | {"REPORT": str(report), "PROGRESS": "off"}
    by_default = {f"{PREFIX}CHECKSUM": "1", f"{PREFIX}REMAKE": "check", f"{PREFIX}WAIT_FOR_PLAN": "1"}
    return by_default | kept | {PREFIX + name: value for name, value in ours.items()}


def run_once(name: str, folder: Folder, root: Path, environment: Mapping[str, str], state_after: int | None) -> Run:
    """Run to the end. Raises RunError when the script fails. Going over the budget is a result, and in the report.

    The script's output goes to ``output.txt``, with the record and the report beside it.
    """
    record, report, output = root / FILE_NAME, root / "report.json", root / "output.txt"
    step = EVERY if state_after is None else str(state_after)
    command = [sys.executable, "-m", "ebbtide.verify.child", str(record), step, *folder.command]
    with output.open("wb") as said:
        status = subprocess.run(
            command, cwd=folder.working, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        ).returncode
    left = read_record(record)
    found = RunReport.from_json(report.read_text()) if report.exists() else None
    judged = found is not None and (found.budget_violated or not found.bounded_as_asked or not found.planned_as_asked)
    if left.ending is None or (status != 0 and not (judged and status == BudgetError.exit_code)):
        lines = output.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        raise RunError(name, status, "\n".join(f"    {line}" for line in lines))
    return Run(left, left.ending, found)
