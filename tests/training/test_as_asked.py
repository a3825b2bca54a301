"""``ebbtide run`` ends with status 3 where it was not bounded or not planned as asked, and says what to do."""

import json
import re
import sys
from pathlib import Path

import pytest

from ebbtide.host import process
from ebbtide.runtime.children import Children
from tests.helpers.command import EBBTIDE, TRAIN_MLP, run
from tests.helpers.paths import SCRIPTS
from tests.helpers.training_script import training_script

SMALL = ["--width", "512", "--depth", "3", "--rows", "256"]
LARGE = ["--width", "3328", "--depth", "2", "--rows", "16", "--steps", "2"]  # 338 MiB of parameters and state
BY_HAND = """
import torch
weights = [torch.randn(1024, 1024, requires_grad=True) for _ in range(3)]
for _ in range(4):
    hidden = torch.ones(64, 1024)
    for weight in weights:
        hidden = (hidden @ weight).tanh()
    hidden.sum().backward()
    with torch.no_grad():
        for weight in weights:
            weight -= 0.1 * weight.grad
            weight.grad = None
print("trained")
"""
TINY = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
GROWS = """
import torch
body = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(512, 512), torch.nn.GELU())])
head = torch.nn.Linear(512, 10)
body.requires_grad_(False)
optimizer = torch.optim.AdamW(head.parameters())
for n in range(12):
    if n == 4:  # from here the whole net is trained
        body.requires_grad_(True)
        optimizer.add_param_group({"params": list(body.parameters())})
    optimizer.zero_grad()
    head(body(torch.ones(32 if n < 8 else 512, 512))).square().mean().backward()
    optimizer.step()
print("trained", sum(p.double().sum().item() for p in (*body.parameters(), *head.parameters())))
"""
LAUNCHER = "import subprocess, sys\nsys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def test_a_percentage_without_an_optimizer_is_never_a_budget(script: Path, tmp_path: Path) -> None:
    script.write_text(BY_HAND)
    out = tmp_path / "out.json"
    done = run(EBBTIDE, "run", "--fast", "25%", "--report", str(out), str(script), status=3)
    assert "trained" in done.stdout
    assert "no optimizer step was seen, so 25 % could" in done.stderr
    assert "accelerate launch --no_python ebbtide run" in done.stderr
    assert "torchrun --no-python" in done.stderr
    assert "such as --fast 8GiB" in done.stderr
    assert "error: the run was not bounded as asked" in done.stderr
    report = json.loads(out.read_text())
    assert (report["bounded_as_asked"], report["planned_as_asked"], report["fast_bytes"]) == (False, True, None)


def test_the_percentage_that_is_named_works_where_updates_are_deferred(script: Path) -> None:
    script.write_text(training_script())
    refused = run(EBBTIDE, "run", "--fast", "3%", "--optimizer", "deferred", str(script), status=3)
    (named,) = re.findall(r"use --fast (\d+%) or more", refused.stderr)
    run(EBBTIDE, "run", "--fast", named, "--optimizer", "deferred", str(script), status=0)


def test_a_percentage_follows_a_net_and_a_batch_that_grow(script: Path, tmp_path: Path) -> None:
    script.write_text("import torch\ntorch.manual_seed(0)" + GROWS)
    out = tmp_path / "out.json"
    plain = run(sys.executable, str(script))
    done = run(EBBTIDE, "run", "--fast", "40%", "--report", str(out), str(script))
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
    report = json.loads(out.read_text())
    assert report["arena_budget_bytes"] == int(0.4 * report["unbounded_peak_bytes"])
    assert report["unbounded_peak_bytes"] > 16 << 20  # four layers with gradients and two moments
    assert "by now, so their limit is" in done.stderr
    assert sum(step["evicted_bytes"]["total"] for step in report["steps"][4:]) > 0


def test_a_size_without_an_optimizer_is_kept_and_the_summary_says_that_no_step_was_seen(script: Path) -> None:
    script.write_text(BY_HAND)
    done = run(EBBTIDE, "run", "--fast", "2GiB", str(script), status=0)
    assert "within budget, 0 steps" in done.stderr
    said = (
        "none was seen, so nothing was planned; this process stayed within its budget, and those that it starts are not"
    )
    assert said in done.stderr
    assert "a process that the script started" not in done.stderr


@pytest.mark.parametrize(
    ("steps", "said"),
    [("1", "1 of 2 steps that find the peak were seen"), ("2", "2 steps found the peak, and none followed")],
)
def test_a_percentage_of_too_few_steps_is_never_a_budget(steps: str, said: str) -> None:
    done = run(EBBTIDE, "run", "--fast", "50%", TRAIN_MLP, *SMALL, "--steps", steps, status=3)
    assert said in done.stderr
    assert "train for longer" in done.stderr


