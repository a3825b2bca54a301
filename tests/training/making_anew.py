"""Trainings whose storages are made anew, and what a script may do to them meanwhile."""

import importlib
import io
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import ebbtide
from ebbtide import _torch
from ebbtide.report.summary import render_summary
from tests.helpers.at_once import at_once
from tests.training import looks_at_what_is_made_anew as on_any_device
from tests.training.looks_at_what_is_made_anew import Doubles, Look, looks_of, made_of_two, recipes

WIDTH, HIDDEN, ROWS = 128, 1024, 1024


@dataclass(frozen=True, slots=True)
class Trained:
    same: bool
    remade: tuple[int, ...]  # bytes, by step
    evicted: tuple[int, ...]
    summary: str


class ByNumbers(nn.Module):
    """As GPT-2's GELU: each product by a number casts that first, and is born after the cast has ended."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * x.pow(3))))


def net(between: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(WIDTH, HIDDEN), between(), nn.Linear(HIDDEN, WIDTH)) for _ in range(4))
    return nn.Sequential(*layers).to(dtype)


def train(
    steps: int,
    threads: Callable[[int], None] = lambda step: None,
    between: Callable[[], nn.Module] = nn.SiLU,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Return the losses, and then the weights."""
    model, losses = net(between, dtype), list[Tensor]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(ROWS, WIDTH, dtype=dtype)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        threads(step)
        loss.backward()
        threads(-1)
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def trained(fast: str, steps: int, *how: Any) -> Trained:
    plain = train(steps, *how)
    with ebbtide.Session(fast=fast) as session:
        ours = train(steps, *how)
    report = session.report()
    return Trained(
        all(map(torch.equal, plain, ours)),
        tuple(step.made_anew_bytes for step in report.steps),
        tuple(step.evicted_bytes.total for step in report.steps),
        render_summary(report),
    )


def trained_by_numbers(fast: str, steps: int) -> Trained:
    return trained(fast, steps, lambda step: None, ByNumbers, torch.bfloat16)


def with_other_threads(fast: str, steps: int) -> Trained:
    """The number of PyTorch's threads is another one in each backward pass."""
    torch.set_num_threads(2)
    return trained(fast, steps, lambda step: torch.set_num_threads(2 if step < 0 else 1 + step % 2))


# ---- one storage


@dataclass(frozen=True, slots=True)
class Looked:
    same: bool
    remade_bytes: int
    recipes: int  # that are left while the storages live


WHOLE, IN_PIECES = 512, 1536
"""Sides of what is made: of 1 MiB, and of 9 MiB, which is four pieces of 2, 2, 2 and 3 MiB."""


def _made(side: int = WHOLE) -> tuple[Tensor, Tensor, Tensor]:
    return made_of_two(side)


