"""Steps on fake tensors: the storages and accesses that a CPU has, no memory, and times that are modelled."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.ir.base import Origin
from ebbtide.ir.files import load
from ebbtide.ir.machine import Compute, InPlace, Machine, Tier
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.trace import Phase, StorageKind, Trace
from ebbtide.pipeline.reading import this_machine
from ebbtide.units import GIB
from tests.helpers import child
from tests.helpers.command import EBBTIDE, TRAIN_MLP, run, watch
from tests.helpers.paths import SCRIPTS
from tests.training.test_recording import seen

LARGE = 4096
TRAIN_CAST = str(SCRIPTS / "train_cast.py")


def test_the_same_storages_uses_and_flops_as_on_the_cpu() -> None:
    cpu, cpu_flops, cpu_peak = child.run(seen, "custom-functions", False, LARGE)
    fake, fake_flops, fake_peak = child.run(seen, "custom-functions", True, LARGE)
    assert len(fake) > 25
    assert fake == cpu
    assert fake_flops == cpu_flops > 0
    assert fake_peak == pytest.approx(cpu_peak, rel=0.001)  # small scratch


@pytest.mark.parametrize(
    ("name", "peak_within"),
    [
        ("views", 0.05),
        ("resnet-sgd-momentum", 0.05),
        ("in-place", 0.2),  # the CPU's convolutions have scratch
        ("lstm-sgd-momentum", 0.5),  # and its LSTM keeps four times as much for the backward pass
    ],
)
def test_what_lasts_and_what_is_computed_are_those_of_the_cpu(name: str, peak_within: float) -> None:
    """Activations differ: autograd adds gradients up in new storages if they are fake, and kernels have scratch."""
    cpu, cpu_flops, cpu_peak = child.run(seen, name, False, LARGE)
    fake, fake_flops, fake_peak = child.run(seen, name, True, LARGE)
    assert fake_flops == cpu_flops > 0
    lasting = [Counter(tuple(row[:4]) for row in rows if row[1] not in ("activation", "other")) for rows in (fake, cpu)]
    assert lasting[0] == lasting[1]
    assert fake_peak == pytest.approx(cpu_peak, rel=peak_within)


def test_a_model_larger_than_any_memory_here(tmp_path: Path) -> None:
    """Three layers of 131072 x 131072: 64 GiB each, and AdamW's four times that; a plain Python holds 0.3 GiB."""
    out = tmp_path / "step.trace"
    sizes = ["--width", "131072", "--depth", "3", "--rows", "64", "--steps", "4"]
    finished = watch([EBBTIDE, "trace", "--fake", "-o", str(out), TRAIN_MLP, *sizes])
    assert finished.exit_code == 0, finished.output
    assert finished.peak_bytes < GIB
    assert "(modelled)" in finished.output
    assert finished.output.count("reads a number out of a tensor") == 1
    trace = load(out, Trace)
    assert trace.origin is Origin.MODELLED
    layer = 4 * 131072**2
    sizes_of = {
        kind: sorted(storage.nbytes for storage in trace.storages if storage.kind is kind and storage.nbytes >= layer)
        for kind in StorageKind
    }
    assert sizes_of[StorageKind.PARAMETER] == sizes_of[StorageKind.GRADIENT] == [layer] * 3
    assert sizes_of[StorageKind.OPTIMIZER_STATE] == [layer] * 6
    assert 12 * layer < peak(live_bytes(trace)) < 12.1 * layer
    product = 2 * 64 * 131072**2
    flops = {phase: sum(t.flops for t in trace.ticks if t.phase is phase and t.flops >= product) for phase in Phase}
    assert flops[Phase.FORWARD] == 3 * product
    assert flops[Phase.BACKWARD] == 5 * product  # nobody asks for the gradient of the batch


SILENT = Machine("made up", Origin.ASSUMED, (Tier("dram", InPlace.ALL, bytes_per_s=2_039_000_000),), ())
"""It does not say how fast it computes."""
RATES = Compute(flops_per_s=312_000_000_000, bfloat16_flops_per_s=624_000_000_000, operator_ns=1_000)