@pytest.mark.parametrize("fast", ["50%", "2GiB"])
@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("import argparse, torch\nargparse.ArgumentParser().parse_args()\n", 0, "usage: script.py"),
        ("", 0, ""),
        ("import subprocess\nsubprocess.run(['true'])\nraise SystemExit(7)\n", 7, ""),
    ],
)
def test_a_script_that_trains_nothing_ends_with_its_own_status_and_one_line(
    text: str, status: int, said: str, fast: str, script: Path
) -> None:
    script.write_text(text)
    done = run(EBBTIDE, "run", "--fast", fast, str(script), "--help", status=status)
    assert said in done.stdout
    told = [line for line in done.stderr.splitlines() if line.startswith("Ebbtide")]
    if status == 0:
        assert told == [
            "Ebbtide: nothing was trained here: no step was seen, and no tensor large enough to be managed."
        ]
    assert "trouble" not in done.stderr


@pytest.mark.parametrize(("trains", "status"), [(False, 0), (True, 3)])
def test_an_evaluation_has_not_failed_where_a_percentage_was_never_in_force(
    trains: bool, status: int, script: Path
) -> None:
    """Training without one of PyTorch's optimizers has: its backward passes show it."""
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(1024, 1024)\n"
        f"with torch.set_grad_enabled({trains}):\n    loss = model(torch.randn(64, 1024)).sum()\n"
        f"if {trains}:\n    loss.backward()\n"
    )
    done = run(EBBTIDE, "run", "--fast", "40%", str(script), status=status)
    assert "Ebbtide: NOT BOUNDED as asked, 0 steps" in done.stderr
    told = done.stderr.splitlines()[-1]
    assert told.startswith(f"ebbtide: {'error' if trains else 'warning'}: the run was not bounded as asked")


def test_a_script_whose_child_may_train_is_not_taken_for_an_idle_one(script: Path) -> None:
    """However little the child holds."""
    script.write_text("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import torch'])\n")
    done = run(EBBTIDE, "run", "--fast", "50%", str(script), status=3)
    assert "no optimizer step was seen, so 50 % could" in done.stderr


def test_where_nothing_is_large_enough_nothing_is_bounded(script: Path) -> None:
    script.write_text(TINY)
    done = run(EBBTIDE, "run", "--fast", "50%", str(script), status=3)
    assert "no storage was large enough to be managed" in done.stderr


@pytest.mark.alike
@pytest.mark.parametrize("fast", ["50%", "500MiB"])
def test_training_in_a_process_that_the_script_starts_is_not_bounded(script: Path, fast: str) -> None:
    script.write_text(LAUNCHER)
    done = run(EBBTIDE, "run", "--fast", fast, str(script), TRAIN_MLP, *LARGE, status=3)
    assert "Ebbtide: NOT BOUNDED as asked, 0 steps" in done.stderr
    assert "stayed within" not in done.stderr
    assert "accelerate launch --no_python ebbtide run" in done.stderr
    if fast != "50%":
        assert "a process that the script started peaked at" in done.stderr


@pytest.mark.alike
@pytest.mark.parametrize("option", [[], ["--fast", "4GiB"]])
def test_training_in_a_process_that_stays_below_the_size_is_told(option: list[str], script: Path) -> None:
    script.write_text(LAUNCHER)
    done = run(EBBTIDE, "run", *option, str(script), TRAIN_MLP, *LARGE, status=0)
    assert "warning: no step was seen, and a process that the script started peaked at" in done.stderr
    assert "which nothing bounded" in done.stderr
    assert "accelerate launch --no_python ebbtide run" in done.stderr
    assert "those that it starts are not bounded" in done.stderr


CHILD_BEFORE = """
import subprocess
import ebbtide
held = bytearray(600 * 2**20)
subprocess.run(["true"])  # the kernel counts what its parent held as this child's
del held
with ebbtide.Session("500MiB", policy="demand", progress="off") as session:
    subprocess.run(["true"])
assert session.report().bounded_as_asked, session.report().trouble
assert not session.report().trouble
"""


def test_what_this_process_held_itself_is_not_taken_for_a_childs(script: Path) -> None:
    script.write_text(CHILD_BEFORE)
    run(sys.executable, "-W", "error", str(script), status=0)


def test_only_what_lies_above_this_processs_own_peak_is_a_childs(monkeypatch: pytest.MonkeyPatch) -> None:
    own, ended, running = iter([600, 200, 200, 200, 200]), iter([700, 700, 620, 800, 800]), iter([0, 0, 0, 0, 900])
    monkeypatch.setattr(process, "peak_resident_bytes", lambda: next(own))
    monkeypatch.setattr(process, "peak_of_children_bytes", lambda: next(ended))
    monkeypatch.setattr(process, "peak_of_descendants_bytes", lambda: next(running))
    children = Children()
    assert [children.peak_bytes() for _ in range(4)] == [0, 0, 800, 900]


