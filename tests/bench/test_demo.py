"""What ``make demo`` foretells and shows, and that its runs move bytes and end with the same bits, in small."""

import io
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from demo import comparison, demo
from demo.calibrate import Speed, measured_speed
from demo.comparison import in_a_sentence, show
from demo.display import shown
from demo.forecast import Forecast, Net, roughly, run_s
from demo.runs import Door, Outcome, Run, RunFailed
from tests.helpers import forked

SPEED = Speed(50e9, 1e9, 100e9, 2e9, 1e9, 5.0)
SMALL = Net("--layers 4 --width 128 --heads 4 --seq 128 --batch 2 --dtype fp32 --steps 5", 100_000_000)


def test_the_type_is_the_one_whose_products_are_faster() -> None:
    assert SPEED.faster_dtype == "fp32"
    assert Speed(50e9, 100e9, 100e9, 200e9, 1e9, 5.0).faster_dtype == "bf16"
    assert (SPEED.flops("fp32"), SPEED.flops("bf16")) == (100e9, 2e9)


def test_a_step_has_the_flops_that_a_recorder_counts() -> None:
    counted = 1_183_800_000_000  # `ebbtide trace --fake` of GPT A in bf16
    assert demo.GPT_A["bf16"].step_flops == pytest.approx(counted, rel=0.03)


def test_a_run_that_moves_takes_longer_by_its_bytes_over_the_disks_rate() -> None:
    plain = run_s(SMALL, SPEED, moves=False)
    assert plain > SPEED.start_s
    assert run_s(SMALL, SPEED, moves=True) == pytest.approx(plain + SMALL.steps * 0.1)


def test_runs_that_ended_correct_what_is_left() -> None:
    forecast = Forecast({"one": 10, "two": 20, "three": 30})
    assert forecast.left_s() == 60
    assert forecast.left() == "about 60 seconds left"
    forecast.ended("one", 20)
    assert forecast.left_s() == 100
    assert forecast.left() == (
        "about 2 minutes left, corrected: runs take 2.0 times as long as the first estimate said"
    )
    forecast.left_out("three")
    assert forecast.left_s() == 40
    forecast.ended("two", 20)
    assert forecast.left_s() == 0
    assert (roughly(3), roughly(62), roughly(100)) == ("about 10 seconds", "about 60 seconds", "about 2 minutes")


def test_what_is_foretold_is_what_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []

    def execute(run: Run, folder: Path, ended: object) -> Outcome:
        ran.append(run.name)
        return Outcome(run, killed=False, result={"state_bytes": 3 << 20})

    monkeypatch.setattr(demo, "execute", execute)
    out = io.StringIO()
    forecast = Forecast(demo.expected_s(demo.GPT_A["fp32"], SPEED))
    stage = demo.Stage(tmp_path, Console(file=out), forecast)
    for _ in (*demo.gpt_a(demo.GPT_A["fp32"], stage), *demo.gpt_b(demo.GPT_B, stage)):
        pass
    assert forecast.left_s() == 0
    assert set(demo.expected_s(demo.GPT_A["fp32"], SPEED)) - set(ran) <= {demo.B_LIMITED}
    assert sum(" left" in line for line in out.getvalue().splitlines()) == len(ran) - 1


RESULT = {
    "state_bytes": 1, "peak_bytes": 1, "seconds": [1.0] * 4, "losses": [1.0.hex()], "weights_sha256": "",
    "optimizer_sha256": "",
}  # fmt: skip


def test_runs_that_worked_are_shown_where_ctrl_c_ends_the_demo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worked = Outcome(Run(demo.A_PLAIN, Door.STOCK, "--steps 4"), killed=False, result=RESULT)

    def runs(dtype: str, console: Console) -> Iterator[tuple[Outcome, Outcome]]:
        if dtype == "fp32":
            yield worked, worked
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "runs", runs)
    assert demo.main(["--dtype", "fp32", "--json", str(tmp_path / "all.json")]) == 130
    said = capsys.readouterr().out
    assert demo.A_PLAIN in said
    assert "Those runs took" in said
    assert [row["name"] for row in json.loads((tmp_path / "all.json").read_text())] == [demo.A_PLAIN]
    assert demo.main(["--dtype", "bf16"]) == 130
    assert capsys.readouterr() == ("", "")


