"""Storages born elsewhere are adopted at a step's end, every view with them, or left alone and reported."""

import ctypes
import gc
import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GPT2LMHeadModel

import ebbtide
from ebbtide import _torch
from ebbtide.runtime import adopt
from ebbtide.runtime.adopt import adopt_all
from tests.helpers import child
from tests.training.same_bits import CASES, Verdict, begin, train, train_plainly, verdict

PAGES = {"EBBTIDE_MIN_STORAGE": "4096"}
pytestmark = pytest.mark.in_child(PAGES)
STEPS = 5
FAST = "50%"


def _fine_tune(model: Any, *, before: bool) -> Verdict:
    """Fine-tune what ``model()`` loads, plainly and under a session; loaded ``before`` the session or inside it."""
    case = replace(CASES["gpt2-adamw-fused"], model=model)
    plain = train_plainly(case, STEPS)
    ours = begin(case) if before else None
    with ebbtide.Session(fast="35%") as session:
        ours = ours or begin(case)
        train(ours, STEPS, session)
    return verdict(plain, ours, session)


@pytest.mark.alike
@pytest.mark.parametrize("before", [True, False], ids=["before-the-session", "inside-the-session"])
def test_a_from_pretrained_fine_tune_gives_the_same_bits(before: bool, tmp_path: Path) -> None:
    """A checkpoint saved as safetensors, then opened by ``from_pretrained`` (a private mapping of the file)."""
    torch.manual_seed(7)
    model = CASES["gpt2-adamw-fused"].model()
    model.save_pretrained(tmp_path)
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    del model
    check(_fine_tune(lambda: GPT2LMHeadModel.from_pretrained(tmp_path), before=before), nbytes)


def _rows_of_mapped_data(path: Path, session: Any, begin: int) -> list[float]:
    torch.manual_seed(0)
    data = torch.from_file(str(path), size=16 << 20)  # 64 MiB
    if begin:
        data = torch.empty(0).set_(data.untyped_storage()[begin:][:-4096])  # a slice of a slice
    net = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for number in range(4):
        with path.open("r+b") as file:  # who makes the data
            file.seek(begin + number * 4096)
            file.write(np.full(1024, number, np.float32).tobytes())
        with nullcontext() if session is None else session.step():
            optimizer.zero_grad()
            loss = net(data[number * 1024 : (number + 1) * 1024].view(1, 1024)).square().mean()
            loss.backward()
            optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.in_child
