"""``--fast auto`` takes the budget that an estimate proposes, and says why where there is none."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ebbtide.cli import cli
from ebbtide.commands.automatic_budget import budget_for, is_automatic, within
from ebbtide.errors import SettingError
from ebbtide.estimate.command import Estimated
from ebbtide.estimate.text import to_figures
from tests.estimate.test_estimate import MACHINE, MS, a_row, an_estimate
from tests.helpers.command import EBBTIDE, TRAIN_MLP, run

ROWS = a_row("100%", 5, 100 * MS), a_row("50%", 3, 109 * MS), a_row("25%", 2, 130 * MS)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The commands that were run: each is answered as `ebbtide estimate` answers for ``ROWS``."""
    commands: list[Sequence[str]] = []

    def estimated(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        cost = 1 + float(command[command.index("--within") + 1].removesuffix("%")) / 100
        fits = replace(an_estimate(*ROWS), small_cost=cost)
        said = json.dumps(to_figures(Estimated(fits, MACHINE, 0.9), ["train.py"]))
        return subprocess.CompletedProcess(command, 0, said)

    monkeypatch.setattr(subprocess, "run", estimated)
    return commands


def test_the_smallest_budget_within_the_share_is_taken(
    asked: list[Sequence[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert budget_for("auto", ["train.py", "--steps", "3"], 1) == "50%"
    assert asked[0][-6:] == ["--within", "10%", "--", "train.py", "--steps", "3"]  # its own options may be ours
    assert budget_for("auto:30%", ["train.py"], 1) == "25%"
    assert budget_for("auto:5%", ["train.py"], 1) == "100%"
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "ebbtide: --fast auto is --fast 50%: by the estimate 1.09 times as long"


def test_where_no_budget_is_cheap_the_fastest_that_fits_is_taken_and_that_is_said(
    asked: list[Sequence[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "ROWS", (replace(ROWS[0], fits=False), ROWS[2]))
    assert budget_for("auto", ["train.py"], 1) == "25%"
    assert "1.30 times as long; none is within 10% of full speed" in capsys.readouterr().err
    monkeypatch.setitem(globals(), "ROWS", (replace(ROWS[0], fits=False),))
    with pytest.raises(SettingError, match="no budget fits this machine"):
        budget_for("auto", ["train.py"], 1)


def test_what_cannot_be_estimated_is_refused(asked: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_automatic("auto")
    assert is_automatic("AUTO:25%")
    assert not is_automatic("automatic")
    assert not is_automatic("8GiB")
    for wrong in ("auto:", "auto:10%"):
        assert within(wrong) == "10%"
    assert within("auto:150%") == "150%"
    for wrong in ("auto:fast", "auto:0%", "auto:8GiB"):
        with pytest.raises(SettingError, match="how much slower"):
            budget_for(wrong, ["train.py"], 1)
    with pytest.raises(SettingError, match="one of 2 ranks"):
        budget_for("auto", ["train.py"], 2)
    assert not asked
    failed = subprocess.CompletedProcess((), 1, "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SettingError, match="needs an estimate, which failed"):
        budget_for("auto", ["train.py"], 1)


@pytest.mark.starts
@pytest.mark.slow
def test_a_script_trains_within_the_budget_that_was_estimated(tmp_path: Path) -> None:
    out, result = tmp_path / "out.json", tmp_path / "result.json"
    program = (TRAIN_MLP, "--width", "512", "--depth", "8", "--steps", "5", "--result", str(result))
    done = run(EBBTIDE, "run", "--fast", "auto:fast", "--report", str(out), *program, status=2)
    assert "how much slower" in done.stderr
    done = run(EBBTIDE, "run", "--fast", "auto:50%", "--report", str(out), *program, status=0)
    assert "ebbtide: --fast auto:50% is --fast " in done.stderr
    assert result.exists()
    assert json.loads(out.read_text())["bounded_as_asked"]


def test_a_device_s_budget_is_not_estimated() -> None:
    done = CliRunner().invoke(cli, ["run", "--fast", "auto", "--device", "cuda", "train.py"])
    assert "--fast auto does not go with --device" in str(done.exception)
