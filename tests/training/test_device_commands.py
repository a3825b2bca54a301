"""Commands on the tests' device, as a person calls them."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import ebbtide
from ebbtide.ir.files import load
from ebbtide.ir.run_report import RunReport
from ebbtide.ir.trace import StorageKind, Trace
from ebbtide.machines import find_machine
from ebbtide.verify.record import FILE_NAME, read_record
from tests.device import lagging
from tests.helpers.command import EBBTIDE, run
from tests.helpers.paths import ROOT
from tests.training.device_jobs import DEVICE, KEPT, STEPS, begin, bits, differences, plainly, train

pytestmark = pytest.mark.nightly
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")
SCRIPT = """
import argparse, os, torch
parser = argparse.ArgumentParser()
parser.add_argument("--twist", action="store_true")
args = parser.parse_args()
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)]).to("lagging")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1, 7):
    optimizer.zero_grad()
    model(torch.randn(128, 64).to("lagging")).square().mean().backward()
    optimizer.step()
    if args.twist and step == 4 and "EBBTIDE_DISABLE" not in os.environ:  # in the bounded run alone
        with torch.no_grad():  # between two steps, so the next one is the first to show it
            model[4].bias[7] += 1e-6
"""
JOB = "gpt-adamw"
Seen = Counter[tuple[int, str, int, int]]


@pytest.mark.in_child({"OMP_NUM_THREADS": "1"}, lagging.load)
def test_recording_moves_nothing_and_sees_what_a_session_sees(tmp_path: Path) -> None:
    """The storages of some size, each with its life."""
    plain = plainly(JOB)
    ours, sessions = tmp_path / "ours.trace", tmp_path / "sessions.trace"
    job = begin(JOB)
    with ebbtide.record(ours, device=DEVICE) as recorder:
        recorded = bits(job, [loss for number in range(STEPS) for loss in train(job, [number], recorder.step)])
    del job
    job = begin(JOB)
    with ebbtide.Session("100%", **KEPT, save_trace=sessions) as session:
        train(job, range(STEPS), session.step)
    assert differences(recorded, plain) == ()
    assert seen(ours) == seen(sessions)
    assert len(seen(ours)) > 50


def seen(path: Path) -> Seen:
    rows = load(path, Trace).storages
    rows = rows.take(rows.nbytes >= KEPT["min_storage_bytes"])
    return Counter(zip(*(column.tolist() for column in (rows.nbytes, rows.kind, rows.birth, rows.death)), strict=True))


@pytest.fixture
def device(tmp_path: Path) -> dict[str, str]:
    """The variables of a process that finds the device."""
    lagging.build()
    (tmp_path / "packages").mkdir()
    return lagging.installed(tmp_path / "packages") | {"EBBTIDE_MIN_STORAGE": "4096"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    return project


def test_a_bounded_run_is_compared_with_plain_ones_on_the_device(
    project: Path, device: dict[str, str], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    options = ["--device", "lagging", "--host", "256MiB", "--fast", "100%", "--json", "--keep", str(kept)]
    done = run(EBBTIDE, "verify", *options, "train.py", cwd=project, env=device)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["proven"]
    assert verdict["evicted"]
    assert "chance evicts storages" in done.stderr
    assert (verdict["device"], verdict["steps"], verdict["losses"]) == ("lagging:0", 6, 6)
    assert verdict["plain_device_bytes"] > verdict["arena_budget_bytes"] >= verdict["arena_peak_bytes"]
    for kind, moved in verdict["moved"].items():
        assert moved["evicted_bytes"] > 0, kind
    bounded = read_record(kept / "bounded" / FILE_NAME)
    assert "random generator of lagging:0" in bounded.states[6].digests
    assert float(bounded.losses[0].value) > 0


def test_one_wrong_bit_on_the_device_is_found(project: Path, device: dict[str, str]) -> None:
    options = ["--device", "lagging", "--host", "256MiB", "--fast", "50%"]
    done = run(EBBTIDE, "verify", *options, "train.py", "--twist", cwd=project, env=device)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NOT VERIFIED: train.py --twist, --device lagging:0 --fast 50%" in done.stdout
    assert "it begins so: in step 5, loss: " in done.stdout


def test_a_step_on_the_device_is_recorded_planned_and_simulated(
    project: Path, device: dict[str, str], tmp_path: Path
) -> None:
    def done(command: str, *options: str) -> str:
        finished = run(EBBTIDE, command, *options, cwd=project, env=device)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout + finished.stderr

    assert "storages of lagging:0, peak" in done("trace", "--device", "lagging", "-o", "step.trace", "train.py")
    trace = load(project / "step.trace", Trace)
    assert trace.device == "lagging:0"
    assert trace.unrecorded_ns is not None
    assert trace.step_ns > 0
    rows, layers = trace.storages, 6 * (64 * 64 + 64) * 4
    held = {kind: int(rows.nbytes[rows.kind == kind].sum()) for kind in StorageKind}
    assert held[StorageKind.PARAMETER] == layers
    assert held[StorageKind.OPTIMIZER_STATE] == 2 * layers  # the steps' number lies on the CPU
    assert held[StorageKind.GRADIENT] == layers
    assert held[StorageKind.ACTIVATION] > 6 * 128 * 64 * 4
    assert "lagging->host" in done("probe", "--device", "lagging", "-o", "there.toml")
    assert [tier.name for tier in find_machine(project / "there.toml").tiers] == ["lagging", "host"]
    assert "lagging->" in done("probe", "--device", "lagging", "--spill", ".", "-o", "disk.toml")
    disk = find_machine(project / "disk.toml")
    assert [tier.name for tier in disk.tiers[:2]] == ["lagging", "host"]
    assert len(disk.tiers) == 3
    assert disk.link("lagging", disk.tiers[2].name) is not None
    report = ("--report", "file.json", "--wait-for-plan", "train.py")
    done("run", "--device", "lagging", "--host", "64KiB", "--spill", ".", "--fast", "60%", *report)
    host, file = RunReport.from_json((project / "file.json").read_text()).tiers
    assert min(host.written_bytes, file.written_bytes, file.read_bytes) > 0
    assert "lagging:0, lagging; " in done("doctor", "--device", "lagging")
    there = ("--machine", "there.toml", "--fast", "50%")
    done("plan", "step.trace", *there, "-o", "step.plan")
    done("simulate", "step.trace", *there, "--plan", "step.plan")
    on = ("--device", "lagging", "--fast", "60%")
    done("run", *on, "--save-plan", "run.plan", "train.py")
    done("run", *on, "--plan", "run.plan", "--report", "planned.json", "train.py")
    last = RunReport.from_json((project / "planned.json").read_text()).steps[-1]
    assert (last.mode, last.fetched_bytes.total > 0) == ("planned", True)
    other = run(EBBTIDE, "run", *on, "--plan", "step.plan", "train.py", cwd=project, env=device)
    assert other.returncode == 3, other.stderr
    assert "no step followed the plan step.plan: the plan cannot be carried out: it was made for" in other.stderr
    assert "ebbtide" in done("compare", "step.trace", *there, "--policy", "ebbtide,demand")
    assert "the step's peak: " in done("explain", "step.trace")
    done("trace", "--device", "lagging", "--lines", "-o", "lines.trace", "train.py")
    lined = load(project / "lines.trace", Trace)
    rows = [lined.storage(number) for number in range(len(lined.storages))]
    forward = next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if "backward()" in line)
    made_in = {kind: {row.line for row in rows if row.kind == kind} for kind in StorageKind}
    assert made_in[StorageKind.ACTIVATION] == {f"train.py:{forward}", f"train.py:{forward + 1}"}  # and what AdamW makes
    assert made_in[StorageKind.GRADIENT] == {f"train.py:{forward}"}  # the engine's own thread made them
    modules = {row.module for row in rows if row.kind == StorageKind.GRADIENT}
    assert modules == {f"Sequential.{number}" for number in range(6)}
    assert "name a machine with --machine" in done("analyze", "step.trace")
    refused = run(EBBTIDE, "plan", "step.trace", "--fast", "50%", cwd=project, env=device)
    assert (refused.returncode, len(refused.stderr.strip().splitlines())) == (2, 1)
    assert "the step was recorded on lagging:0" in refused.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["verify", "--device", "cuda", "--tier", "compressed:1MiB"], "--tier does not go with --device yet"),
        (["verify", "--device", "cuda", "--optimizer", "deferred"], "--optimizer does not go with --device yet"),
        (["trace", "--device", "cuda", "--fake"], "--fake needs no device"),
        (["probe", "--device", "cuda", "--tier", "compressed:1GiB"], "--device goes with --spill and -o"),
        *(([name, "--device", "cuda:7"], "no device cuda:7 here") for name in ("verify", "trace", "probe", "doctor")),
    ],
)
def test_what_cannot_be_done_on_a_device_is_told_before_anything_runs(
    options: list[str], said: str, project: Path
) -> None:
    program = ["train.py"] if options[0] in ("verify", "trace") else []
    told = run(EBBTIDE, *options, *program, cwd=project, status=2).stderr.strip().splitlines()
    assert said in told[-1]
    assert len(told) == 1 or told[0].startswith("Usage: ")


@pytest.mark.starts
@pytest.mark.parametrize("kind", [[], ["--fsdp"]])
def test_ranks_train_side_by_side_each_on_its_device(kind: list[str], device: dict[str, str], tmp_path: Path) -> None:
    """DistributedDataParallel compares its buckets' addresses with no operator; a stream sends them. FSDP2 gathers
    parameters into storages that have memory only meanwhile."""
    script = str(ROOT / "tests" / "scripts" / "train_device_ranks.py")
    report = tmp_path / "report.json"
    budget = ("--device", "lagging", "--host", "64MiB", "--fast", "60%", "--wait-for-plan", "--report", str(report))
    for name, command in (("plain", (sys.executable,)), ("bounded", (EBBTIDE, "run", *budget))):
        done = run(*TORCHRUN, *command, script, *kind, "--out", str(tmp_path / name), env=device)
        assert done.returncode == 0, done.stderr
    for rank in range(2):
        plain, bounded = (torch.load(tmp_path / f"{name}.{rank}") for name in ("plain", "bounded"))
        assert plain[0] == bounded[0]
        assert all(torch.equal(*pair) for pair in zip(plain[1], bounded[1], strict=True))
        steps = RunReport.from_json((tmp_path / f"report.{rank}.json").read_text()).steps
        assert [step.mode for step in steps][-3:] == ["planned"] * 3
        assert min(step.evicted_bytes.total for step in steps[2:]) > 0