@pytest.mark.parametrize("begin", [0, 4096], ids=["whole", "sliced"])
def test_a_data_set_that_is_mapped_stays_in_its_file(begin: int) -> None:
    """A step reads a few rows, and another process may write the next ones."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        with path.open("wb") as file:
            file.truncate(64 << 20)
        plain = _rows_of_mapped_data(path, None, begin)
        with path.open("wb") as file:
            file.truncate(64 << 20)
        with ebbtide.Session(fast="50%", policy="demand") as session:
            ours = _rows_of_mapped_data(path, session, begin)
        report = session.report()
    reasons = [left.reason for left in report.outside]
    assert ours == plain
    assert report.adopted_bytes < 64 << 20
    assert any("only read" in reason for reason in reasons), reasons


@pytest.mark.in_child
@pytest.mark.parametrize("order", ["as-written", "deferred", "in-backward"])
def test_weights_lie_as_far_from_an_aligned_address_as_before(order: str, tmp_path: Path) -> None:
    """Weights of a mapped checkpoint lie behind its header. Products of few rows have other bits elsewhere."""
    torch.manual_seed(5)
    path = tmp_path / "model.safetensors"
    save_file(nn.Sequential(*(nn.Linear(257, 257) for _ in range(8))).state_dict(), path)

    def rest() -> tuple[list[int], list[int], list[str]]:
        net = nn.Sequential(*(nn.Linear(257, 257) for _ in range(8)))
        net.load_state_dict(load_file(path), assign=True)
        before = [each.data_ptr() % 64 for each in net.parameters()]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        torch.manual_seed(3)
        for _ in range(8):
            net(torch.randn(1, 257)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return before, [each.data_ptr() % 64 for each in net.parameters()], [_hash(each) for each in net.parameters()]

    _, _, plain = rest()
    with ebbtide.Session(fast="60%", policy="demand", min_storage_bytes=4096, optimizer=order) as session:
        before, after, ours = rest()
    assert any(before)
    assert after == before
    assert ours == plain
    assert sum(step.fetched_bytes.total for step in session.report().steps) > 0


def _hash(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()


def test_weights_that_torch_load_mapped_give_the_same_bits(tmp_path: Path) -> None:
    """A checkpoint saved by ``torch.save``, then mapped by ``torch.load(mmap=True)`` and assigned to the model."""
    path = tmp_path / "model.pt"
    torch.manual_seed(7)
    torch.save(CASES["gpt2-adamw-fused"].model().state_dict(), path)

    def load() -> nn.Module:
        with torch.device("meta"):
            model = CASES["gpt2-adamw-fused"].model()
        model.load_state_dict(torch.load(path, mmap=True, weights_only=True), assign=True)
        model.tie_weights()
        return model

    check(_fine_tune(load, before=True), path.stat().st_size)


def test_views_follow() -> None:
    """Views taken before the session still alias the parameter after its storage was adopted."""
    run = begin(CASES["weight-averaging"])
    weight = run.model.network[0].weight
    row, flat = weight.detach()[1], weight.detach().view(-1)
    with ebbtide.Session(fast=FAST) as session:
        train(run, 3, session)
    assert _torch.is_managed(weight)
    assert flat.data_ptr() == weight.data_ptr()
    assert torch.equal(flat.view_as(weight), weight)
    assert torch.equal(row, weight[1])


def _from_numpy(weight: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    array = weight.numpy().copy()
    return torch.from_numpy(array), array


def _from_dlpack(weight: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    array = weight.numpy().copy()
    return torch.from_dlpack(array), array


def _shared_memory(weight: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    shared = weight.clone().share_memory_()
    return shared, shared.numpy()


def _numpy_view(weight: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    return weight, weight.numpy()


HOLDERS = {
    "from-numpy": _from_numpy,
    "from-dlpack": _from_dlpack,
    "shared-memory": _shared_memory,
    "numpy-view": _numpy_view,
}


@pytest.mark.parametrize("holder", ["from-numpy", "from-dlpack", "shared-memory", "numpy-view"])
def test_a_parameter_that_others_hold_is_left_alone_and_reported(holder: str) -> None:
    """Both sides go on seeing the same bytes."""
    plain = train_plainly(CASES["weight-averaging"], 4)
    ours = begin(CASES["weight-averaging"])
    weight = ours.model.network[0].weight
    weight.data, array = HOLDERS[holder](weight.detach())
    with ebbtide.Session(fast=FAST) as session:
        train(ours, 4, session)
        summary = session.summary()
    assert plain.differences(ours) == ()
    assert weight.data_ptr() == array.ctypes.data
    assert not _torch.is_managed(weight)
    assert np.array_equal(array, weight.detach().numpy())
    assert "left alone" in summary


def frozen() -> Verdict:
    """The script froze all that it had: a model, its optimizer, and an array that shares one weight's memory."""
    case = CASES["weight-averaging"]
    plain = train_plainly(case, STEPS)
    ours = begin(case)
    weight = ours.model.network[0].weight
    shared = weight.detach().numpy()
    gc.collect()
    gc.freeze()
    with ebbtide.Session(fast=FAST, policy="demand") as session:
        train(ours, STEPS, session)
    assert gc.get_freeze_count() > 0
    assert not _torch.is_managed(weight)
    assert shared.ctypes.data == weight.data_ptr()
    assert _torch.is_managed(ours.model.network[2].weight)
    return verdict(plain, ours, session)


def frozen_optimizer() -> tuple[str, ...]:
    ours = begin(CASES["weight-averaging"])
    gc.freeze()
    with ebbtide.Session(fast=FAST, optimizer="in-backward", policy="demand") as session:
        train(ours, STEPS, session)
    return session.report().updates


N = 1 << 20


