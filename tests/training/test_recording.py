"""What a recorded step holds: every access, life, FLOP and byte of models in which they can be counted by reading."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest
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
from ebbtide.ir.trace import Phase, Trace
from tests.helpers.command import EBBTIDE, TRAIN_MLP, run
from tests.training.same_bits import CASES, begin, train, train_plainly

READ, WRITE, BOTH = 1, 2, 3
pytestmark = pytest.mark.in_child
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


def test_reads_and_writes_through_views_are_those_of_the_storage() -> None:
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
    read = [("aten::sum", READ), ("aten::mul_", READ), ("aten::sum", READ)]
    assert story(trace, only(trace, 16_000)) == [("", WRITE), ("aten::fill_", BOTH), ("aten::copy_", BOTH), *read]
    assert story(trace, only(trace, 16_400)) == [("aten::zeros", WRITE), ("aten::add_", BOTH), ("aten::mul_", BOTH)]
    assert changed.death <= len(trace.ticks)


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


def test_custom_functions_and_checkpoints_are_seen_in_their_phases() -> None:
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
    assert story(trace, only(trace, 70 * 60 * 4)) == [("aten::addmm", WRITE), ("aten::exp", READ), ("aten::mul", READ)]
    again = [("aten::addmm", "backward"), ("aten::mm", "backward"), ("aten::sum", "backward")]
    assert in_layer == [("aten::addmm", "forward"), *again]
    assert in_optimizer == ["aten::add_", "aten::add_"]


@pytest.mark.in_child({"EBBTIDE_PIECE": "64MiB"})
def test_two_storages_at_one_address_are_two() -> None:
    """Whether they lie there is up to the system's allocator (so large a block it always maps anew, at the same place
    unless somebody took that meanwhile); now and then they do not: then once more."""
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
    assert addresses[-1] == addresses[-2]
    assert lives[0] == (0, 2)
    assert lives[1][0] == 1
    assert [story(trace, number) for number in found] == [
        [("", WRITE), ("aten::fill_", BOTH)],
        [("aten::fill_", WRITE), ("aten::zero_", BOTH)],
    ]


def test_storages_from_before_the_session_are_there_with_their_ends() -> None:
    """Kept, freed in the step, never used, and a NumPy array's."""
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
    (kept, freed, unused, array), untouched = rows, bool((unused == 1).all())
    once, twice = [("aten::neg_", BOTH)], [("aten::neg_", BOTH)] * 2
    assert (kept, freed, unused, array) == ((True, 5, twice), (False, 3, once), (True, 5, []), (True, 5, once))
    assert untouched


def test_recording_changes_no_allocation() -> None:
    """As PyTorch's profiler sees it."""
    case = CASES["vit-adamw-loop"]
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
    plain = found[0]
    assert len(plain) > 500
    assert found[1] == plain


def test_recording_changes_no_bit() -> None:
    case = CASES["gpt2-adamw-fused"]
    plain = train_plainly(case, 4)
    with trace_file() as path:
        with ebbtide.record(path) as session:
            ours = begin(case)
            train(ours, 4, session)
        differences = plain.differences(ours)
        recorded = session.done
    assert differences == ()
    assert recorded


@pytest.mark.parametrize("name", ["gpt2-adamw-fused", "resnet-sgd-momentum"])
def test_with_an_arena_and_without_the_same_is_recorded(name: str) -> None:
    """Both recorders share none of the code that notes births, uses and deaths."""
    found = []
    for fast in (None, "100%"):
        with trace_file() as path:
            bounded = ebbtide.Session(fast, min_storage_bytes=65_536, save_trace=path) if fast else None
            with bounded or ebbtide.record(path) as session:
                train(begin(CASES[name]), 4, session)
            trace = load(path, Trace)
        large = [number for number, storage in enumerate(trace.storages) if storage.nbytes >= 65_536]
        lives = sorted(
            [s.birth, s.death, s.nbytes, s.kind, s.persistent, s.module, story(trace, number)]
            for number in large
            for s in (trace.storages[number],)
        )
        found.append(
            [[(tick.operator, tick.module, tick.phase, tick.flops, tick.depth) for tick in trace.ticks], lives]
        )
    plain = found[0]
    managed = found[1]
    assert plain[0] == managed[0]
    assert plain[1] == managed[1]