def test_the_table_fits_a_terminal_and_is_one_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [demo.A_PLAIN, demo.A_TUNED, "A demand", "A planned", demo.B_PLAIN, demo.B_LIMITED, "B demand", "B planned"]
    worked = [Outcome(Run(name, Door.STOCK, "", fast="25%"), killed=False, result=RESULT) for name in names]
    pairs = [(outcome, outcome) for outcome in worked]
    show(pairs)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert {line.count("|") for line in lines} == {10}
    out = io.StringIO()

    def terminal(width: int = 80) -> Console:
        return Console(file=out, force_terminal=True, color_system=None, width=width)

    monkeypatch.setattr(comparison, "Console", terminal)
    show(pairs)
    lines = out.getvalue().splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines), lines
    assert "…" not in out.getvalue()
    assert sum("budget (--fast)" in line for line in lines) == 2
    assert sum("parameters + gradients + state" in line for line in lines) == 2


def test_runs_that_worked_are_shown_where_a_later_one_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worked = Outcome(Run(demo.A_PLAIN, Door.STOCK, "--steps 4"), killed=False, result=RESULT)

    def runs(dtype: str, console: Console) -> Iterator[tuple[Outcome, Outcome]]:
        yield worked, worked
        raise RunFailed("A demand ended with exit code 3:\nits last words")

    monkeypatch.setattr(demo, "runs", runs)
    assert demo.main(["--json", str(tmp_path / "all.json")]) == 1
    said = capsys.readouterr()
    assert demo.A_PLAIN in said.out
    assert "error: A demand ended with exit code 3:\nits last words" in said.err
    assert [row["name"] for row in json.loads((tmp_path / "all.json").read_text())] == [demo.A_PLAIN]


def test_the_table_ends_in_a_sentence() -> None:
    def outcome(run: Run, seconds: float, peak_bytes: int, report: dict[str, Any] | None = None) -> Outcome:
        same = {"losses": [(1.0).hex()], "weights_sha256": "", "optimizer_sha256": ""}
        return Outcome(run, False, {"peak_bytes": peak_bytes, "seconds": [seconds] * 4, **same}, report)

    plain = outcome(Run(demo.A_PLAIN, Door.STOCK, ""), 2.0, 4 * 10**9)
    bounded = {"steps": [], "process_peak_bytes": 10**9}  # since the budget was in force
    demand = outcome(Run("A demand", Door.EBBTIDE, "", policy="demand"), 3.0, 4 * 10**9, bounded)
    planned = outcome(Run("A planned", Door.EBBTIDE, ""), 2.1, 4 * 10**9, bounded)
    assert in_a_sentence([(plain, plain), (demand, plain), (planned, plain)]) == (
        "With the same bits as plain PyTorch, GPT A trained in 1.00 GB in place of 4.00 GB, at 1.05 times the time."
    )
    assert in_a_sentence([(plain, plain)]) == ""


def appears(out: io.StringIO, text: str) -> bool:
    for _ in range(3000):
        if text in out.getvalue():
            return True
        time.sleep(0.01)
    return False


def test_without_a_terminal_there_is_a_line_a_step_and_one_where_it_takes_long() -> None:
    out = io.StringIO()
    with shown(Console(file=out, width=40), 3, silent_s=0.01) as ended:
        assert appears(out, "    still starting, 0 s\n")
        for step in (1, 2):
            ended(step)
            assert appears(out, f"    step {step} of 3, ")
        assert appears(out, "    still step 2 of 3, ")
    assert re.fullmatch(r"(    (still )?(starting|step \d of 3), \d+ s\n)+", out.getvalue())


def test_on_a_terminal_there_is_a_bar_that_goes_away() -> None:
    out = io.StringIO()
    with shown(Console(file=out, force_terminal=True, width=100), 3) as ended:
        ended(2)
        assert appears(out, "step 2 of 3")
    assert "\n    step" not in out.getvalue()


@pytest.mark.starts
@pytest.mark.slow
def test_its_runs_move_bytes_and_end_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", forked.popen(forked.pythons(), forked.pythons(), forked.planners()))
    speed = measured_speed()
    assert min(speed.fp32, speed.bf16, speed.spill_bytes_per_s, speed.start_s) > 0
    out = io.StringIO()
    stage = demo.Stage(tmp_path, Console(file=out), Forecast(demo.expected_s(SMALL, speed)))
    pairs = list(demo.gpt_a(SMALL, stage))
    assert [outcome.run.name for outcome, _ in pairs] == ["A plain", "A plain, tuned glibc", "A demand", "A planned"]
    assert list(demo.problems(pairs)) == []
    for outcome, _ in pairs[2:]:
        assert outcome.moved_bytes("evicted_bytes", "activation") > 0
    assert out.getvalue().count("    step 5 of 5, ") == len(pairs)