def _slice_of(tensor: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    return torch.empty(0).set_(tensor.untyped_storage()[4 * begin : 4 * end])


def _object_array(tensor: torch.Tensor) -> np.ndarray:
    holder = np.empty(2, dtype=object)
    holder[0] = tensor.numpy()[7:]
    return holder


ALIASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "dlpack": torch.from_dlpack,
    "dlpack-capsule": lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
    "dlpack-unused": torch.utils.dlpack.to_dlpack,
    "dlpack-numpy": np.from_dlpack,
    "dlpack-of-a-view": lambda t: torch.from_dlpack(t[1:].view(1, -1))[0],
    "from-numpy": lambda t: torch.from_numpy(t.numpy()),
    "from-numpy-offset": lambda t: torch.from_numpy(t.numpy()[1024:]),
    "frombuffer": lambda t: torch.frombuffer(t.numpy(), dtype=torch.float32),
    "frombuffer-offset": lambda t: torch.frombuffer(t.numpy(), dtype=torch.float32, offset=4096),
    "asarray": lambda t: torch.asarray(t.numpy()[16:]),
    "storage-slice": lambda t: _slice_of(t, 0, N),
    "storage-slice-half": lambda t: _slice_of(t, N // 2, N),
    "slice-of-a-slice": lambda t: _slice_of(_slice_of(t, 0, N), N // 2, N),
    "object-array": _object_array,
    "memoryview": lambda t: memoryview(t.numpy()),
    "ctypes": lambda t: (ctypes.c_float * N).from_buffer(t.numpy()),
    "nested": lambda t: {"x": [(t.detach()[3:].numpy(),)]},
    "grad-of-a-leaf": lambda t: torch.from_dlpack(_as_gradient(t)),
}


def _as_gradient(tensor: torch.Tensor) -> torch.Tensor:
    leaf = torch.zeros(N, requires_grad=True)
    leaf.grad = tensor
    return tensor


def _first_value(alias: Any) -> float:
    if isinstance(alias, dict):
        alias = alias["x"][0][0]
    if isinstance(alias, np.ndarray) and alias.dtype == object:
        alias = alias[0]
    if type(alias).__name__ == "PyCapsule":
        alias = torch.from_dlpack(_Capsule(alias))
    return float(alias[len(alias) - 1])


class _Capsule:
    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _use_both(tensor: torch.Tensor, alias: Any) -> tuple[float, ...]:
    tensor.fill_(3.0)
    seen = _first_value(alias)
    if isinstance(alias, torch.Tensor):
        alias.fill_(5.0)
    return seen, float(tensor[-1]), float(tensor[0]), float(tensor.sum())


@pytest.mark.in_child
@pytest.mark.alike
@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_from_before_the_session_is_never_parted(name: str) -> None:
    expected = torch.arange(N, dtype=torch.float32)
    plain = _use_both(expected, ALIASES[name](expected))
    tensor = torch.arange(N, dtype=torch.float32)
    alias = ALIASES[name](tensor)
    with ebbtide.Session(fast="60%") as session:
        filler = [torch.full((N // 2,), 9.0) for _ in range(8)]
        for _ in range(3):
            with session.step():
                filler[0] + 1
        assert sum(step.evicted_bytes.total for step in session.report().steps) > 0
        ours = _use_both(tensor, alias)
        reasons = [entry.reason for entry in session.report().outside]
        managed = _torch.is_managed(tensor)
    assert ours == plain
    assert not managed
    assert reasons


def test_freed_aliases() -> None:
    """Aliases that are gone by the time the session begins leave no trace: the tensors are adopted."""
    tensors = [torch.arange(N, dtype=torch.float32) for _ in ALIASES]
    for tensor, make in zip(tensors, ALIASES.values(), strict=True):
        make(tensor)
    del tensor
    gc.collect()
    with ebbtide.Session(fast="60%") as session:
        assert session.report().outside == ()
        assert all(_torch.is_managed(tensor) for tensor in tensors)


def test_passing_reference() -> None:
    """What somebody holds at one boundary and not at the next is adopted then."""
    tensor = torch.zeros(N)
    holder = [torch.from_dlpack(tensor)]
    with ebbtide.Session(fast="60%") as session:
        assert not _torch.is_managed(tensor)
        holder.clear()
        with session.step():
            tensor + 1
        assert _torch.is_managed(tensor)
        assert session.report().outside == ()


def _conv() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 1000)), torch.ones(2, 3, 12, 12)


def _linear() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]), torch.ones(4, 256)


def _tied() -> tuple[nn.Module, torch.Tensor]:
    model, batch = _linear()
    model[1].weight = model[0].weight
    return model, batch


def _normed() -> tuple[nn.Module, torch.Tensor]:
    normed = torch.nn.utils.parametrizations.weight_norm
    return nn.Sequential(*[normed(nn.Linear(256, 256)) for _ in range(3)]), torch.ones(4, 256)


def _compiled() -> tuple[Any, torch.Tensor]:
    model, batch = _linear()
    return torch.compile(model, backend="aot_eager"), batch


def _scripted() -> tuple[Any, torch.Tensor]:
    model, batch = _linear()
    return torch.jit.script(model), batch


def _parallel() -> tuple[nn.Module, torch.Tensor]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model, batch = _linear()
    return nn.parallel.DistributedDataParallel(model), batch


def _recurrent() -> tuple[nn.Module, torch.Tensor]:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(128, 256, 2)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return self.lstm(batch)[0]

    return Last(), torch.ones(3, 4, 128)


def _attending() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2), torch.ones(2, 8, 128)