def flops(name: str) -> tuple[int, int]:
    """Of a step, as recorded and as PyTorch counts them."""
    run = begin(CASES[name])
    train(run, 1)
    with FlopCounterMode(display=False) as counter:
        train(run, 1)
    return sum(tick.flops for tick in record(lambda: train(run, 1)).ticks), counter.get_total_flops()


def test_flops_that_pytorch_does_not_count() -> None:
    """Or counts otherwise."""

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
    counted = {
        "attention": counted(Attention(), *heads),
        "depthwise": counted(nn.Conv2d(8, 8, 3, padding=1, groups=8), image),
        "transposed": counted(nn.ConvTranspose2d(8, 4, 2, stride=2), image),
        "lstm": counted(nn.LSTM(6, 7), torch.randn(5, 3, 6, requires_grad=True)),
    }
    attention = 2 * 3 * 32 * 32 * 16  # samples, heads, queries, keys, width: one product each, of two FLOPs
    assert counted["attention"] == (2 * 2 * attention, 5 * 2 * attention)  # QK and PV; QK again, dP, dV, dQ, dK
    depthwise = 2 * (2 * 10 * 10) * (8 * 3 * 3)
    assert counted["depthwise"] == (depthwise, 2 * depthwise)
    transposed = 2 * (2 * 10 * 10) * (8 * 4 * 2 * 2)
    assert counted["transposed"] == (transposed, 2 * transposed)
    lstm = 2 * (5 * 3) * (4 * 7 * 6 + 4 * 7 * 7)
    assert counted["lstm"] == (lstm, 2 * lstm)


def test_bytes_are_those_of_the_operands_once() -> None:
    """Of an outer and an inner operator on the same storages only one counts."""

    def step() -> None:
        x = torch.ones(1000)
        y = x.clone()
        y.add_(x[:100].sum())
        torch.add(x, y, out=y)
        y.narrow(0, 0, 10).neg_()

    moved: dict[str, int] = {}
    for tick in record(step).ticks:
        moved[tick.operator] = moved.get(tick.operator, 0) + tick.nbytes
    assert moved == {
        "": 0,
        "aten::ones": 0,  # fill_ in it writes
        "aten::fill_": 4000 + 4,  # of ones and of sum
        "aten::clone": 0,  # copy_ in it reads and writes
        "aten::copy_": 4000 + 4000,
        "aten::sum": 400,
        "aten::add_": 2 * 4000 + 4,
        "aten::add": 3 * 4000,
        "aten::neg_": 2 * 40,
    }


def test_after_a_budget_only_a_session_with_one_can_record() -> None:
    said = []
    with ebbtide.Session(fast="50%"):
        pass
    with trace_file() as path:
        try:
            with ebbtide.record(path):
                pass
        except ebbtide.EbbtideError as error:
            said.append(str(error))
    (said,) = said
    assert "a session with a budget has run in this process" in said


def test_a_session_with_a_budget_may_follow() -> None:
    case = CASES["gpt2-adamw-fused"]
    plain = train_plainly(case, 6)
    ours = begin(case)
    with trace_file() as path, ebbtide.record(path) as first:
        train(ours, 3, first)
    with ebbtide.Session(fast="50%") as second:
        train(ours, 3, second)
    report = second.report()
    moved = sum(step.fetched_bytes.total for step in report.steps)
    assert plain.differences(ours) == ()
    assert first.done
    assert report.adopted_bytes > 0
    assert moved > 0


def test_a_step_that_raises_is_not_counted() -> None:
    """The step after it is the one that is recorded."""
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
    assert session.done
    assert str(sorted(storage.nbytes for storage in trace.storages if storage.nbytes > 4000)) == "[4012]"


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


def test_any_module_is_named() -> None:
    x = torch.randn(8, 64, requires_grad=True)

    def step() -> None:
        Odd(0.5)(x).sin().sum().backward()

    names: dict[str, list[str]] = {}
    for tick in record(step).ticks:
        if not tick.depth:
            names.setdefault(tick.operator, []).append(tick.module)
    assert names["aten::tanh"] == ["Odd.within.0"]  # of an unhashable module whose own named_modules raises
    assert names["aten::sigmoid"] == ["Odd.added"]  # since the module's first call
    assert names["aten::relu"] == ["Odd"]  # the module's own
    assert names["aten::atan"] == ["Elsewhere"]  # called in it, and none of its parts
    assert names["aten::sin"] == [""]  # called in none
    assert names["aten::tanh_backward"] == names["aten::tanh"]
    assert {*names["aten::sigmoid_"]} == {"Odd.cell"}  # operators that another one calls
    assert names["aten::erf"] == ["Odd.again", "Again"]  # a checkpoint runs it a second time


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


