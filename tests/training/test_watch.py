"""What ``ebbtide verify`` sees of a script: each bit of its state and each loss, and the script is left alone."""

import gc
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import ebbtide
from ebbtide.verify.record import Record, Recorder, read_record
from ebbtide.verify.watch import Watch, digest_of, state_digests

pytestmark = pytest.mark.in_child


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


def test_torch_comes_later() -> None:
    """A script may set something before it imports torch, so the watch does not import it first."""
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", LATE, f"{folder}/record"], check=True)