def test_a_plan_of_another_model_is_not_used_and_the_run_says_so_at_its_end(tmp_path: Path) -> None:
    plan, out = tmp_path / "mlp.plan", tmp_path / "out.json"
    run(EBBTIDE, "run", "--fast", "50%", "--save-plan", str(plan), TRAIN_MLP, *SMALL, "--steps", "4", status=0)
    ours = [EBBTIDE, "run", "--fast", "50%", "--plan", str(plan), "--report", str(out), TRAIN_MLP, "--steps", "4"]
    run(*ours, *SMALL, status=0)
    assert json.loads(out.read_text())["steps"][-1]["mode"] == "planned"
    other = run(*ours, "--width", "640", "--depth", "3", "--rows", "256", status=3)
    assert "error: the run was not planned as asked" in other.stderr
    assert other.stderr.count(f"no step followed the plan {plan}") == 1  # in the summary
    assert "made for a step with other storages" in other.stderr
    report = json.loads(out.read_text())
    assert (report["bounded_as_asked"], report["planned_as_asked"]) == (True, False)
    assert sum(step["fetched_bytes"]["total"] for step in report["steps"]) > 0


def test_a_machine_with_more_tiers_than_a_run_has_is_refused_before_anything_runs(script: Path) -> None:
    script.write_text("raise AssertionError('it ran')")
    done = run(EBBTIDE, "run", "--fast", "50%", "--machine", "g10", str(script), status=2)
    assert "it ran" not in done.stderr
    assert "has 3 tiers (gpu, host, ssd)" in done.stderr
    assert "ebbtide plan" in done.stderr


def test_the_scripts_own_status_comes_first(script: Path) -> None:
    script.write_text(f"{BY_HAND}\nimport sys\nsys.exit(7)\n")
    run(EBBTIDE, "run", "--fast", "25%", str(script), status=7)
    run(sys.executable, str(script), status=7)


def test_a_size_that_is_refused_is_not_called_exceeded(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run(EBBTIDE, "run", "--fast", "60MiB", "--report", str(out), TRAIN_MLP, *SMALL, "--steps", "2", status=3)
    assert "ebbtide: error: a budget of 60.0 MiB is too small" in done.stderr
    assert "OVER BUDGET" not in done.stderr
    assert "moved a step" not in done.stderr  # nothing was, so there is no table of it
    report = json.loads(out.read_text())
    assert (report["bounded_as_asked"], report["budget_violated"], report["fast_bytes"]) == (False, False, None)


def test_training_goes_on_with_the_same_bits_under_a_limit_that_fell_too_low() -> None:
    falling = str(SCRIPTS / "falling_limit.py")
    plain = run(sys.executable, falling, "plain")
    done = run(sys.executable, falling, "bounded", env={"EBBTIDE_WATCHDOG": "0.2"}, status=0)
    assert done.stdout == plain.stdout
    assert done.stdout.count("\n") == 5
    assert "EbbtideWarning: the budget was exceeded: this process can have" in done.stderr


def test_a_trace_to_save_leaves_a_run_without_a_size_bounded(tmp_path: Path) -> None:
    trace, plan, out = (tmp_path / name for name in ("step.trace", "step.plan", "out.json"))
    options = ["--save-trace", str(trace), "--save-plan", str(plan), "--report", str(out)]
    run(EBBTIDE, "run", *options, TRAIN_MLP, *SMALL, "--steps", "4", status=0)
    report = json.loads(out.read_text())
    assert (report["policy"], report["fast_bytes"] is None) == ("ebbtide", False)
    assert [step["mode"] for step in report["steps"]][-1] == "planned"
    assert trace.exists()
    assert plan.exists()


def test_a_plan_to_save_that_was_not_made_is_told(tmp_path: Path) -> None:
    plan = tmp_path / "step.plan"
    done = run(EBBTIDE, "run", "--fast", "2GiB", "--save-plan", str(plan), TRAIN_MLP, *SMALL, "--steps", "1", status=3)
    assert done.stderr.count("no step was planned, so there is no plan to save: 1 steps were made") == 1
    assert "error: the run was not planned as asked" in done.stderr
    assert not plan.exists()


def test_a_timeline_to_save_that_did_not_come_about_is_told(tmp_path: Path) -> None:
    """Beside the trouble of a percentage that was never in force, of which the report speaks."""
    line, out = tmp_path / "step.timeline", tmp_path / "out.json"
    saves = ["--save-timeline", str(line), "--report", str(out)]
    done = run(EBBTIDE, "run", "--fast", "50%", *saves, TRAIN_MLP, *SMALL, "--steps", "1", status=3)
    assert done.stderr.count("no step followed a plan to its end, so there is no timeline to save") == 1
    assert "error: the run was not bounded as asked" in done.stderr
    report = json.loads(out.read_text())
    assert (report["bounded_as_asked"], report["planned_as_asked"]) == (False, False)
    assert not line.exists()


@pytest.mark.parametrize("ends", ["", "raise SystemExit(7)"])
def test_a_report_that_cannot_be_saved_at_the_end_is_an_error_but_not_instead_of_the_summary(
    script: Path, tmp_path: Path, ends: str
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script.write_text(f"{TINY}\nimport shutil\nshutil.rmtree({str(gone)!r})\n{ends}\n")
    done = run(EBBTIDE, "run", "--fast", "2GiB", "--report", str(gone / "run.json"), str(script))
    assert done.returncode == (7 if ends else 3), done.stderr
    assert "Ebbtide: " in done.stderr  # the summary
    assert f"{'warning' if ends else 'error'}: the report could not be saved in {gone / 'run.json'}" in done.stderr
    assert "Traceback" not in done.stderr
