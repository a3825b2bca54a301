"""``ebbtide verify``: it finds what differs, where it begins, and does not call proven what nothing has shown."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbtide.cli import cli
from ebbtide.errors import FileFormatError, SettingError, SpillError
from ebbtide.ir.run_report import FORMAT, VERSION, RunReport, Stall, StepMode, StepReport, Traffic
from ebbtide.verify import folders
from ebbtide.verify.compare import Difference, first_difference
from ebbtide.verify.folders import make_folder
from ebbtide.verify.record import Ending, Loss, Record, Recorder, State, read_record
from ebbtide.verify.runs import Run, bounded_environment, plain_environment
from ebbtide.verify.text import render, to_json
from ebbtide.verify.verdict import judge_bounded, judge_plain
from tests.helpers.command import EBBTIDE, run
from tests.helpers.training_script import training_script

LARGE = {"parameter": 1 << 20, "gradient": 1 << 20, "optimizer_state": 1 << 20}
STATE = {"parameter w": "aa", "gradient w": "bb"}


def record(
    losses: tuple[str, ...] = ("1", "2", "3"),
    states: Mapping[int, Mapping[str, str]] | None = None,
    steps: int = 3,
    largest: Mapping[str, int] = LARGE,
) -> Record:
    """A run of one loss a step."""
    return Record(
        tuple(Loss(step, f"digest of {value}", value) for step, value in enumerate(losses)),
        {step: State(step, digests) for step, digests in (states or {3: STATE}).items()},
        Ending(0, steps, 100, 1.5, largest),
    )


def test_a_record_is_read_as_it_was_written_also_from_a_run_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "record"
    assert read_record(path) == Record((), {}, None)
    written = record()
    recorder = Recorder(path)
    for entry in (*written.losses, *written.states.values(), written.ending):
        recorder.write(entry)
    assert read_record(path) == written
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])
    assert read_record(path) == replace(written, ending=None)
    path.write_text("\n".join([lines[0], lines[1][:20], *lines[2:]]))
    with pytest.raises(FileFormatError, match="line 2"):
        read_record(path)


def test_the_first_difference_in_the_order_of_the_run_is_found() -> None:
    every = {1: STATE, 2: STATE, 3: STATE}
    base = record(states=every)
    assert first_difference(base, base) is None
    assert first_difference(base, record(("1", "9", "8"), every)) == Difference(2, "loss", "2", "9")
    twisted = STATE | {"gradient w": "zz"}
    assert first_difference(base, record(states=every | {2: twisted})) == Difference(2, "gradient w", "bb", "zz")
    assert first_difference(base, record(("1", "2", "9"), every | {2: twisted})).step == 2
    assert first_difference(base, record(states={3: twisted})) == Difference(3, "gradient w", "bb", "zz")
    shorter = {"parameter w": "aa"}
    assert first_difference(base, record(states={3: shorter})) == Difference(3, "gradient w", "bb", "absent")
    assert first_difference(record(states={3: shorter}), base) == Difference(3, "gradient w", "absent", "bb")
    assert first_difference(base, record(("1", "2"), every)).what == "number of backward calls"
    assert first_difference(base, record(("1", "2", "3", "4"), every)).step == 4
    assert first_difference(base, record(states=every, steps=5)) == Difference(4, "number of steps", "3", "5")
    two = Record((*base.losses, Loss(0, "x", "7")), base.states, base.ending)
    three = Record((*base.losses, Loss(0, "y", "8")), base.states, base.ending)
    assert first_difference(two, three) == Difference(1, "loss 2", "7", "8")


def step_report(mode: StepMode, nbytes: tuple[int, ...]) -> StepReport:
    moved = Traffic.of(nbytes)
    return StepReport(1.0, 1.0, Stall(0, 0, 0), moved, moved, moved, 0, mode)


def report(nbytes: tuple[int, ...] = (1, 1, 1, 1, 0), fast_bytes: int | None = 50, violated: bool = False) -> RunReport:
    steps = (step_report(StepMode.RECORDED, (9, 9, 9, 9, 9)), step_report(StepMode.PLANNED, nbytes))
    return RunReport(
        FORMAT, VERSION, "ebbtide", fast_bytes, fast_bytes, 60, 100, 40, 30, violated, "", 0, 0, (), None, steps
    )


def verdict_of(bounded: Record, its_report: RunReport, plain: Record | None = None):
    plain = plain or record(states={1: STATE, 2: STATE, 3: STATE})
    run_of_plain = Run(plain, plain.ending, None)
    verdict = judge_plain(("train.py",), "25%", run_of_plain, run_of_plain)
    return judge_bounded(verdict, run_of_plain, Run(bounded, bounded.ending, its_report), min_storage_bytes=65_536)


def test_all_three_must_hold() -> None:
    good = verdict_of(record(), report())
    assert (good.same_bits, good.budget_held, good.every_kind_moved, good.proven) == (True, True, True, True)
    assert (good.losses, good.steps, good.tensors) == (3, 3, 2)
    assert render(good).startswith("VERIFIED: train.py")
    for bad, word in (
        (verdict_of(record(("1", "2", "9")), report()), "in step 3, loss: 3 against 9"),
        (verdict_of(record(), report(violated=True)), "NO: process 60 B of 50 B"),
        (
            verdict_of(record(), replace(report(violated=True), fast_bytes=None)),
            "NO: tensors 40 B of 50 B, which is all",
        ),
        (verdict_of(record(), report(fast_bytes=None)), "none was ever in force"),
    ):
        assert not bad.proven
        assert render(bad).startswith("NOT VERIFIED: train.py")
        assert word in render(bad)
        assert json.loads(to_json(bad))["proven"] is False


def test_the_same_bits_of_what_did_not_move_are_not_called_proven() -> None:
    for moved in ((1, 0, 1, 1, 0), (1, 1, 1, 0, 7)):
        verdict = verdict_of(record(), report(moved))
        assert not verdict.proven
        assert render(verdict).startswith("THE SAME BITS, NOT SHOWN FOR ALL THAT CAN MOVE: train.py")
        assert "NO: what stayed in memory" in render(verdict)
        assert "<- it stayed" in render(verdict)
        assert "smaller budget" not in render(verdict)  # nothing was tried that would say which one works
        assert json.loads(to_json(verdict))["proven"] is False


def test_a_run_that_evicts_all_shows_what_the_budget_left_in_memory() -> None:
    stayed, moved = verdict_of(record(), report((1, 0, 1, 0, 0))), verdict_of(record(), report())
    both = stayed.with_evicting(moved)
    assert (both.proven, both.evicted) == (True, ("gradient", "activation"))
    assert render(both).startswith("VERIFIED: train.py")
    assert "every kind moved   yes; (evict-all) in a further run" in render(both)
    assert render(both).count("(evict-all)") == 3
    wrong = stayed.with_evicting(verdict_of(record(("1", "2", "9")), report()))
    assert not wrong.same_bits
    assert "in step 3, loss: 3 against 9" in render(wrong)
    assert not stayed.with_evicting(verdict_of(record(), report(violated=True))).proven
    assert not stayed.with_evicting(stayed).proven


def test_a_kind_that_the_script_does_not_have_need_not_move() -> None:
    stateless = record(states={3: STATE}, largest={"parameter": 1 << 20, "gradient": 1 << 20, "optimizer_state": 8})
    verdict = verdict_of(record(), report((1, 1, 0, 1, 0)), stateless)
    assert verdict.proven
    assert "none is large enough to be moved" in render(verdict)


def test_what_plain_pytorch_does_not_repeat_is_named_gradients_first() -> None:
    every = {step: STATE | {f"buffer {number}": "ee" for number in range(6)} for step in (1, 2, 3)}
    other = {2: {name: f"{digest}'" for name, digest in every[2].items()}, 3: dict.fromkeys(every[3], "xx")}
    one, again = (record(states=states) for states in (every, every | other))
    found = judge_plain(("train.py",), "25%", Run(one, one.ending, None), Run(again, again.ending, None), "cuda:0")
    assert found.unsteady == Difference(2, "parameter w", "aa", "aa'")
    assert found.unrepeated[:3] == ("gradient w", "parameter w", "buffer 0")
    assert "not repeated       8 results of that step: gradient w, parameter w, buffer 0" in render(found)
    assert "buffer 3 and 2 more" in render(found)
    assert json.loads(to_json(found))["device"] == "cuda:0"


def test_a_devices_verdict_tells_of_its_memory() -> None:
    good = replace(verdict_of(record(), report()), device="cuda:0", plain_device_bytes=90)
    assert render(good).startswith("VERIFIED: train.py, --device cuda:0 --fast 25%")
    assert "budget held        yes: managed tensors on cuda:0 40 B of 50 B" in render(good)
    assert "peak on cuda:0     plain 90 B, of all tensors" in render(good)
    assert "(chaos) in a further run" in render(replace(good, evicted=("gradient",)))


def test_where_a_difference_begins_is_told_or_that_it_did_not_come_back() -> None:
    bad = verdict_of(record(("1", "2", "9")), report())
    assert "it begins so: in step 2, parameter w: aa against cc" in render(
        bad.with_trace(Difference(2, "parameter w", "aa", "cc"))
    )
    assert "does not always happen" in render(bad.with_trace(None))
    assert not bad.with_trace(None).proven


def test_plain_runs_know_nothing_of_ebbtide_and_the_bounded_one_all_that_the_user_set() -> None:
    users = {"PATH": "/bin", "EBBTIDE_DISABLE": "1", "EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_FAST": "1GiB"}
    assert plain_environment(users) == {"PATH": "/bin", "EBBTIDE_DISABLE": "1"}
    assert bounded_environment({"FAST": "25%"}, Path("/r"), users) == {
        "PATH": "/bin",
        "EBBTIDE_MIN_STORAGE": "4096",
        "EBBTIDE_FAST": "25%",
        "EBBTIDE_REPORT": "/r",
        "EBBTIDE_PROGRESS": "off",
        "EBBTIDE_CHECKSUM": "1",
        "EBBTIDE_REMAKE": "check",
        "EBBTIDE_WAIT_FOR_PLAN": "1",
    }
    assert bounded_environment({}, Path("/r"), {"EBBTIDE_CHECKSUM": "0"})["EBBTIDE_CHECKSUM"] == "0"


def test_a_run_writes_into_a_copy_and_touches_nothing_of_the_original(tmp_path: Path) -> None:
    project, data = tmp_path / "project", tmp_path / "data"
    for directory in (project / "src", project / ".git", project / "env", project / "runs", data):
        directory.mkdir(parents=True)
    (project / "env/pyvenv.cfg").touch()
    (project / "src/train.py").write_text("original")
    (project / ".git/config").write_text("git")
    (data / "text").write_text("data")
    (project / "outside").symlink_to("../data")
    (project / "inside").symlink_to("src/train.py")
    (project / "whole").symlink_to(project / "src/train.py")  # its absolute name leads into the original
    os.mkfifo(project / "pipe")
    folder = make_folder(["src/train.py"], project, project / "runs", "one")
    again = make_folder(["src/train.py"], project, project / "runs", "two")
    assert folder.working == folder.written == project / "runs/one/copy"
    assert sorted(os.listdir(folder.working)) == [".git", "env", "inside", "outside", "src", "whole"]
    assert sorted(os.listdir(again.working)) == sorted(os.listdir(folder.working))
    (folder.working / "src/train.py").write_text("changed")
    assert (project / "src/train.py").read_text() == "original"
    assert (folder.working / "inside").read_text() == (folder.working / "whole").read_text() == "changed"
    (folder.working / "outside/text").write_text("changed")
    assert (data / "text").read_text() == (again.working / "outside/text").read_text() == "data"
    assert (folder.working / "env").readlink() == project / "env"
    assert (folder.working / ".git/config").read_text() == "git"


def test_files_in_the_original_are_named_in_the_copy_and_others_where_they_are(tmp_path: Path) -> None:
    project, data = tmp_path / "project", tmp_path / "data"
    for directory in (project, data):
        directory.mkdir()
    (project / "train.py").touch()
    words = [f"{project}/train.py", "--data=../data", "../data", "--log=new", "train.py", "/", "x/../train.py"]
    folder = make_folder(words, project, tmp_path / "runs", "one")
    copy = str(folder.working / "train.py")
    assert folder.command == (copy, f"--data={data}", str(data), "--log=new", "train.py", "/", "x/../train.py")


def test_a_placeholder_names_each_runs_own_directory_and_nothing_is_copied(tmp_path: Path) -> None:
    folder = make_folder(["train.py", "--out={out}/x", "y"], tmp_path, tmp_path / "runs", "one")
    written = tmp_path / "runs/one/out"
    assert folder == folders.Folder(("train.py", f"--out={written}/x", "y"), tmp_path, written)
    assert list(written.iterdir()) == []


def test_a_directory_too_large_to_copy_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "big").write_bytes(b"12345")
    monkeypatch.setattr(folders, "MOST_COPIED_BYTES", 4)
    with pytest.raises(SettingError, match=r"--output \{out\}"):
        make_folder(["train.py"], tmp_path, tmp_path / "runs", "one")
    make_folder(["train.py", "{out}"], tmp_path, tmp_path / "runs", "two")


def test_a_link_to_what_is_too_large_to_copy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    data.mkdir()
    (data / "text").write_text("data" * 8)
    (project / "results").symlink_to(data)
    (project / "gone").symlink_to("nowhere")
    (project / "log").symlink_to("/dev/null")
    monkeypatch.setattr(folders, "MOST_COPIED_BYTES", 31)
    for name in ("one", "two"):
        folder = make_folder(["train.py"], project, tmp_path / "runs", name)
        assert (folder.working / "results").readlink() == data
    said = capfd.readouterr().err
    assert said.count("leads to") == said.count("results leads to") == 1


def test_a_link_to_the_directory_above_is_not_copied_into_itself(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "above").symlink_to("..")
    folder = make_folder(["train.py"], project, tmp_path / "runs", "one")
    assert (folder.working / "above").readlink() == tmp_path


SCRIPT = """
import argparse, os, torch
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--twist", action="store_true")
parser.add_argument("--out", default=".")
args = parser.parse_args()
if args.seed is None:
    torch.seed()  # as a fresh process has done; this one may be forked
