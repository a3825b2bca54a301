"""``ebbtide verify``: it finds what differs, where it begins, and does not call proven what nothing has shown."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import ebbtide
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
from ebbtide.verify.watch import Watch, digest_of, state_digests
from tests.helpers.command import EBBTIDE, run
from tests.helpers.training_script import training_script

LARGE = {"parameter": 1 << 20, "gradient": 1 << 20, "optimizer_state": 1 << 20}
STATE = {"parameter w": "aa", "gradient w": "bb"}


class Net(nn.Module):
    """Tied weights, a buffer, a parameter of another type, one that is not trained, and one that no optimizer has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.fixed = nn.Parameter(torch.ones(3), requires_grad=False)
        self.frozen = nn.Parameter(torch.ones(3000), requires_grad=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(rows))) * self.scale.float().sum()


def trained() -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW([each for each in net.parameters() if each is not net.frozen], amsgrad=True)
    for _ in range(2):
        net(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
    return net, optimizer


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


@pytest.mark.in_child
def test_every_bit_counts() -> None:
    """One flipped bit of any tensor changes its digest, and no other; and so does any setting."""
    net, optimizer = trained()
    names = {f"parameter {name}": parameter.data for name, parameter in net.named_parameters()}
    names["frozen parameter frozen"] = names.pop("parameter frozen")
    names |= {f"gradient {name}": p.grad for name, p in net.named_parameters() if p.grad is not None}
    names |= {f"buffer {name}": buffer for name, buffer in net.named_buffers()}
    of = {id(parameter): name for name, parameter in net.named_parameters()}
    for parameter, state in optimizer.state.items():
        names |= {f"optimizer state {key} of {of[id(parameter)]} (AdamW)": value for key, value in state.items()}
    assert len(names) == 5 + 1 + 1 + 5 + 3 + 5 * 4
    before = dict(state_digests([optimizer]))
    settings = {name for name in before if name.startswith("setting")}
    assert before.keys() == names.keys() | settings | {"random generator"}
    for name, tensor in names.items():
        content = tensor.reshape(-1).view(torch.uint8)
        content[-1] ^= 1
        assert differing(before, dict(state_digests([optimizer]))) == {name}
        content[-1] ^= 1
    optimizer.param_groups[0]["lr"] *= 2
    torch.rand(1)
    changed = differing(before, dict(state_digests([optimizer])))
    assert changed == {"setting lr of group 0 (AdamW)", "random generator"}


def watched(state_after: int | None) -> tuple[Watch, Path, TemporaryDirectory]:
    folder = TemporaryDirectory()
    path = Path(folder.name) / "record"
    watch = Watch(Recorder(path), state_after)
    watch.install_with_torch()
    return watch, path, folder


@pytest.mark.in_child
def test_roots_of_backward() -> None:
    """Every outer call, however it is made; none within another; and steps that nest are one."""
    watch, path, _folder = watched(2)
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=3)
    seen: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        hidden = checkpoint(layer, torch.ones(2, 4, requires_grad=True), use_reentrant=True)
        loss = hidden.square().sum()
        seen.append(loss.item())
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    record: Record = read_record(path)
    assert watch.steps == 2
    assert list(record.states) == [2]
    assert {loss.step for loss in record.losses} == {0, 1}
    assert len(seen) > 2
    assert [float(loss.value) for loss in record.losses] == pytest.approx(seen, rel=1e-6)
    assert any(name.startswith("optimizer state old_dirs[0] of weight") for name in record.states[2].digests)
    layer(torch.ones(2, 4)).backward(torch.ones(2, 4))
    torch.autograd.backward([layer(torch.ones(2, 4)).sum(), layer(torch.zeros(2, 4)).sum()])
    more = read_record(path).losses[len(record.losses) :]
    assert [loss.value == "" for loss in more] == [True, False, False]
    assert {loss.step for loss in more} == {2}


