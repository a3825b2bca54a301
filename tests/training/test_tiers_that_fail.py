"""Tiers that are full, or fail, while training runs: the bits of plain PyTorch, or an end that names the tier."""

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ebbtide.errors import BudgetError
from tests.helpers import child, faulty_disk
from tests.helpers.faulty_disk import trains_on
from tests.helpers.small_disk import small_disk
from tests.training.test_tiers import a_disk_that_fills_up

SMALL, LARGE = "--tier=numa:0:8MiB", "--tier=numa:0:256MiB"  # a step's tensors peak at some 60 MiB
CHECKED = {"EBBTIDE_CHECKSUM": "1"}
FREE_SPACE = "free space there or choose another (--spill DIR or EBBTIDE_SPILL)"

WRITES_FAIL, READS_FAIL = f"pwritev:20:-1:{errno.EIO}", f"preadv:10:-1:{errno.EIO}"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Of so many MiB."""
    with ExitStack() as mounted:
        yield lambda mib: mounted.enter_context(small_disk(tmp_path, mib))


def _tiers(report: Path) -> dict[str, tuple[int, int]]:
    """What was written to each, and read from it."""
    return {
        tier["name"]: (tier["written_bytes"], tier["read_bytes"]) for tier in json.loads(report.read_text())["tiers"]
    }


def test_what_a_full_tier_refuses_goes_to_the_disk(disk: Callable, plain: object, tmp_path: Path) -> None:
    result, report = tmp_path / "result.json", tmp_path / "report.json"
    trains_on(result, SMALL, f"--spill={disk(300)}", f"--report={report}", env=CHECKED, status=0)
    assert json.loads(result.read_text()) == plain
    assert min(*_tiers(report)["numa0"], *_tiers(report)["spill file"]) > 0


def test_a_full_disk_behind_a_tier_that_holds_all_changes_nothing(
    disk: Callable, plain: object, tmp_path: Path
) -> None:
    result, report = tmp_path / "result.json", tmp_path / "report.json"
    trains_on(result, LARGE, f"--spill={disk(16)}", f"--report={report}", env=CHECKED, status=0)
    assert json.loads(result.read_text()) == plain
    assert min(_tiers(report)["numa0"]) > 0
    assert _tiers(report)["spill file"] == (0, 0)


def test_tiers_that_hold_less_than_a_steps_peak_are_refused_with_what_works(
    disk: Callable, plain: object, tmp_path: Path
) -> None:
    result, place = tmp_path / "result.json", disk(16)
    run = trains_on(result, SMALL, f"--spill={place}", status=BudgetError.exit_code)
    said = run.stderr.splitlines()[-1]
    assert "the tiers are too small: a step's tensors peak at" in said
    assert "8.00 MiB in numa0" in said
    assert f"MiB in {place}" in said
    assert "Use --fast 100%, or a directory with" in said
    assert not result.exists()
    trains_on(result, "--fast=100%", SMALL, f"--spill={place}", status=0)
    assert json.loads(result.read_text()) == plain


def test_a_disk_that_fills_up_behind_a_full_tier_is_an_error_and_the_step_can_be_made_again(disk: Callable) -> None:
    settings = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_POLICY": "demand", "EBBTIDE_TIERS": "numa:0:8MiB"}
    place = disk(700)
    settings["EBBTIDE_SPILL"] = str(place)
    said, read = child.run(a_disk_that_fills_up, str(place), env=settings)
    assert f"in the spill directory {place}: No space left on device" in said
    assert FREE_SPACE in said
    assert min(read) > 0


@pytest.mark.parametrize(("tier", "rule"), [(SMALL, f"pwritev:20:10:{errno.EIO}"), (LARGE, WRITES_FAIL)])
def test_writes_that_fail_change_no_bit_where_there_is_another_way(
    tier: str, rule: str, library: Path, plain: object, tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    trains_on(result, tier, env=faulty_disk.environment(library, rule), status=0)
    assert json.loads(result.read_text()) == plain


@pytest.mark.parametrize(("rule", "said"), [(WRITES_FAIL, "writing to"), (READS_FAIL, "reading a storage back from")])
def test_a_disk_that_fails_for_good_behind_a_full_tier_is_named(
    rule: str, said: str, library: Path, tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    run = trains_on(result, SMALL, f"--spill={Path.cwd()}", env=faulty_disk.environment(library, rule))
    assert run.returncode != 0
    assert f"{said} the spill directory {Path.cwd()} " in run.stderr
    assert "go on from a checkpoint with another directory (--spill DIR or EBBTIDE_SPILL)" in run.stderr
    assert not result.exists()