def test_times_are_those_of_the_machines_roofline(tmp_path: Path) -> None:
    out, machine = tmp_path / "step.trace", tmp_path / "machine.toml"
    machine.write_text(replace(SILENT, compute=RATES).to_toml())
    command = (EBBTIDE, "trace", "--fake", "--machine", str(machine), "-o", str(out))
    run(*command, TRAIN_MLP, "--width", "4096", "--depth", "1", status=0)
    ticks = load(out, Trace).ticks
    for tick in ticks:
        assert tick.time_ns in (0, 1_000 + max(tick.flops * 10**9 // 312_000_000_000, tick.nbytes * 1000 // 2039))
    assert sum(ticks.time_ns > 10**6) > 3


def test_without_a_machine_times_are_this_computers(tmp_path: Path) -> None:
    """Not one that nobody named: what a smaller budget costs depends on compute and disk of one machine."""
    out = tmp_path / "step.trace"
    run(EBBTIDE, "trace", "--fake", "-o", str(out), TRAIN_MLP, "--width", "1024", "--depth", "1", status=0)
    here = this_machine(computes=True)
    for tick in load(out, Trace).ticks:
        assert tick.time_ns in (0, here.roofline_ns(tick.flops, tick.nbytes, tick.arguments))


def test_what_fake_tensors_cannot_do_is_said(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "step.trace"
    script.write_text("import torch\nx = torch.randn(10)\nprint(x[x > 0])\n")
    finished = run(EBBTIDE, "trace", "--fake", "-o", str(out), str(script), status=1)
    assert "a result whose shape depends on data, and fake tensors have no data" in finished.stderr
    assert "nothing was recorded" in finished.stderr


LOADS = """
import torch
from torch.utils.data import DataLoader

class Data(torch.utils.data.Dataset):
    def __len__(self): return 32
    def __getitem__(self, i): return torch.randn(64), i

model = torch.nn.Linear(64, 32)
optimizer = torch.optim.SGD(model.parameters())
loader = DataLoader(Data(), batch_size=8, num_workers=2, timeout=60, persistent_workers=True)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
print(loader.num_workers, loader.timeout)
"""


def test_a_loader_with_workers_loads_in_the_process(tmp_path: Path) -> None:
    """Workers would send fake tensors through shared memory, which these do not have."""
    (tmp_path / "train.py").write_text(LOADS)
    out = tmp_path / "step.trace"
    finished = run(
        EBBTIDE, "trace", "--fake", "--step", "6", "--keep-running", "-o", str(out), "train.py", cwd=tmp_path, status=0
    )
    assert finished.stdout.split() == ["2", "60"]
    weight = [row for row in load(out, Trace).storages if row.kind is StorageKind.PARAMETER]
    assert sorted(row.nbytes for row in weight) == [4 * 32, 4 * 32 * 64]


def test_a_machine_must_say_how_fast_it_computes(tmp_path: Path) -> None:
    machine, out = tmp_path / "machine.toml", tmp_path / "step.trace"
    machine.write_text(SILENT.to_toml())
    finished = run(EBBTIDE, "trace", "--fake", "--machine", str(machine), "-o", str(out), TRAIN_MLP, status=2)
    assert "does not say how fast it computes" in finished.stderr
    finished = run(EBBTIDE, "trace", "--machine", str(machine), "-o", str(out), TRAIN_MLP, status=2)
    assert "--machine goes with --fake" in finished.stderr


SAVES = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters())
for step in range(3):
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "step": step}, "checkpoint.pt")
"""


def test_a_checkpoint_of_the_same_name_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    (tmp_path / "checkpoint.pt").write_bytes(b"of hours of training")
    run(EBBTIDE, "estimate", "--machine", "h100", "train.py", cwd=tmp_path, status=0)
    assert (tmp_path / "checkpoint.pt").read_bytes() == b"of hours of training"


TWO_RESULTS = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 64)).sum().backward()
    torch.std_mean(torch.ones(2**18, 2), 1)
    optimizer.step()
"""


@pytest.mark.parametrize("how", [[], ["--fake"]], ids=["cpu", "fake"])
def test_what_is_there_at_once_lies_in_no_others_room(tmp_path: Path, how: list[str]) -> None:
    """Two results that nobody takes."""
    (tmp_path / "train.py").write_text(TWO_RESULTS)
    out = tmp_path / "step.trace"
    run(EBBTIDE, "trace", *how, "-o", str(out), str(tmp_path / "train.py"), status=0)
    results = [row for row in load(out, Trace).storages if row.nbytes == 4 * 2**18]
    assert [(row.scratch, row.room_of) for row in results] == [(True, None)] * 2