def _numpy(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return torch.from_numpy(made.numpy().copy())


def _dlpack(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(made)).clone()


def _view(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return made.view(-1)[1000:].t().clone()


def _slices(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return torch.cat([made[first : first + 100].sum(1) for first in range(0, len(made), 100)])


def _numpy_of_a_slice(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    array = made[5:9].numpy()
    array[1] = 0
    return made.clone()


def _slice_of_an_operand_written(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    one[-100:].zero_()
    other[:3].numpy()[:] = 1
    return made + one


def _read_and_write_operand(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    one.zero_()
    return made + one


def _operand_through_numpy(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    other.numpy()[:] = 0
    return made + other


def _operand_behind_a_slice(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    """A recipe reads a slice of a storage, and somebody writes to the whole."""
    part = torch.empty(0).set_(one.untyped_storage()[4096 * 16 : 4096 * 48])  # type: ignore[call-overload]
    more = torch.exp(part)
    _torch.evict([more])
    one.fill_(2)
    return torch.cat([more, made.view(-1)])


def _part_changed_in_place(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    made[10:20].mul_(made[30:40])
    made[0].zero_()
    _torch.evict([made])
    return made.clone()


def _saved(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    found: Tensor = torch.load(file)
    return found


def _without_gradients(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        return (made @ made).float()


def _in_a_child(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, str(float(made[7, 9])).encode())
        os._exit(0)
    os.wait()
    return torch.tensor([float(os.read(reader, 100)), float(made[7, 9])])


def _on_a_thread_that_flushes_denormals(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    def look() -> Tensor:
        flush = torch._C.set_flush_denormal
        getattr(flush, "__wrapped__", flush)(True)  # as of a thread that began so
        return made.clone()

    return at_once(look, 1)[0]


LOOKS = looks_of(vars(on_any_device) | globals())


def look(name: str, side: int = WHOLE, rows: int | None = None) -> Looked:
    """Look at a storage that is away, all or so many of its rows, or do something to what it was made of."""
    plain = _plainly(LOOKS[name], side)
    with ebbtide.Session(fast="1GiB"), recipes():
        one, other, made = _made(side)
        assert _torch.recipes() >= 1
        _torch.evict([made[:rows]])
        assert not _torch.is_resident(made)
        before = _torch.counters()
        found = LOOKS[name](one, other, made)
        after, left = _torch.counters(), _torch.recipes()
        same = found.numpy().tobytes() == plain.numpy().tobytes()
    return Looked(same, after["made_anew_bytes"] - before["made_anew_bytes"], left)


def _plainly(case: Look, side: int) -> Tensor:
    with mock.patch.object(_torch, "evict", return_value=0):
        return case(*_made(side))


def piece_by_piece() -> list[int]:
    """Return the bytes that are made anew by each use of a storage in pieces."""
    _, _, plain = _made(IN_PIECES)
    found = list[int]()

    def use(does: Callable[[], object]) -> None:
        before = _torch.counters()["made_anew_bytes"]
        does()
        found.append(_torch.counters()["made_anew_bytes"] - before)

    with ebbtide.Session(fast="1GiB"), recipes():
        one, _, made = _made(IN_PIECES)
        assert _torch.evict([made[400:1000]]) == 0  # a copy would count
        assert [_torch.is_resident(made[row]) for row in (0, 400, 800, 1400)] == [True, False, False, True]
        use(lambda: made[:300].sum())
        use(lambda: made[1200:].numpy().sum())  # which may write there: it has no recipe any more
        use(lambda: made[500:501].sum())
        assert _torch.evict([made]) >= 3 << 20
        use(lambda: made[1400].sum())
        use(lambda: made[0, 0].item())
        _torch.evict([made])
        use(lambda: one[1500:].zero_())
        use(lambda: made.sum())
        assert torch.equal(made, plain)
    return found


def by_faults() -> int:
    """Return the bytes that are made anew where a storage of 12 MiB and its operands do not fit together."""
    side = 1774
    _, _, plain = _made(side)
    sums = [plain[first : first + 100].sum().item() for first in range(0, side, 100)]
    del plain
    with ebbtide.Session(arena_bytes=24 << 20, policy="demand"), recipes():
        one, _, made = _made(side)
        _torch.evict([made[200:], one])
        for _ in range(3):
            assert [made[first : first + 100].sum().item() for first in range(0, side, 100)] == sums
            _torch.evict([made])
        array = made.numpy()
        assert array[:100].sum() == made[:100].numpy().sum()
        counters = _torch.counters()
        assert not counters["over_budget"], counters["message"]
        return int(counters["made_anew_bytes"])


def in_a_profile() -> dict[str, int]:
    """Return how often a profile has what a look at made contents ran."""
    with ebbtide.Session(fast="1GiB"), recipes():
        _, _, made = _made()
        _torch.evict([made])
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            made.clone()
    return {event.key: event.count for event in profiled.key_averages()}


def precision_changes(how: str) -> list[int]:
    """What a recipe needs would be another setting by the time it runs. Return the recipes, before the change and after
    it."""
    with ebbtide.Session(fast="1GiB"):
        _torch.want_all_recipes(True)
        _, _, made = _made()
        _torch.evict([made])
        counts = [_torch.recipes()]
        before = torch._C._set_deterministic_algorithms
        if how == "property":
            torch.backends.mkldnn.deterministic = True
        else:
            (before if how == "python" else before.__wrapped__)(True)
        counts.append(_torch.recipes())
        made.clone()
    return counts


def made_by_mul() -> int:
    """Return the number of recipes where all that is large was made by one multiplication."""
    with ebbtide.Session(fast="1GiB"):
        _torch.want_all_recipes(True, one_in=0)
        source = torch.arange(2**20)
        before = _torch.recipes()
        product = source.mul(3)
        assert product[5] == 15
        return _torch.recipes() - before


def by_numpy(x: Tensor) -> Tensor:
    """A kernel that calls no operator by which it differs from PyTorch's."""
    made = torch.empty_like(x)
    np.negative(x.detach().numpy(), out=made.numpy())
    return made


def kernels_change() -> list[bool]:
    """Tell whether an operator can run again: as it is, with a kernel of the script's, and when that is gone. The last
    two: whether what it has made in a step is made before that, and whether what it makes then has a recipe."""

    def repeats() -> bool:
        return _torch.repeats("aten::silu", "")

    with ebbtide.Session(fast="1GiB"), recipes(1):
        found = [repeats()]
        made = nn.functional.silu(_made()[0])
        _torch.evict([made])
        away = not _torch.is_resident(made)
        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("silu", by_numpy, "CPU")
            there = _torch.is_resident(made)
            found.append(repeats())
            before = _torch.recipes()
            more = nn.functional.silu(made)
            found.append(away and there)
            found.append(_torch.recipes() > before)
            del more
        return [*found[:2], repeats(), *found[2:]]


def a_kernel_comes_with_a_library() -> None:
    """As C++ brings one: no function of PyTorch's in Python is called."""
    impl = torch.library.Library.impl
    with ebbtide.Session(fast="1GiB"), recipes(1), torch.library._scoped_library("aten", "IMPL") as library:
        made = nn.functional.silu(_made()[0])
        _torch.evict([made])
        getattr(impl, "__wrapped__", impl)(library, "silu", by_numpy, "CPU")
        assert "_testbuffer" not in sys.modules
        importlib.import_module("_testbuffer")
        made.clone()


def passes_by_its_path() -> bool:
    """Tell whether an operator can run again with a kernel whose sources lie in a directory like PyTorch's."""
    known = dict[str, Any](torch=torch)
    exec(compile('library = torch.library.Library("aten", "IMPL")', "/home/me/my_pytorch/csrc/ours.py", "exec"), known)
    known["library"].impl("silu", by_numpy, "AutogradCPU")
    return _torch.repeats("aten::silu", "")


def threads_that_flush() -> bool:
    """Those that share a thread's work began while it flushed denormal numbers. Tell whether bits are as plainly."""

    def run() -> bytes:
        made = torch.full((512, 512), 1e-30) * torch.full((512, 512), 1e-12)
        if ebbtide.active():
            _torch.evict([made])
            assert not _torch.is_resident(made)
        read: list[Tensor] = []
        reader = threading.Thread(target=lambda: read.append(made[:1].clone()))
        reader.start()
        reader.join()
        return made.numpy().tobytes()

    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    torch.ones(1 << 20).mul(2)
    torch.set_flush_denormal(False)
    plain = run()
    with ebbtide.Session(fast="1GiB"), recipes(1):
        return run() == plain and plain != bytes(len(plain))


def threads_that_begin() -> set[int]:
    """Return the numbers that new threads have while another makes something anew with a number of its own."""
    torch.set_num_threads(2)
    seen: set[int] = set()
    with ebbtide.Session(fast="1GiB"), recipes(1):
        one = _made()[0]
        made: list[Tensor] = []

        def make() -> None:
            torch.set_num_threads(1)
            made.append(torch.sin(one))

        maker = threading.Thread(target=make)
        maker.start()
        maker.join()

        def look() -> None:
            for _ in range(300):
                thread = threading.Thread(target=lambda: seen.add(torch.get_num_threads()))
                thread.start()
                thread.join()

        looks = threading.Thread(target=look)
        looks.start()
        while looks.is_alive():
            _torch.evict(made)
            made[0][:1].clone()
        assert _torch.counters()["made_anew_bytes"] > made[0].nbytes
    return seen


def another_threads_storages() -> int:
    """Return how many of this thread's storages, evicted, held another's result: its operators free what lay there."""
    size = 1 << 18
    wrong = moved = 0
    with ebbtide.Session(fast="1GiB"), recipes(1):
        ends = threading.Event()
        logits, target, weight = torch.randn(size), torch.rand(size), torch.rand(size)

        def lose() -> None:
            while not ends.is_set():
                nn.functional.binary_cross_entropy_with_logits(logits, target, weight)

        other = threading.Thread(target=lose)
        other.start()
        for number in range(400):
            tensor = torch.empty(size)
            tensor.fill_(number)
            moved += _torch.evict([tensor])
            wrong += tensor[5].item() != number
        assert moved >= 100 * tensor.nbytes
        ends.set()
        other.join()
    return wrong


def update_waits(read: str) -> bool:
    """Tell whether what was made of a weight, evicted, is what it was, after an update of the weight that waits."""
    with ebbtide.Session(fast="1GiB", optimizer="deferred"), recipes():
        weight = nn.Parameter(_made()[0])
        optimizer = torch.optim.SGD([weight], lr=1.0)
        made = weight.detach() * 2
        plain = made.clone()
        weight.square().sum().backward()
        optimizer.step()
        _torch.evict([made])
        assert _torch.deferred_count() == 1
        assert not _torch.is_resident(made)
        found = made.clone() if read == "operator" else torch.from_numpy(made.numpy())
        return torch.equal(found, plain)


# ---- what is more than its operator


class _Noise(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.mul.Tensor:
            out.uniform_(generator=torch.Generator().manual_seed(3))
        return out


def _in_a_mode(one: Tensor, other: Tensor) -> Tensor:
    with _Noise():
        return one * other


def _in_a_mode_that_fills(one: Tensor, other: Tensor) -> Tensor:
    with Doubles():
        return one * other


def _with_hooks(one: Tensor, other: Tensor) -> Tensor:
    both = torch.stack([one, other]).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.clone(), lambda saved: saved):
        low, _high = torch.aminmax(both, dim=0)
    return low.detach()


def _without_denormals(one: Tensor, other: Tensor) -> Tensor:
    torch.set_flush_denormal(True)
    made = torch.full((512, 512), 1e-20) * torch.full((512, 512), 1e-20)
    torch.set_flush_denormal(False)
    return made


@torch.inference_mode()
def _autocast(one: Tensor, other: Tensor) -> Tensor:
    """The product that autocast calls has a call too many for a recipe, for it casts; the one around it has not."""
    row = torch.sin(one)
    for _ in range(13):
        row = row * 1.01
    with torch.autocast("cpu", torch.bfloat16):
        return torch.mm(row, other).float()


def _list_changes(one: Tensor, other: Tensor) -> Tensor:
    """TorchScript's operators get the script's own lists."""
    script = "def flipped(one, dims: List[int]):\n  made = one.flip(dims)\n  dims[0] = 1\n  return made\n"
    flipped: Tensor = torch.jit.CompilationUnit(script).flipped(one, [0])
    return flipped


def _of_another_kernel(one: Tensor, other: Tensor) -> Tensor:
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("silu", by_numpy, "AutogradCPU")
        return nn.functional.silu(one)


def _cloned_lazily(one: Tensor, other: Tensor) -> Tensor:
    """The clone has the address of its original up to its first write, which is none to the original."""
    made = nn.functional.silu(one)
    clone = torch._lazy_clone(made)
    clone.mul_(0.5)
    return made


def _normalized(dtype: torch.dtype, strided: bool) -> Tensor:
    """A batch norm without weights, whose kernel looks at the statistics' type, and whether they are contiguous."""
    operand = torch.sin(torch.arange(16 * 64 * 32 * 32).reshape(16, 64, 32, 32)).to(dtype)
    statistics = torch.stack((torch.zeros(64), torch.ones(64)), dim=1 if strided else 0)
    mean, variance = (statistics[:, 0], statistics[:, 1]) if strided else (statistics[0], statistics[1])
    made: Tensor = nn.functional.batch_norm(operand, mean, variance, training=True)
    return made.float() if dtype == torch.bfloat16 else made


def _normalized_in_bfloat16(one: Tensor, other: Tensor) -> Tensor:
    return _normalized(torch.bfloat16, strided=False)


def _normalized_by_strided_statistics(one: Tensor, other: Tensor) -> Tensor:
    return _normalized(torch.float32, strided=True)


MORE = {
    "kernel": _of_another_kernel,
    "mode": _in_a_mode,
    "mode-out": _in_a_mode_that_fills,
    "hooks": _with_hooks,
    "denormals": _without_denormals,
    "autocast": _autocast,
    "list": _list_changes,
    "clone": _cloned_lazily,
    "statistics": _normalized_in_bfloat16,
    "strided-statistics": _normalized_by_strided_statistics,
}


def more(name: str) -> bool:
    """Tell whether such a result, evicted, is what it was."""
    one, other, _ = _made()
    plain = MORE[name](one, other).numpy().tobytes()
    with ebbtide.Session(fast="1GiB"), recipes(1):
        one, other, _ = _made()
        made = MORE[name](one, other)
        _torch.evict([made])
        assert not _torch.is_resident(made)
        return made.clone().numpy().tobytes() == plain
