"""What the tests of recording run in child processes: models whose every access can be read in their source."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import ebbtide
from ebbtide import _torch
from ebbtide.ir.files import load
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.trace import Trace
from tests.training.same_bits import CASES, begin, train, train_plainly

Story = list[tuple[str, int]]  # an operator and how it accesses a storage, in the order of ticks


@contextmanager
def trace_file() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder) / "step.trace"


def record(step: Callable[[], None], steps: int = 3) -> Trace:
    with trace_file() as path:
        with ebbtide.record(path) as session:
            for _ in range(steps):
                with session.step():
                    step()
        return load(path, Trace)


def only(trace: Trace, nbytes: int, which: int = 0) -> int:
    """The storage of this size that was born first, or that many later."""
    return [number for number, storage in enumerate(trace.storages) if storage.nbytes == nbytes][which]


def story(trace: Trace, storage: int) -> Story:
    """Of the outermost operators: what runs in them uses their operands too."""
    rows = trace.accesses.of(storage)
    ticks = [trace.ticks[tick] for tick in trace.accesses.tick[rows] % len(trace.ticks)]
    modes = trace.accesses.mode[rows].tolist()
    return [(tick.operator, mode) for tick, mode in zip(ticks, modes, strict=True) if tick.depth == 0]


def views_and_in_place() -> tuple[Story, Story, bool]:
    """Of a storage written and read through views, and of one changed in place; whether the latter ends at once."""

    def step() -> None:
        base = torch.empty(40, 100)
        base.narrow(0, 0, 10).fill_(1)
        base.t()[:, 10:].copy_(torch.ones(100, 30))
        total = base.view(-1)[5:].sum()
        changed = torch.zeros(41, 100)
        changed.add_(total)
        changed.mul_(base[0])
        del changed
        base.expand(2, 40, 100).sum()

    trace = record(step)
    changed = trace.storages[only(trace, 16_400)]
    return story(trace, only(trace, 16_000)), story(trace, only(trace, 16_400)), changed.death <= len(trace.ticks)


class Doubled(torch.autograd.Function):
    """Saves its input, and uses it again in the backward pass."""

    @staticmethod
    def forward(context: FunctionCtx, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = context.saved_tensors
        return gradient.mul(x)


def custom_function_and_checkpoint() -> tuple[Story, list[tuple[str, str]], list[str]]:
    """The saved input's accesses; operators and phases of the checkpointed module; what ran in the optimizer."""
    layer = nn.Linear(50, 60)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        rows = torch.ones(70, 50)
        hidden = Doubled.apply(checkpoint(layer, rows, use_reentrant=False))
        hidden.sum().backward()
        optimizer.step()

    trace = record(step)
    in_layer = [(tick.operator, str(tick.phase)) for tick in trace.ticks if tick.module == "Linear" and not tick.depth]
    in_optimizer = [tick.operator for tick in trace.ticks if tick.phase == "optimizer" and not tick.depth]
    return story(trace, only(trace, 70 * 60 * 4)), in_layer, in_optimizer


def freed_and_reused() -> tuple[list[tuple[int, int]], list[Story], bool]:
    """Lives and accesses of two storages that lie, one after the other, at one address; and whether they did.

    Whether they do is up to the system's allocator (so large a block it always maps anew, at the same place unless
    somebody took that meanwhile); now and then they do not: then once more.
    """
    addresses = []

    def step() -> None:
        first = torch.empty(9000, 1000)
        first.fill_(1)
        addresses.append(first.data_ptr())
        del first
        second = torch.empty(9000, 1000)
        second.zero_()
        addresses.append(second.data_ptr())

    for _ in range(20):
        trace = record(step)
        if addresses[-1] == addresses[-2]:
            break
    found = [only(trace, 36_000_000, which) for which in (0, 1)]
    lives = [(trace.storages[number].birth, trace.storages[number].death) for number in found]
    return lives, [story(trace, number) for number in found], addresses[-1] == addresses[-2]


def met_late() -> tuple[list[tuple[bool, int, Story]], bool]:
    """Storages from before the session: kept, freed in the step, never used, and a NumPy array's.

    Of each whether it is persistent, the tick of its end, and its accesses; and whether the unused one is as it was.
    """
    import numpy as np

    kept, unused = torch.ones(1001), torch.ones(1003)
    freed = [torch.ones(1002), torch.ones(1002), torch.ones(1002)]
    array = np.ones(1004, dtype=np.float32)

    def step() -> None:
        kept.neg_()
        freed.pop().neg_()
        kept.neg_()
        torch.from_numpy(array).neg_()

    trace = record(step)
    rows = []
    for nbytes in (4004, 4008, 4012, 4016):
        number = only(trace, nbytes)
        storage = trace.storages[number]
        rows.append((storage.persistent, storage.death, story(trace, number)))
    return rows, bool((unused == 1).all())