ORDINARY = {
    "conv": _conv,
    "linear": _linear,
    "tied": _tied,
    "weight-norm": _normed,
    "compiled": _compiled,
    "scripted": _scripted,
    "distributed-data-parallel": _parallel,
    "lstm": _recurrent,
    "attention": _attending,
}


@pytest.mark.parametrize("name", ORDINARY)
def test_of_an_ordinary_model_nothing_is_left_alone(name: str) -> None:
    """It has gradients and AdamW's state from before the session, and graphs and losses are about."""
    model, batch = ORDINARY[name]()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(model(batch).square().mean())
        losses[-1].backward()
        optimizer.step()
    with ebbtide.Session(fast="80%") as session:
        report = session.report()
        assert report.outside == ()
        parameters = [p for p in model.parameters() if p.nbytes >= 4096]
        assert all(_torch.is_managed(p) and _torch.is_managed(p.grad) for p in parameters)
        assert report.adopted_bytes >= 4 * sum(p.nbytes for p in parameters)


def test_alias_of_a_parallel_model() -> None:
    """One parameter of a ``DistributedDataParallel`` is shared by DLPack: it is left alone, all others are adopted."""
    model, batch = _parallel()
    for _ in range(2):
        model(batch).square().mean().backward()
    first, *others = (p for p in model.parameters() if p.nbytes >= 4096)
    alias = torch.from_dlpack(first.detach())
    with ebbtide.Session(fast="80%"):
        assert not _torch.is_managed(first)
        assert all(_torch.is_managed(other) for other in others)
    first.detach().fill_(2.0)
    assert float(alias[0, 0]) == 2.0


def test_many_storages_are_adopted_at_once() -> None:
    """By the ten thousand, in one pass."""
    tensors = [torch.zeros(1024) for _ in range(50_000)]
    with ebbtide.Session(fast="80%"):
        assert sum(_torch.is_managed(tensor) for tensor in tensors) == 50_000


def test_held_within_a_generator() -> None:
    """A generator's variables are counted once, so that a reference which only an array holds stays unexplained."""
    kept: list[Any] = []

    def lines() -> Any:
        weight = torch.full((1 << 18,), 2.0)
        array = weight.numpy()
        base = array.base
        del weight
        kept.append(array)
        with ebbtide.Session(fast="80%", progress="off"):
            kept.append(_torch.is_managed(base))
            base.add_(1)
            kept.append(float(array[-1]))
        yield

    next(lines())
    assert kept[1:] == [False, 3.0]


class _Freed(np.ndarray):
    """An array that looks for storages while it is freed."""

    def __del__(self) -> None:
        freed.append(adopt_all())