def test_a_class_of_the_scripts_is_asked_no_more_than_by_pytorch() -> None:
    weight, found = torch.randn(64, 64, requires_grad=True), []

    def step() -> None:
        Counted.asked.clear()
        (Counted(torch.ones(64, 64)) * Counted(torch.ones(64, 64))).inner.sum()
        (weight * 2).sum().backward()
        found.append(list(Counted.asked))

    step()
    record(step)
    plain = found[0]
    assert plain
    assert found[-1] == plain


def test_a_module_is_exported_while_its_step_is_recorded() -> None:
    """PyTorch's strict export takes none while there are global hooks, so modules are named without any."""
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    x, same = torch.randn(8, 64), []

    def step() -> None:
        net(x).square().mean().backward()
        exported = torch.export.export(net, (x,), strict=True)
        same.append(torch.equal(exported.module()(x), net(x)))

    trace = record(step)
    assert any("Sequential.0" in tick.module for tick in trace.ticks)
    assert same == [True] * 3


@pytest.mark.parametrize("name", ["resnet-sgd-momentum", "gradients-zeroed-in-place"])
def test_flops_are_those_that_pytorch_counts(name: str) -> None:
    ours, theirs = flops(name)
    assert ours == theirs > 10**8


SMALL = [TRAIN_MLP, "--width", "64", "--rows", "8"]


@pytest.mark.here
def test_the_command_ends_the_script_when_the_step_is_recorded(tmp_path: Path) -> None:
    out = tmp_path / "step.trace"
    finished = run(EBBTIDE, "trace", "-o", str(out), *SMALL, "--steps", "9", "--workers", "2", status=0)
    assert finished.stdout.count("loss") == 2
    assert "train_mlp.py, step 3: " in finished.stderr
    assert "times as long as the step before, which was not recorded" in finished.stderr
    assert "the script was ended after it (--keep-running lets it go on)" in finished.stderr
    quiet = run(EBBTIDE, "trace", "-q", "-o", str(tmp_path / "quiet.trace"), *SMALL, "--steps", "9")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    too_short = run(EBBTIDE, "trace", "-q", "-o", str(tmp_path / "none.trace"), *SMALL, "--steps", "1", status=1)
    assert too_short.stderr.startswith("ebbtide: ")
    trace = load(out, Trace)
    assert trace.unrecorded_ns is not None
    assert {tick.phase for tick in trace.ticks} >= {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert min(storage.nbytes for storage in trace.storages) == 4
    assert any(tick.module == "Sequential.0.1" and tick.operator == "aten::gelu" for tick in trace.ticks)
    phases = [phase for phase in (tick.phase for tick in trace.ticks) if phase is not Phase.OTHER]
    assert [phase for number, phase in enumerate(phases) if phases[number - 1 : number] != [phase]] == [
        *(Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    ]


@pytest.mark.here
def test_several_steps_are_several_files_and_the_script_may_go_on(tmp_path: Path) -> None:
    out = tmp_path / "step.trace"
    command = [EBBTIDE, "trace", "-o", str(out), "--step", "2", "--steps", "2", "--keep-running"]
    finished = run(*command, *SMALL, "--steps", "4", "--exit-code", "7", status=7)
    assert finished.stdout.count("loss") == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2.trace", "step-3.trace"]
    traces = [load(tmp_path / f"step-{step}.trace", Trace) for step in (2, 3)]
    assert traces[0].signature() == traces[1].signature()


@pytest.mark.here
def test_a_script_that_ends_too_early_is_told(tmp_path: Path) -> None:
    out = tmp_path / "step.trace"
    finished = run(EBBTIDE, "trace", "-o", str(out), *SMALL, "--steps", "2", status=1)
    assert "the program made 2 steps, and step 3 was asked for (a step ends" in finished.stderr
    assert not out.exists()


@pytest.mark.here
def test_a_trace_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    finished = run(EBBTIDE, "trace", "-o", str(tmp_path / "absent" / "step.trace"), *SMALL, status=2)
    assert "loss" not in finished.stdout
    assert "cannot be written" in finished.stderr