def allocations(name: str) -> tuple[list[int], list[int]]:
    """Sizes in the order of allocation, of a step as it is and of one that is recorded, as PyTorch's profiler sees."""
    case = CASES[name]
    run = begin(case)
    train(run, 2)
    _torch.watch()
    found = []
    for recorded in (False, True):
        _torch.begin_step(record=recorded, modules=recorded)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            train(run, 1)
        _torch.end_step(completed=True)
        events = profile.profiler.kineto_results.events()
        found.append([event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0])
    assert _torch.take_recording().n_ticks > 1
    return found[0], found[1]


def same_bits(name: str) -> tuple[tuple[str, ...], bool]:
    """A recorded training run against a plain one."""
    case = CASES[name]
    plain = train_plainly(case, 4)
    with trace_file() as path:
        with ebbtide.record(path) as session:
            ours = begin(case)
            train(ours, 4, session)
        return plain.differences(ours), session.done


def with_and_without_arena(name: str, smallest: int) -> tuple[list[list[Any]], list[list[Any]]]:
    """Ticks, storages of ``smallest`` bytes and more, and their accesses, as both recorders see them: they share none
    of the code that notes births, uses and deaths."""
    found = []
    for fast in (None, "100%"):
        with trace_file() as path:
            bounded = ebbtide.Session(fast, min_storage_bytes=smallest, save_trace=path) if fast else None
            with bounded or ebbtide.record(path) as session:
                train(begin(CASES[name]), 4, session)
            trace = load(path, Trace)
        large = [number for number, storage in enumerate(trace.storages) if storage.nbytes >= smallest]
        lives = sorted(
            [s.birth, s.death, s.nbytes, s.kind, s.persistent, s.module, story(trace, number)]
            for number in large
            for s in (trace.storages[number],)
        )
        found.append(
            [[(tick.operator, tick.module, tick.phase, tick.flops, tick.depth) for tick in trace.ticks], lives]
        )
    return found[0], found[1]


def flops(name: str) -> tuple[int, int]:
    """Of a step, as recorded and as PyTorch counts them."""
    run = begin(CASES[name])
    train(run, 1)
    with FlopCounterMode(display=False) as counter:
        train(run, 1)
    return sum(tick.flops for tick in record(lambda: train(run, 1)).ticks), counter.get_total_flops()


def flops_of_layers() -> dict[str, tuple[int, int]]:
    """Forward and backward FLOPs of operators that PyTorch's counter does not know or counts otherwise."""

    def counted(module: nn.Module, *inputs: Tensor) -> tuple[int, int]:
        def step() -> None:
            output = module(*inputs)
            (output[0] if isinstance(output, tuple) else output).sum().backward()

        trace = record(step)
        return tuple(sum(t.flops for t in trace.ticks if t.phase == phase) for phase in ("forward", "backward"))  # type: ignore[return-value]

    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v)

    heads = [torch.randn(2, 3, 32, 16, requires_grad=True) for _ in range(3)]
    image = torch.randn(2, 8, 10, 10, requires_grad=True)
    return {
        "attention": counted(Attention(), *heads),
        "depthwise": counted(nn.Conv2d(8, 8, 3, padding=1, groups=8), image),
        "transposed": counted(nn.ConvTranspose2d(8, 4, 2, stride=2), image),
        "lstm": counted(nn.LSTM(6, 7), torch.randn(5, 3, 6, requires_grad=True)),
    }


def bytes_of_ticks() -> dict[str, int]:
    """What some operators move, by name; of an outer and an inner operator on the same storages only one."""

    def step() -> None:
        x = torch.ones(1000)
        y = x.clone()
        y.add_(x[:100].sum())
        torch.add(x, y, out=y)
        y.narrow(0, 0, 10).neg_()

    moved: dict[str, int] = {}
    for tick in record(step).ticks:
        moved[tick.operator] = moved.get(tick.operator, 0) + tick.nbytes
    return moved


def refused() -> list[str]:
    """What a session says that records with an arena in the process, and one with a step that raises."""
    said = []
    with ebbtide.Session(fast="50%"):
        pass
    with trace_file() as path:
        try:
            with ebbtide.record(path):
                pass
        except ebbtide.EbbtideError as error:
            said.append(str(error))
    return said


