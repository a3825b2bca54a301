"""Reports of several runs side by side, and how those of a job's ranks are found."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ebbtide.cli import cli
from ebbtide.report.ranks import ROWS, column, render_ranks
from tests.ir.test_report_format import REPORT

OTHER = replace(REPORT, fast_bytes=None, budget_violated=True, trouble="one operator needs more")


def report(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank, each in ((0, REPORT), (1, OTHER), (10, REPORT)):
        each.write(tmp_path / f"out.{rank}.json")
    (tmp_path / "out.other.3.json").write_text("not a rank's")
    return tmp_path


def test_a_column_says_what_a_row_is_called() -> None:
    named = dict(zip((*ROWS, "verdict", "trouble"), column(REPORT), strict=True))
    assert named == {
        "budget": "1.00 GiB",
        "bounded": "process",
        "peak": "0.98 GiB",
        "process peak": "0.98 GiB",
        "steps recorded": "1",
        "steps planned": "0",
        "steps on demand": "1",
        "time a step": "2.00 s",
        "stall a step": "400 ms",
        "out a step": "100 MiB",
        "in a step": "1.00 MiB",
        "written in all": "40.0 MiB",
        "verdict": "within budget",
        "trouble": "",
    }


def test_what_went_wrong_names_its_rank() -> None:
    text = render_ranks({"rank 0": column(REPORT), "rank 1": column(OTHER)})
    assert text.startswith("Ebbtide: NOT ALL within budget, 2 runs side by side")
    assert "  rank 0: within budget\n  rank 1: OVER BUDGET: one operator needs more" in text
    assert "700 MiB" in text  # of tensors


def test_runs_without_steps_have_a_column_too() -> None:
    assert "within budget" in render_ranks({"a": column(replace(REPORT, steps=())), "b": column(REPORT)})


def test_more_ranks_than_fit_a_line_stand_below() -> None:
    text = render_ranks({f"rank {rank}": column(REPORT) for rank in range(9)})
    assert text.count("written in all") == 2
    assert max(map(len, text.splitlines())) < 120


@pytest.mark.parametrize("width", [20, 60, 80, 110])
def test_ranks_stand_in_blocks_that_fit(width: int) -> None:
    names = [f"rank {rank}" for rank in range(9)]
    lines = render_ranks({name: column(REPORT) for name in names}, width).splitlines()[1:]
    fitting = {20: 1, 60: 3, 80: 5, 110: 7}[width]
    heads = [line.split("rank ")[1:] for line in lines if "rank " in line]
    assert [len(head) for head in heads] == [fitting] * (9 // fitting) + ([9 % fitting] if 9 % fitting else [])
    assert max(map(len, lines)) <= max(width, 31)


def test_the_ranks_of_a_job_are_found_by_the_name_they_were_given(folder: Path) -> None:
    printed = report(folder / "out.json")
    assert printed.exit_code == 0, printed.output
    heads = printed.output.splitlines()[1].split("rank ")[1:]
    assert [head.strip() for head in heads] == ["0", "1", "10"]


def test_files_of_one_name_are_told_apart(folder: Path, tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    REPORT.write(other / "out.0.json")
    heads = report(folder / "out.0.json", other / "out.0.json").output.splitlines()[1]
    assert "other/out.0" in heads
    assert report(folder / "out.0.json").output.startswith("Ebbtide: 34.1 M parameters trained for 2 steps")


def test_json_is_a_list_of_reports(folder: Path) -> None:
    listed = json.loads(report("--json", folder / "out.json").output)
    assert listed == [json.loads(each.to_json()) for each in (REPORT, OTHER, REPORT)]
    assert report("--json", folder / "out.json", "-o", folder / "page.html").exit_code == 2


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    missing = report(folder / "there.json")
    assert missing.exit_code == 2
    assert "there.json does not exist, and no there.0.json of a rank" in missing.output