freed: list[Any] = []


def test_gradient_that_is_being_freed() -> None:
    """While PyTorch frees a gradient, another thread may run, and the parameter still refers to it."""
    parameter = nn.Parameter(torch.zeros(N))
    with ebbtide.Session(fast="80%", progress="off"):
        parameter.grad = torch.from_numpy(np.ones(N, np.float32).view(_Freed))
        parameter.grad = None
        assert freed == [(0, [])]


def test_gradient_that_is_added_to() -> None:
    """Another thread's backward pass adds to a gradient, without the GIL and without a reference to it."""
    torch.set_num_threads(1)  # so that adding takes long
    for _ in range(3):
        begins = threading.Event()
        parameter = torch.zeros(1).expand(1 << 27).requires_grad_()
        parameter.grad = torch.ones(1 << 27)
        array = parameter.grad.numpy()
        parameter.register_hook(lambda _, begins=begins: begins.set())
        with ebbtide.Session(fast="80%", progress="off"), ThreadPoolExecutor(1) as pool:
            del array
            running = pool.submit(parameter.sum().backward)
            begins.wait()
            adopt_all()
            running.result()
            assert bool((parameter.grad == 2).all())


def test_what_another_thread_works_on() -> None:
    """An operator refers to the tensor that it is a method of without a reference of its own."""
    torch.set_num_threads(1)  # so that it takes long
    for _ in range(3):
        tensor = torch.ones(1 << 26)
        array = tensor.numpy()
        with ebbtide.Session(fast="80%", progress="off"), ThreadPoolExecutor(1) as pool:
            del array
            running = pool.submit(tensor.uniform_, 2, 3)
            adopt_all()
            running.result()
            assert float(tensor.min()) >= 2
            del running
            adopt_all()
            assert _torch.is_managed(tensor)


def test_gradients_that_threads_drop() -> None:
    """They go on with their own models while this thread looks for storages."""
    ended = threading.Event()

    def trains() -> None:
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)])
        while not ended.is_set():
            model.zero_grad()
            model(torch.ones(8, 64)).sum().backward()

    with ebbtide.Session(fast="1GiB", progress="off"), ThreadPoolExecutor(2) as pool:
        running = [pool.submit(trains) for _ in range(2)]
        for _ in range(100):
            adopt_all()
            time.sleep(0.0005)
        ended.set()
        for each in running:
            each.result()


def test_variable_that_another_thread_passes_on() -> None:
    """A thread's variable is gone before this thread has counted, and what an array holds is taken for it."""
    look, kept = adopt.running_locals, []
    holds, looks, kept_now = threading.Event(), threading.Event(), threading.Event()

    def passes_on() -> None:
        array = torch.full((N,), 2.0).numpy()
        tensor = array.base
        holds.set()
        looks.wait()
        kept.append(array)
        del tensor, array
        kept_now.set()

    def and_is_overtaken() -> list[Any]:
        found = look()
        looks.set()
        kept_now.wait()
        return found

    with ThreadPoolExecutor(1) as pool:
        pool.submit(passes_on)
        holds.wait()
        adopt.running_locals = and_is_overtaken  # type: ignore[assignment]
        with ebbtide.Session(fast="80%", progress="off"):
            base = kept[0].base
            assert not _torch.is_managed(base)
            base.add_(1)
            assert float(kept[0][-1]) == 3.0


def check(verdict: Verdict, nbytes: int) -> None:
    assert verdict.differences == ()
    assert verdict.adopted_bytes >= 0.99 * nbytes  # all but storages under one page
    assert all(verdict.evicted_bytes[kind] > 0 for kind in verdict.evicted_bytes)
    assert all(verdict.fetched_bytes[kind] > 0 for kind in verdict.fetched_bytes)


@pytest.mark.here
def test_what_is_frozen_is_adopted_and_its_optimizer_known() -> None:
    found = child.run(frozen, env=PAGES)
    assert found.differences == ()
    assert found.adopted_bytes > 0
    assert "as soon as its gradient is complete" in child.run(frozen_optimizer, env=PAGES)[0]