def recorded_then_bounded(name: str) -> tuple[tuple[str, ...], bool, int, int]:
    """A session with a budget after one that recorded: differences from a plain run, what was adopted and moved."""
    case = CASES[name]
    plain = train_plainly(case, 6)
    ours = begin(case)
    with trace_file() as path, ebbtide.record(path) as first:
        train(ours, 3, first)
    with ebbtide.Session(fast="50%") as second:
        train(ours, 3, second)
    report = second.report()
    moved = sum(step.fetched_bytes.total for step in report.steps)
    return plain.differences(ours), first.done, report.adopted_bytes, moved


def a_step_that_raises() -> tuple[bool, str]:
    """It is not counted, so the step after it is the one that is recorded."""
    with trace_file() as path:
        with ebbtide.record(path) as session:
            for number in range(5):
                try:
                    with session.step():
                        torch.ones(1000 + number).add_(1)
                        if number == 2:
                            raise LookupError
                except LookupError:
                    pass
        trace = load(path, Trace)
    return session.done, str(sorted(storage.nbytes for storage in trace.storages if storage.nbytes > 4000))


def seen(name: str, fake: bool, smallest: int) -> tuple[list[Any], int, int]:
    """Storages of a step that are no scratch, in the order of their births, with their uses; its FLOPs and its peak."""
    with trace_file() as path:
        with ebbtide.record(path, first=3, fake=fake) as session:
            train(begin(CASES[name]), 3, session)
        trace = load(path, Trace)
    rows = []  # without births: on a CPU an inner operator often makes what an outer one returns
    for number, storage in enumerate(trace.storages):
        if not storage.scratch and storage.nbytes >= smallest:
            uses = [(operator, mode) for operator, mode in story(trace, number) if mode != 2]
            crosses_end = storage.persistent or storage.death > len(trace.ticks)
            rows.append((storage.nbytes, str(storage.kind), storage.persistent, crosses_end, uses))
    return rows, sum(tick.flops for tick in trace.ticks), peak(live_bytes(trace))


class Elsewhere(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.atan()


class Again(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.erf().exp()


ELSEWHERE = Elsewhere()


@dataclass
class Odd(nn.Module):
    """A dataclass compares, and so it has no hash."""

    rate: float

    def __post_init__(self) -> None:
        super().__init__()
        self.within, self.again, self.cell = nn.Sequential(nn.Tanh()), Again(), nn.GRU(64, 64)

    def named_modules(self, *_: Any, **__: Any) -> Any:
        raise ValueError("not supported")

    def forward(self, x: Tensor) -> Tensor:
        x = self.within(x.relu()) + self.cell(x)[0].detach()
        if not hasattr(self, "added"):
            self.added = nn.Sigmoid()
        return checkpoint(self.again, ELSEWHERE(self.added(x)), use_reentrant=False)  # type: ignore[no-any-return]


def modules_of_ticks() -> dict[str, list[str]]:
    """The modules of each operator, in the order of its calls."""
    x = torch.randn(8, 64, requires_grad=True)

    def step() -> None:
        Odd(0.5)(x).sin().sum().backward()

    names: dict[str, list[str]] = {}
    for tick in record(step).ticks:
        if not tick.depth:
            names.setdefault(tick.operator, []).append(tick.module)
    return names


class Counted(Tensor):
    """It says itself what sizes, strides and layout it has, and counts who asks."""

    asked: ClassVar[list[str]] = []

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Counted":
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, inner.shape, dtype=inner.dtype, dispatch_sizes_strides_policy="sizes", dispatch_layout=True
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(str(func))
        args = [each.inner if isinstance(each, Counted) else each for each in args]
        result = func(*args, **(kwargs or {}))
        return Counted(result) if isinstance(result, Tensor) and func is torch.ops.aten.mul.Tensor else result


def asked_by_a_class_of_the_scripts() -> tuple[list[str], list[str]]:
    """What it is asked in a step, plainly and where it is recorded."""
    weight, found = torch.randn(64, 64, requires_grad=True), []

    def step() -> None:
        Counted.asked.clear()
        (Counted(torch.ones(64, 64)) * Counted(torch.ones(64, 64))).inner.sum()
        (weight * 2).sum().backward()
        found.append(list(Counted.asked))

    step()
    record(step)
    return found[0], found[-1]


def exports_while_recorded() -> list[bool]:
    """A module whose steps are recorded, and which has names from then on; whether each export computes as it does."""
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    x, same = torch.randn(8, 64), []

    def step() -> None:
        net(x).square().mean().backward()
        exported = torch.export.export(net, (x,), strict=True)
        same.append(torch.equal(exported.module()(x), net(x)))

    trace = record(step)
    assert any("Sequential.0" in tick.module for tick in trace.ticks)
    return same