@pytest.mark.in_child
def test_frozen_weights_are_parameters() -> None:
    """LoRA's largest parameters are those that no optimizer has: they exist, so they have to move."""
    watch, _path, _folder = watched(1)
    base, beside = nn.Linear(64, 64), nn.Linear(64, 2)
    net = nn.Sequential(base.requires_grad_(False), beside)
    optimizer = torch.optim.SGD(beside.parameters(), lr=0.1)
    net(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    assert watch.largest_bytes["parameter"] == base.weight.nbytes
    assert watch.largest_bytes["gradient"] == beside.weight.nbytes


@dataclass
class Unhashable(nn.Linear):
    width: int

    def __post_init__(self) -> None:
        super().__init__(self.width, self.width)


@pytest.mark.in_child
def test_what_a_script_may_do_is_watched_and_left_alone() -> None:
    """Each of these raised out of a plain run. A function mode of the script's hears of no look."""

    class Counted(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return function(*args, **(kwargs or {}))

    watch, path, _folder = watched(None)
    with Counted() as mode:
        net = nn.ModuleList([Unhashable(4), nn.Embedding(5, 4, sparse=True)])
        parameters = [net[0].weight, net[0].bias, net[1].weight]
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        product = net[0](net[1](torch.tensor([1, 2]))).square().sum()
        torch.autograd.backward(torch.autograd.graph.get_gradient_edge(product), torch.ones(()))
        before = mode.calls
        optimizer.step()
        stepped = mode.calls - before
        nn.Parameter(TwoTensor(torch.ones(2), torch.ones(2))).sum().backward()  # the loss is of its class
        net[0](torch.ones(2, 4)).sum().backward()
        before = mode.calls
        optimizer.step()
        assert mode.calls - before == stepped
    with FakeTensorMode():
        fake = nn.Linear(4, 4)
        fake(torch.ones(2, 4)).sum().backward()
    dry = nn.Linear(4, 4, device="meta")
    on_meta = torch.optim.SGD(dry.parameters(), lr=0.1)
    dry(torch.ones(2, 4, device="meta")).sum().backward()
    on_meta.step()
    record = read_record(path)
    assert len(record.losses) == 4
    assert watch.largest_bytes["parameter"] == 5 * 4 * 4
    digests = record.states[2].digests
    assert "optimizer state momentum_buffer of 1.weight (SGD)" in digests
    assert "parameter 0.weight" in digests


@pytest.mark.in_child
def test_what_is_garbage_is_not_compared() -> None:
    """An earlier fold's net, in a circle with what trained it, is there until the collector comes."""

    class Trainer:
        def __init__(self) -> None:
            self.net = nn.Linear(4, 4)
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
            self.itself = self

        def step(self) -> None:
            self.net(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()

    gc.disable()
    _watch, path, _folder = watched(None)
    for _ in range(3):
        trainer = Trainer()
        trainer.step()
        trainer.step()
    names = {name for state in read_record(path).states.values() for name in state.digests}
    assert {name for name in names if name.startswith("parameter")} == {"parameter weight", "parameter bias"}


@pytest.mark.in_child({"EBBTIDE_MIN_STORAGE": "4096"})
def test_a_digest_of_a_tensor_larger_than_the_budget_is_taken_in_parts() -> None:
    with ebbtide.Session(arena_bytes="16MiB", piece_bytes="2MiB", progress="off", policy="demand") as session:
        with session.step():
            table = torch.zeros(10_000_000)
        digest = digest_of(table)
        assert digest_of(table.view(5, -1)) != digest  # the shape counts
        with session.step():
            table[9_999_999] += 1
        assert digest_of(table) != digest
    report = session.report()
    assert not report.budget_violated
    assert report.steps[0].evicted_bytes.total > 20 << 20


@pytest.mark.in_child
def test_several_optimizers() -> None:
    """A step is an iteration, and the state that counts is the one after its last optimizer's step."""
    watch, path, _folder = watched(3)
    nets = [nn.Linear(4, 4), nn.Linear(4, 4)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in nets]
    for _ in range(3):
        for net, optimizer in zip(nets, optimizers, strict=True):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert watch.steps == 3
    record = read_record(path)
    assert [loss.step for loss in record.losses] == [0, 0, 1, 1, 2, 2]
    assert {number: dict(state.digests) for number, state in record.states.items()} == {
        3: dict(state_digests(optimizers))
    }
    optimizers[0].step()  # a rest, after the last whole step
    assert watch.steps == 3
    assert dict(read_record(path).states[4].digests) == dict(state_digests(optimizers))


@pytest.mark.in_child
def test_names_are_unique() -> None:
    """Two models of one class under two optimizers, and a parameter that no module holds."""
    nets = [nn.Linear(4, 4), nn.Linear(4, 4)]
    alone = nn.Parameter(torch.ones(4))
    optimizers = [
        torch.optim.SGD(nets[0].parameters(), lr=0.1),
        torch.optim.SGD([*nets[1].parameters(), alone], lr=0.1),
    ]
    names = [name for name, _ in state_digests(optimizers)]
    assert len(names) == len(set(names))
    parameters = [name for name in names if name.startswith("parameter")]
    assert parameters == [
        *("parameter Linear 0.weight", "parameter Linear 0.bias", "parameter Linear 1.weight"),
        *("parameter Linear 1.bias", "parameter number 4"),
    ]


LATE = """
import sys
from importlib.util import find_spec
from pathlib import Path
from ebbtide.verify.record import Recorder, read_record
from ebbtide.verify.watch import Watch
path = Path(sys.argv[1])
watch = Watch(Recorder(path), None)
watch.install_with_torch()
assert "torch" not in sys.modules
assert find_spec("torch") is not None
assert "torch" not in sys.modules
import torch
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
layer(torch.ones(1, 2)).sum().backward()
optimizer.step()
assert watch.steps == len(read_record(path).losses) == len(read_record(path).states) == 1
assert "ebbtide._torch" not in sys.modules
"""


@pytest.mark.in_child
def test_torch_comes_later() -> None:
    """A script may set something before it imports torch, so the watch does not import it first."""
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", LATE, f"{folder}/record"], check=True)


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
    words = (EBBTIDE, "verify", "--fast", "50%", "train.py")
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