else:
    torch.manual_seed(args.seed)
model = torch.nn.Sequential(*[torch.nn.Linear(384, 384) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for step in range(1, 6):
    optimizer.zero_grad()
    model(torch.randn(768, 384)).square().mean().backward()
    optimizer.step()
    if args.twist and step == 3 and "EBBTIDE_DISABLE" not in os.environ:  # in the bounded run alone
        with torch.no_grad():  # between two steps, so the next one is the first to show it
            model[4].bias[7] = torch.nextafter(model[4].bias[7], torch.tensor(1.0))
torch.save(model.state_dict(), args.out + "/weights.pt")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a script that writes beside itself."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    return project


def test_a_script_is_verified_and_its_own_directory_left_alone(
    project: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    kept = tmp_path / "kept"
    command = [EBBTIDE, "verify", "--fast", "40%", "--keep", str(kept), "--json", "train.py", "--seed", "1"]
    done = run(*command, cwd=project, status=0, fresh=pytestconfig.getoption("--all"))
    verdict = json.loads(done.stdout)
    assert verdict["proven"] is True
    assert (verdict["steps"], verdict["losses"], verdict["fast"]) == (5, 5, "40%")
    for kind in LARGE | {"activation": 1}:
        assert verdict["moved"][kind]["evicted_bytes"] > 0
    assert os.listdir(project) == ["train.py"]
    written = [(kept / name / "copy/weights.pt").read_bytes() for name in ("plain", "second-plain", "bounded")]
    assert written[0] == written[1] == written[2]
    again = run(EBBTIDE, "verify", "--keep", str(kept), "train.py", cwd=project)
    assert (again.returncode, "not empty" in again.stderr) == (2, True)


def test_one_wrong_bit_is_found_and_where_it_begins(project: Path) -> None:
    done = run(EBBTIDE, "verify", "--fast", "40%", "train.py", "--seed", "1", "--twist", cwd=project, status=1)
    assert "NOT VERIFIED" in done.stdout
    assert "the same bits      NO: in step " in done.stdout  # so small that no loss need show it
    assert "it begins so: in step 4, " in done.stdout


def test_a_script_without_a_seed_is_told_how_to_be_deterministic(project: Path) -> None:
    done = run(EBBTIDE, "verify", "train.py", "--out", "{out}", cwd=project, status=1)
    assert done.stdout.startswith("NOT DETERMINISTIC")
    assert "in step 1, loss" in done.stdout
    assert "torch.manual_seed(0)" in done.stdout
    assert os.listdir(project) == ["train.py"]


@pytest.mark.parametrize("option", [("--policy", "none"), ("--fast", "lots"), ("--spill", "/proc")])
def test_what_cannot_be_used_is_refused_before_the_plain_runs(option: tuple[str, str]) -> None:
    done = CliRunner().invoke(cli, ["verify", *option, "no such script.py"])
    assert isinstance(done.exception, SettingError | SpillError)
    assert done.output == ""


def test_a_script_that_fails_or_does_not_train_ends_it_at_once(project: Path) -> None:
    done = run(EBBTIDE, "verify", "train.py", "--no-such-option", cwd=project, status=1)
    assert "the plain run ended with exit status 2" in done.stderr
    assert "unrecognized arguments: --no-such-option" in done.stderr
    (project / "idle.py").write_text("print(1)")
    done = run(sys.executable, "-m", "ebbtide", "verify", "idle.py", cwd=project)
    assert (done.returncode, "no optimizer step was seen" in done.stderr) == (1, True)


def test_a_budget_that_is_refused_is_no_verdict(project: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = run(EBBTIDE, "verify", "--fast", "1%", "--keep", str(kept), "train.py", "--seed", "1", cwd=project, status=1)
    assert done.stdout == ""
    assert "the bounded run ended with exit status 3, so there is nothing to compare" in done.stderr
    assert "is too small" in done.stderr
    assert "use --fast " in done.stderr
    assert not (kept / "traced").exists()
    assert not (kept / "second-plain").exists()  # it would have shown nothing, and taken as long again


def test_every_script_whose_plain_runs_agree_can_be_verified_in_any_budget_that_works(
    project: Path, tmp_path: Path
) -> None:
    """At 90 %, plans leave most in memory."""
    kept = tmp_path / "kept"
    options = ["--fast", "90%", "--keep", str(kept), "--json"]
    done = run(EBBTIDE, "verify", *options, "train.py", "--seed", "1", cwd=project, status=0)
    verdict = json.loads(done.stdout)
    assert verdict["proven"] is True
    assert verdict["evicted"]
    assert "everything evicted after each use" in done.stderr
    assert (kept / "evicting" / "report.json").exists()


def test_a_budget_that_bounds_something_else_was_not_kept() -> None:
    trouble = "no step was seen, and a process that the script started"
    bad = verdict_of(record(), replace(report(), bounded_as_asked=False, trouble=trouble))
    assert not bad.budget_held
    assert "NO: process 60 B of 50 B" in render(bad)
    assert trouble in render(bad)
    never = render(verdict_of(record(), replace(report(fast_bytes=None), bounded_as_asked=False, trouble=trouble)))
    assert "NO: none was ever in force\n" in never


LEAVES = """
import os, sys, threading
torch.manual_seed(0)
end, threading._shutdown = threading._shutdown, lambda: (end(), os._exit(0))  # whatever ends the script
"""

ANEW = """
import os, sys
torch.manual_seed(0)
if "ANEW" not in os.environ:
    os.environ["ANEW"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])
"""


@pytest.mark.starts
@pytest.mark.parametrize("before", [LEAVES, ANEW], ids=["leaves", "starts anew"])
def test_a_script_that_leaves_in_its_own_way_is_compared(before: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(training_script(before, width=256))
    words = (EBBTIDE, "verify", "--fast", "40%", "train.py")
    assert "VERIFIED" in run(*words, cwd=tmp_path, env={"EBBTIDE_MIN_STORAGE": "4096"}, status=0).stdout


@pytest.mark.starts
@pytest.mark.parametrize(
    "before",
    [pytest.param(LEAVES, id="leaves"), pytest.param(ANEW, id="starts anew", marks=pytest.mark.nightly)],
)
def test_a_script_that_leaves_in_its_own_way_is_recorded_and_estimated(before: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(training_script(before, width=256))
    told = run(EBBTIDE, "trace", "--keep-running", "-o", "step.trace", "train.py", cwd=tmp_path, status=0).stderr
    assert "step.trace: train.py, step 3" in told
    assert (tmp_path / "step.trace").exists()
    estimate = run(EBBTIDE, "estimate", "--machine", "h100", "train.py", cwd=tmp_path, status=0)
    assert "--fast" in estimate.stdout