READS = """
import numpy as np, torch
net = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(net.parameters())
for _ in range(3):
    optimizer.zero_grad()
    y = net(torch.randn(4, 8))
    loss = y.sum()
    loss.backward()
    optimizer.step()
    for wrong in (loss.isnan(), y.isnan().any(), torch.isinf(y).any(), y.isnan().sum() > 0, (y != y).any()):
        if wrong:
            raise SystemExit(9)
    assert torch.isfinite(loss) and torch.isfinite(y).all()
    if loss > 0.5:
        print(f"{loss:.3f}", y.detach().argmax(1).numpy().tolist(), np.asarray(y.detach()).shape)
    try:
        y.numpy()
    except RuntimeError:
        continue
    raise SystemExit(8)
"""


def test_numbers_that_the_script_reads_are_ones_and_finite(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(READS)
    finished = run(EBBTIDE, "trace", "--fake", "--keep-running", "-o", str(tmp_path / "t"), str(tmp_path / "train.py"))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == ["1.000 [1, 1, 1, 1] (4, 3)"] * 3
    assert finished.stderr.count("reads a number out of a tensor") == 1


FROZEN = """
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(4)])
for part in net[:3]:
    part.requires_grad_(False)
net.register_buffer("mean", torch.zeros(2**18))
optimizer = torch.optim.SGD(net[3].parameters())
for _ in range(6):
    optimizer.zero_grad()
    (net(torch.ones(64, 512)) + net.mean[0]).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("how", [["trace"], ["trace", "--fake"], ["run", "--wait-for-plan", "--fast", "80%"]])
def test_weights_that_are_not_trained_are_parameters_and_the_batch_is_the_input(tmp_path: Path, how: list[str]) -> None:
    """As most of a net with adapters. A buffer is not."""
    (tmp_path / "train.py").write_text(FROZEN)
    out = tmp_path / "step.trace"
    finished = run(EBBTIDE, *how, "--save-trace" if how[0] == "run" else "-o", str(out), str(tmp_path / "train.py"))
    assert finished.returncode == 0, finished.stderr
    matrices = Counter(row.kind for row in load(out, Trace).storages if row.persistent and row.nbytes == 4 * 512**2)
    assert matrices == {StorageKind.PARAMETER: 4, StorageKind.OTHER: 1}
    inputs = [row.nbytes for row in load(out, Trace).storages if row.kind is StorageKind.INPUT]
    assert 4 * 64 * 512 in inputs
    assert sum(inputs) < 5 * 64 * 512  # the batch, and at most some numbers


@pytest.mark.alike
@pytest.mark.parametrize(
    ("order", "how", "itemsize"),
    [
        ("before", "to", 2),
        ("after", "half", 2),
        ("before", "double", 8),
        ("after", "cpu", 2),
        ("before", "assign", 4),
        ("after", "assign", 8),
    ],
)
def test_parameters_may_change_their_type(order: str, how: str, itemsize: int, tmp_path: Path) -> None:
    """Fake parameters are exchanged in place then, which PyTorch refuses where anything refers to them weakly."""
    out = tmp_path / "step.trace"
    run(EBBTIDE, "trace", "--fake", "-o", str(out), TRAIN_CAST, order, how, status=0)
    trace = load(out, Trace)
    found = Counter(storage.nbytes for storage in trace.storages if storage.kind is StorageKind.PARAMETER)
    width = 256
    # As in plain PyTorch: what is assigned is no longer tied, and an optimizer goes on with what the model had before.
    words = 2 if (order, how) == ("after", "assign") else 1
    matrices = {1000 * width: words, 64 * width: 1, 3 * width * width: 2, 4 * width * width: 4}
    expected = {itemsize * size: count for size, count in matrices.items()}
    if (order, how) == ("before", "assign"):  # no optimizer has what the model computes with
        expected |= {8 * size: count for size, count in (matrices | {1000 * width: 2}).items()}
    assert {size: count for size, count in found.items() if size >= itemsize * 64 * width} == expected
