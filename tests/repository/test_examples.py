"""Each script of examples/ runs in small: within a budget, with bytes moved, and with the bits of plain PyTorch."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.command import EBBTIDE, run
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.starts

EXAMPLES = ROOT / "examples"
PLAIN = {"EBBTIDE_DISABLE": "1"}
WITH_THE_COMMAND = {
    "train.py": ("--steps", "6", "--layers", "3", "--width", "128", "--rows", "4"),
    "ranks.py": ("--steps", "6", "--width", "256"),
}
WITH_A_SESSION = {
    "session.py": ("--epochs", "2", "--width", "256"),
    "deferred.py": ("--steps", "6", "--width", "384"),
}
OTHERS = ("checkpoints.py", "pipeline.py")


def ended(command: Sequence[str], folder: Path, env: dict[str, str]) -> str:
    """The digest that a script prints of its weights."""
    folder.mkdir(exist_ok=True)
    finished = run(*command, env={"EBBTIDE_REPORT": str(folder / "out.json")} | env, cwd=folder, status=0)
    return re.findall(r"^weights [0-9a-f]{64}$", finished.stdout, re.MULTILINE)[0]


def check_report(path: Path) -> None:
    report = json.loads(path.read_text())
    assert report["bounded_as_asked"]
    assert not report["budget_violated"]
    assert sum(step["evicted_bytes"]["total"] for step in report["steps"]) > 0
    assert sum(step["fetched_bytes"]["total"] for step in report["steps"]) > 0


def test_all_are_here_and_in_the_table() -> None:
    there = {path.name for path in EXAMPLES.glob("*.py")}
    assert there == {*WITH_THE_COMMAND, *WITH_A_SESSION, *OTHERS}
    listed = re.findall(r"^\| \[(\w+\.py)\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(there)


@pytest.mark.parametrize("name", WITH_THE_COMMAND)
def test_a_script_under_the_command_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    script = (str(EXAMPLES / name), *WITH_THE_COMMAND[name])
    plain = ended((sys.executable, *script), tmp_path / "plain", PLAIN)
    assert ended((EBBTIDE, "run", "--fast", "60%", *script), tmp_path / "ours", {}) == plain
    (report,) = (tmp_path / "ours").glob("out*.json")  # a rank's has its number
    check_report(report)


@pytest.mark.parametrize("name", WITH_A_SESSION)
def test_a_script_with_a_session_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    script = (sys.executable, str(EXAMPLES / name), *WITH_A_SESSION[name])
    plain = ended(script, tmp_path / "plain", PLAIN)
    assert ended(script, tmp_path / "ours", {}) == plain
    check_report(tmp_path / "ours" / "out.json")


def test_training_that_stopped_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    script = (sys.executable, str(EXAMPLES / "checkpoints.py"), "--width", "256", "--every", "2")
    plain = ended((*script, "--steps", "10"), tmp_path / "plain", PLAIN)
    halfway = ended((*script, "--steps", "5"), tmp_path / "ours", {})
    check_report(tmp_path / "ours" / "out.json")
    assert halfway != plain
    assert ended((*script, "--steps", "10"), tmp_path / "ours", {}) == plain
    check_report(tmp_path / "ours" / "out.json")


def test_a_step_is_planned_and_simulated(tmp_path: Path) -> None:
    command = (sys.executable, str(EXAMPLES / "pipeline.py"), "--width", "256", "--machine", "h200")
    finished = run(*command, "--budgets", "100%", "60%", cwd=tmp_path, status=0)
    rows = [line.split() for line in finished.stdout.splitlines() if "%" in line]
    assert [row[0] for row in rows] == ["100%", "60%"]
    assert float(rows[1][1]) >= float(rows[0][1]) > 0
    assert float(rows[0][2]) == 0  # with room for all nothing waits
