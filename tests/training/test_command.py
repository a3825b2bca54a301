"""``ebbtide run`` from end to end: an unmodified script, its report, its exit code, and budgets that cannot work."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.helpers.command import EBBTIDE, TRAIN_MLP, run

SMALL = ["--width", "1024", "--depth", "4", "--rows", "512", "--steps", "5"]
KINDS = {"total", "parameter", "gradient", "optimizer_state", "activation", "other"}
TOTALS = {
    "policy",
    "fast_bytes",
    "arena_budget_bytes",
    "process_peak_bytes",
    "unbounded_peak_bytes",
    "arena_peak_bytes",
    "arena_mean_bytes",
    "budget_violated",
    "adopted_bytes",
    "steps",
}
STEP = {"wall_s", "cpu_s", "stall_s", "evicted_bytes", "fetched_bytes", "written_bytes", "minor_faults", "mode"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the small script ends with when plain Python runs it."""
    result = tmp_path_factory.mktemp("plain") / "result.json"
    run(sys.executable, TRAIN_MLP, *SMALL, "--result", str(result), status=0)
    return json.loads(result.read_text())


def test_a_quarter_of_the_memory_gives_the_same_bits_and_a_full_report(plain: dict, tmp_path: Path) -> None:
    result, out = tmp_path / "result.json", tmp_path / "report.json"
    finished = run(EBBTIDE, "run", "--fast", "25%", "--report", str(out), TRAIN_MLP, *SMALL, "--result", str(result))
    assert finished.returncode == 0, finished.stderr
    assert json.loads(result.read_text()) == plain
    report = json.loads(out.read_text())
    assert report.keys() >= TOTALS
    assert report["budget_violated"] is False
    assert report["arena_budget_bytes"] == pytest.approx(report["unbounded_peak_bytes"] / 4, rel=0.01)
    assert 0 < report["arena_mean_bytes"] <= report["arena_peak_bytes"]
    assert 0 < report["resident_mean_bytes"] <= report["resident_peak_bytes"] <= report["arena_peak_bytes"]
    assert report["resident_mean_bytes"] <= report["arena_mean_bytes"]
    assert report["process_peak_bytes"] > report["arena_budget_bytes"]
    steps = report["steps"]
    assert [step["mode"] for step in steps] == ["recorded"] * 2 + ["planned"] * 3
    for step in steps:
        assert step.keys() >= STEP
        assert step["wall_s"] > 0
        assert step["cpu_s"] > 0
        for direction in ("evicted_bytes", "fetched_bytes", "written_bytes"):
            assert step[direction].keys() == KINDS
            assert step[direction]["total"] == sum(step[direction][kind] for kind in KINDS - {"total"})
        assert step["written_bytes"]["total"] <= step["evicted_bytes"]["total"]
    for kind in ("parameter", "gradient", "optimizer_state", "activation"):
        assert sum(step["evicted_bytes"][kind] for step in steps) > 0, kind
        assert sum(step["fetched_bytes"][kind] for step in steps) > 0, kind
    assert all(step["evicted_bytes"]["total"] == 0 for step in steps[:2])


def test_switched_off_it_is_plain_python(plain: dict, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [EBBTIDE, "run", "--fast", "25%", TRAIN_MLP, *SMALL, "--result", str(result)]
    run(*command, env={"EBBTIDE_DISABLE": "1"}, status=0)
    assert json.loads(result.read_text()) == plain


def test_a_module_runs_with_m(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    tiny = ["--width", "256", "--rows", "64", "--steps", "3"]
    finished = run(
        EBBTIDE, "run", "--fast", "50%", "-m", "train_mlp", *tiny, "--result", str(result), cwd=Path(TRAIN_MLP).parent
    )
    assert finished.returncode == 0, finished.stderr
    assert len(json.loads(result.read_text())["losses"]) == 3


def test_an_exception_in_the_script_is_shown_and_fails_the_command(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import torch\ntorch.ones(1000, 1000)\nraise LookupError('the script broke here')\n")
    finished = run(EBBTIDE, "run", "--fast", "50%", str(script), status=1)
    assert "LookupError: the script broke here" in finished.stderr


def smallest_named_in(message: str) -> str:
    """The budget that an error names as the smallest that can work, as --fast reads it."""
    found = re.search(r"--fast (\S+) or more", message)
    assert found, f"no smallest budget named in: {message}"
    return found[1]


# One layer of 64 MiB, so AdamW's largest operation needs 256 MiB (weight, gradient, two moments) beside the 220 MiB
# that Python with PyTorch takes: 2 % of the tensors, or 400 MiB for the process, cannot do.
ONE_LARGE_LAYER = ["--width", "4096", "--depth", "1", "--rows", "64", "--steps", "4"]


@pytest.mark.parametrize("fast", ["2%", "400MiB"])
def test_a_budget_too_small_names_the_smallest_which_then_works(fast: str) -> None:
    refused = run(EBBTIDE, "run", "--fast", fast, TRAIN_MLP, *ONE_LARGE_LAYER, status=3)
    assert "Traceback" not in refused.stderr
    if "run the script as it is" in refused.stderr:  # plain PyTorch takes no more than the smallest size that works
        assert fast == "400MiB"
        assert re.search(r"takes about \d+ MiB without Ebbtide", refused.stderr)
    smallest = smallest_named_in(refused.stderr)
    run(EBBTIDE, "run", "--fast", smallest, TRAIN_MLP, *ONE_LARGE_LAYER, status=0)


def test_a_budget_below_what_python_itself_takes_names_one_that_works() -> None:
    """A whole step is made, within what there is, so that what its operations need is known. That the named size works
    is tested with other nets (``test_named_sizes``)."""
    refused = run(EBBTIDE, "run", "--fast", "64MiB", TRAIN_MLP, *ONE_LARGE_LAYER, status=3)
    assert "one step runs within" in refused.stderr
    assert "A budget that works is" in refused.stderr


def test_where_operations_need_little_the_named_budget_follows_what_the_process_holds() -> None:
    """PyTorch loads more of itself in the first step, by some 70 MiB: more than the lower bound could know."""
    tiny = ["--width", "64", "--depth", "6", "--rows", "8", "--steps", "3"]
    fast = "64MiB"
    for _ in range(3):
        finished = run(EBBTIDE, "run", "--fast", fast, TRAIN_MLP, *tiny)
        if finished.returncode == 0:
            break
        fast = smallest_named_in(finished.stderr)
    assert finished.returncode == 0, finished.stderr
