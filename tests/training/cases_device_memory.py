"""What test_device_memory.py runs in child processes: trainings on the tests' device, plainly and in its sessions.

Nothing here looks at a loss before the end, so that the host is ahead of the streams, as it is with a GPU.
"""

import gc
import io
import os
import random
import resource
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import ebbtide
from ebbtide import _torch
from ebbtide.ir.run_report import KINDS
from tests.device import lagging
from tests.helpers.zoo_features import NegateInPlace, ScaledSquare
from tests.training.device_verdict import Verdict

native = lagging.load()
DEVICE = lagging.DEVICE
STEPS = 6  # two recorded, then four bounded
WIDTH, CLASSES, ROWS = 64, 64, 128
KEPT = {"device": DEVICE, "min_storage_bytes": 4096, "host_bytes": "256MiB", "progress": "off", "wait_for_plan": True}

# ---- what trains ---------------------------------------------------------------------------------------------------

Batch = tuple[Tensor, ...]
Make = Callable[[Iterable[nn.Parameter]], optim.Optimizer]


def batch(number: int, *shape: int) -> Batch:
    chance = torch.Generator().manual_seed(number)
    rows = torch.randn(*(shape or (ROWS, WIDTH)), generator=chance)
    return rows, torch.randint(CLASSES, (rows.shape[0],), generator=chance)


def moved(tensors: Iterable[Tensor]) -> Batch:
    return tuple(tensor.pin_memory().to(DEVICE, non_blocking=True) for tensor in tensors)


def sgd(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def adamw(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    return optim.AdamW(parameters, lr=0.01, foreach=True)


def adamw_single(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    return optim.AdamW(parameters, lr=0.01, foreach=False)


def adamw_fused(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    return optim.AdamW(parameters, lr=0.01, fused=True)


def mlp(layers: int = 4, activation: Callable[[], nn.Module] = nn.GELU) -> nn.Sequential:
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), activation())))


@dataclass
class Job:
    """A net in training: most jobs replace a part of what a plain one does."""

    net: nn.Module
    make: Make = adamw
    optimizer: optim.Optimizer = field(init=False)
    also: dict[str, Tensor] = field(default_factory=dict)  # what else must have the same bits
    handles: list[Any] = field(default_factory=list)  # of hooks, which would keep the job alive

    def __post_init__(self) -> None:
        self.net.to(DEVICE)
        if isinstance(self.net, GPT2LMHeadModel):
            self.net.tie_weights()  # on a backend of others, `to` makes new parameters
        self.optimizer = self.make([p for p in self.net.parameters() if p.requires_grad])

    def batch(self, number: int) -> Batch:
        return moved(batch(number))

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.net(batch[0]).float(), batch[1])

    def step(self, number: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(self.batch(number))
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.net.state_dict().items()
        yield from self.also.items()
        for name, parameter in self.net.named_parameters():
            if parameter.grad is not None:
                yield f"{name}.grad", parameter.grad
            for what, value in self.optimizer.state.get(parameter, {}).items():
                yield f"{name}.{what}", torch.as_tensor(value)


class Tokens(Job):
    def length(self, _: int) -> int:
        return 16

    def batch(self, number: int) -> Batch:
        chance = torch.Generator().manual_seed(number)
        return moved([torch.randint(128, (4, self.length(number)), generator=chance)])

    def loss(self, batch: Batch) -> Tensor:
        return self.net(batch[0], labels=batch[0]).loss


class LengthsThatChange(Tokens):
    def length(self, number: int) -> int:
        return (16, 16, 9, 16, 12, 16)[number]


def gpt(dropout: float = 0.0) -> nn.Module:
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": WIDTH, "vocab_size": 128, "n_positions": 16}
    config = GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = dropout
    return GPT2LMHeadModel(config)


class Images(Job):
    def batch(self, number: int) -> Batch:
        return moved(batch(number, 4, 8, 8, 8))


def conv() -> nn.Module:
    """A batch norm wide enough for its statistics to be managed."""
    first = (nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    second = (nn.Conv2d(16, 1024, 3, stride=2), nn.BatchNorm2d(1024), nn.ReLU(inplace=True))
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, CLASSES))


class Compiled(Job):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.graphs = torch.compile(self.net, backend="aot_eager")

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.graphs(batch[0]).float(), batch[1])


class AccumulatesAndClips(Job):
    def step(self, number: int) -> Tensor:
        self.optimizer.zero_grad()
        losses = [self.loss(self.batch(10 * number + micro)) / 3 for micro in range(3)]
        for loss in losses:
            loss.backward()
        self.also["norm"] = nn.utils.clip_grad_norm_(self.net.parameters(), 0.1, foreach=True)
        self.optimizer.step()
        return torch.stack([loss.detach() for loss in losses])


class Autocast(Job):
    def loss(self, batch: Batch) -> Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            assert F.linear(batch[0], batch[0]).dtype == torch.bfloat16
            return super().loss(batch)


@dataclass
class Checkpointed(Job):
    reentrant: bool = False

    def loss(self, batch: Batch) -> Tensor:
        assert isinstance(self.net, nn.Sequential)
        rows = batch[0].requires_grad_(self.reentrant)
        for part in (self.net[:4], self.net[4:]):
            rows = checkpoint(part, rows, use_reentrant=self.reentrant)
        return F.cross_entropy(rows, batch[1])


def with_dropout() -> nn.Module:
    return mlp(activation=lambda: nn.Dropout(0.3))


class OwnFunctions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 1024), nn.Linear(1024, CLASSES)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 1024))

    def forward(self, rows: Tensor) -> Tensor:
        return self.down(NegateInPlace.apply(ScaledSquare.apply(self.up(rows), self.scale)))


class HooksOnGradients(Job):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.names = {parameter: name for name, parameter in self.net.named_parameters()}
        for parameter in self.net.parameters():
            parameter.register_hook(lambda gradient: gradient * 0.5)
            self.handles.append(parameter.register_post_accumulate_grad_hook(self.add_decay))
        self.net.register_full_backward_hook(lambda _, inputs, outputs: None)

    def add_decay(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.add_(parameter.detach(), alpha=0.01)
        self.also[f"seen of {self.names[parameter]}"] = parameter.grad.square().sum()


class UpdatesInBackward(Job):
    """An optimizer for each parameter, which steps as soon as the gradient is there, and lets it go."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.each = {parameter: adamw([parameter]) for parameter in self.net.parameters()}
        for parameter in self.net.parameters():
            self.handles.append(parameter.register_post_accumulate_grad_hook(self.update))

    def update(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        self.each[parameter].step()
        self.each[parameter].zero_grad()
        self.optimizer.state[parameter] = self.each[parameter].state[parameter]

    def step(self, number: int) -> Tensor:
        loss = self.loss(self.batch(number))
        loss.backward()
        return loss.detach()


class DoubleBackward(Job):
    def loss(self, batch: Batch) -> Tensor:
        rows = batch[0].requires_grad_()
        loss = super().loss((rows, batch[1]))
        (gradient,) = torch.autograd.grad(loss, rows, create_graph=True)
        return loss + gradient.square().sum()


class Loader(Job):
    def __post_init__(self) -> None:
        super().__post_init__()
        rows = [batch(number) for number in range(STEPS)]
        data = TensorDataset(*(torch.cat(part) for part in zip(*rows, strict=True)))
        self.batches = iter(DataLoader(data, batch_size=ROWS, pin_memory=True))

    def batch(self, _: int) -> Batch:
        rows, labels = next(self.batches)
        assert rows.is_pinned()
        return rows.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)


class BatchesOnTheirStream(Job):
    """The next batch is copied on another stream while a step runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stream = torch.Stream(device=DEVICE)
        self.next = self.fetch(0)

    def fetch(self, number: int) -> Batch:
        with self.stream:
            return tuple(tensor * 1 for tensor in moved(batch(number)))

    def batch(self, number: int) -> Batch:
        here = torch.accelerator.current_stream()
        here.wait_stream(self.stream)
        batch, self.next = self.next, self.fetch(number + 1)
        for tensor in batch:
            tensor.record_stream(here)
        return batch


class OnAnotherStream(Job):
    """While a step goes on, a second stream evaluates with the same weights."""

    def loss(self, batch: Batch) -> Tensor:
        here, other = torch.accelerator.current_stream(), torch.Stream(device=DEVICE)
        other.wait_stream(here)
        with other, torch.no_grad():
            aside = self.net(batch[0] * 0.5).square().mean()
        batch[0].record_stream(other)
        loss = super().loss(batch)
        loss.backward()
        here.wait_stream(other)
        aside.record_stream(here)
        return super().loss(batch) + aside


class Evaluates(Job):
    def step(self, number: int) -> Tensor:
        loss = super().step(number)
        self.net.eval()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                self.also[f"evaluated {number} {mode.__name__}"] = super().loss(self.batch(100 + number)) * 1
        self.net.train()
        return loss


class Catches(Job):
    """Each other step fails once half-way, in the backward pass, and is tried again."""

    def step(self, number: int) -> Tensor:
        if number % 2:
            assert isinstance(self.net, nn.Sequential)
            handle = self.net[2].weight.register_hook(self.fail)
            try:
                super().step(number)
            except ZeroDivisionError:
                handle.remove()
        return super().step(number)

    def fail(self, _: Tensor) -> Tensor:
        raise ZeroDivisionError


class SavesAndLoads(Job):
    """In mid-run a net of its own takes over, from a file."""

    def step(self, number: int) -> Tensor:
        loss = super().step(number)
        if number == STEPS - 3:
            file = io.BytesIO()
            torch.save([self.net.state_dict(), self.optimizer.state_dict()], file)
            file.seek(0)
            net, optimizer = torch.load(file)
            self.net = mlp().to(DEVICE)
            self.net.load_state_dict(net)
            self.optimizer = self.make(self.net.parameters())
            self.optimizer.load_state_dict(optimizer)
        return loss


class KeepsGradients(Job):
    def step(self, number: int) -> Tensor:
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.loss(self.batch(number))
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class AveragesWeights(Job):
    """Keeps an average of the weights in buffers, and shrinks the weights in place."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, parameter in list(self.net.named_parameters()):
            self.net.register_buffer(name.replace(".", "_"), parameter.detach().clone())

    @torch.no_grad()
    def step(self, number: int) -> Tensor:
        with torch.enable_grad():
            loss = super().step(number)
        for name, parameter in self.net.named_parameters():
            parameter.mul_(0.99)
            parameter.data.clamp_(-1, 1)
            self.net.get_buffer(name.replace(".", "_")).lerp_(parameter, 0.1)
        return loss


def tied() -> nn.Module:
    net = mlp()
    net[6].weight = net[0].weight
    net[4].weight.requires_grad_(False)
    net[4].bias.requires_grad_(False)
    return net


class Sharded(Job):
    """As FSDP does: a layer's storage has memory only while the layer runs, and is filled from a shard before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.net, nn.Sequential)
        self.layers = [layer for layer in self.net if isinstance(layer, nn.Linear)]
        self.shards = {layer: layer.weight.detach().clone() for layer in self.layers}
        for layer, shard in self.shards.items():
            self.also[f"shard {len(self.also)}"] = shard
            layer.register_forward_pre_hook(lambda layer, _: self.gather(layer))
            layer.register_forward_hook(lambda layer, *_: self.release(layer))
            layer.register_full_backward_pre_hook(lambda layer, _: self.gather(layer))
            layer.register_full_backward_hook(lambda layer, *_: self.release(layer))
        self.optimizer = optim.SGD([nn.Parameter(torch.zeros(1, device=DEVICE))], lr=0.1)

    @torch.no_grad()
    def gather(self, layer: nn.Module) -> None:
        weight = layer.weight
        weight.untyped_storage().resize_(weight.numel() * weight.itemsize)
        with torch.autograd._unsafe_preserve_version_counter(weight):
            weight.copy_(self.shards[layer])  # type: ignore[index]

    def release(self, layer: nn.Module) -> None:
        layer.weight.untyped_storage().resize_(0)

    def step(self, number: int) -> Tensor:
        loss = self.loss(self.batch(number))
        loss.backward()
        with torch.no_grad():
            for layer, shard in self.shards.items():
                assert layer.weight.grad is not None
                shard.sub_(layer.weight.grad, alpha=0.05)
                layer.weight.grad = None
        self.optimizer.step()
        return loss.detach()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.also.items()


class Views(Job):
    """Parts of one storage: chunks, strided writes, a storage that grows, one that is set anew."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log = torch.zeros(0, WIDTH, device=DEVICE)
        self.flat = torch.zeros(4 * WIDTH * WIDTH, device=DEVICE)

    def loss(self, batch: Batch) -> Tensor:
        base = torch.zeros(ROWS, 2 * WIDTH, device=DEVICE)
        base[:, ::2] = self.net(batch[0])
        base.narrow(1, 0, WIDTH).add_(batch[0])
        first, second = base.chunk(2, dim=1)
        self.log = torch.cat([self.log, first.detach()[:8]])
        for part, layer in zip(self.flat.view(4, WIDTH, WIDTH), self.net[::2], strict=True):  # type: ignore[index]
            part.t().add_(layer.weight.detach())
        with torch.no_grad():
            self.also["log"], self.also["flat"] = self.log, self.flat
            self.log.resize_(self.log.shape[0] + 2, WIDTH)[-2:] = 1
        return F.cross_entropy(first * second.tanh(), batch[1]) + base.as_strided((ROWS, WIDTH), (2 * WIDTH, 2)).mean()


JOBS: dict[str, Callable[[], Job]] = {
    "mlp-sgd": lambda: Job(mlp(), sgd),
    "gpt-adamw": lambda: Tokens(gpt(), adamw),
    "conv-adamw-single": lambda: Images(conv(), adamw_single),
    "adamw-fused": lambda: Job(mlp(), adamw_fused),
    "compiled": lambda: Compiled(mlp()),
    "accumulates-and-clips": lambda: AccumulatesAndClips(mlp()),
    "autocast": lambda: Autocast(mlp()),
    "checkpoints": lambda: Checkpointed(with_dropout()),
    "checkpoints-reentrant": lambda: Checkpointed(with_dropout(), reentrant=True),
    "dropout": lambda: Tokens(gpt(dropout=0.1), sgd),
    "own-functions": lambda: Job(OwnFunctions()),
    "hooks-on-gradients": lambda: HooksOnGradients(mlp()),
    "updates-in-backward": lambda: UpdatesInBackward(mlp()),
    "double-backward": lambda: DoubleBackward(mlp(activation=nn.Tanh)),
    "loader": lambda: Loader(mlp()),
    "batches-on-their-stream": lambda: BatchesOnTheirStream(mlp()),
    "on-another-stream": lambda: OnAnotherStream(mlp()),
    "evaluates": lambda: Evaluates(mlp()),
    "lengths-that-change": lambda: LengthsThatChange(gpt()),
    "catches": lambda: Catches(mlp()),
    "saves-and-loads": lambda: SavesAndLoads(mlp()),
    "keeps-gradients": lambda: KeepsGradients(mlp()),
    "averages-weights": lambda: AveragesWeights(mlp()),
    "tied-and-frozen": lambda: Job(tied()),
    "sharded": lambda: Sharded(mlp()),
    "views": lambda: Views(mlp()),
}

# ---- plainly, and in sessions --------------------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "demand": {"fast": "62%", "policy": "demand"},
    "planned": {"fast": "65%"},
    "chaos": {"fast": "80%", "policy": "demand", "chaos_rate": 0.2, "chaos_seed": 5},
    "file": {"fast": "80%", "policy": "demand", "chaos_rate": 0.2, "chaos_seed": 7, "host_bytes": "2MiB"},
    "remade by chaos": {"fast": "80%", "policy": "demand", "chaos_rate": 0.2, "chaos_seed": 5, "remake": "check"},
}


Bits = dict[str, bytes]


def train(job: Job, numbers: Iterable[int], each: Callable[[], Any] = nullcontext) -> list[Tensor]:
    losses = []
    for number in numbers:
        with each():
            losses.append(job.step(number))
    return losses


def bits(job: Job, losses: list[Tensor]) -> Bits:
    for handle in job.handles:
        handle.remove()
    named = [*((f"loss {number}", loss) for number, loss in enumerate(losses)), *job.tensors()]
    return {
        name: tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for name, tensor in named
    }


def begin(name: str) -> Job:
    torch.manual_seed(3)
    return JOBS[name]()


def plainly(name: str, steps: int = STEPS) -> Bits:
    job = begin(name)
    return bits(job, train(job, range(steps)))


def differences(ours: Bits, plain: Bits) -> tuple[str, ...]:
    return tuple(name for name in {**plain, **ours} if ours.get(name) != plain.get(name))


def within(plain: Bits, name: str, steps: int = STEPS, **wishes: Any) -> Verdict:
    gc.collect()  # hooks make cycles
    job, losses, peak = begin(name), [], 0
    with ebbtide.Session(**(KEPT | wishes)) as session:
        for number in range(steps):
            losses += train(job, [number], session.step)
            if number >= 3:
                peak = max(peak, _torch.allocator_bytes(DEVICE)[2])
    ours, report = bits(job, losses), session.report()
    bounded = report.steps[2:]
    links = report.plan.links if report.plan is not None else ()
    assert report.arena_budget_bytes is not None
    return Verdict(
        differences=differences(ours, plain),
        compared=len(plain),
        out_bytes={kind: sum(getattr(step.evicted_bytes, kind) for step in bounded) for kind in KINDS},
        back_bytes={kind: sum(getattr(step.fetched_bytes, kind) for step in bounded) for kind in KINDS},
        made_anew_bytes=tuple(step.made_anew_bytes for step in bounded),
        modes=tuple(str(step.mode) for step in report.steps),
        forecasts=tuple((link.forecast_bytes, link.measured_bytes) for link in links),
        budget_bytes=report.arena_budget_bytes,
        largest_operator_bytes=_torch.counters()["largest_operator_bytes"],
        peak_bytes=peak,
        managed_peak_bytes=report.arena_peak_bytes,
        unbounded_peak_bytes=report.unbounded_peak_bytes,
        trouble=report.trouble,
        file_bytes=(report.tiers[1].written_bytes, report.tiers[1].read_bytes) if len(report.tiers) > 1 else (0, 0),
    )


def names() -> list[str]:
    return list(JOBS)


def compare(name: str, spill: str) -> dict[str, Verdict]:
    """Each way is a session of its own in this process."""
    WAYS["file"]["spill"] = spill
    plain = plainly(name)
    assert differences(plainly(name), plain) == ()
    return {way: within(plain, name, **wishes) for way, wishes in WAYS.items()}


def through_a_file(name: str, policy: str, spill: str) -> Verdict:
    """Most of what leaves finds no host memory."""
    return within(plainly(name), name, fast="65%", policy=policy, host_bytes="128KiB", spill=spill)


def made_anew_by_plan(name: str, machine: str) -> tuple[Verdict, Verdict]:
    """With making anew, and without."""
    plain = plainly(name)
    anew, moves = (within(plain, name, fast="50%", machine=machine, remake=remake) for remake in ("check", "0"))
    return anew, moves


# ---- one thing at a time -------------------------------------------------------------------------------------------

NUMBERS = 1 << 12


@contextmanager
def session(**wishes: Any) -> Iterator[Any]:
    """Within which nothing moves by itself."""
    with ebbtide.Session(**({"fast": "1GiB", "policy": "demand"} | KEPT | wishes)) as opened, opened.step():
        yield opened


def numbers(value: float) -> Tensor:
    return torch.full((NUMBERS,), float(value), device=DEVICE)


def away(value: float) -> Tensor:
    """A tensor that is on the host."""
    made = numbers(value)
    assert _torch.evict([made]) == 4 * NUMBERS
    assert not _torch.is_resident(made)
    return made


def is_all(tensor: Tensor, value: float) -> bool:
    return bool((tensor.cpu() == value).all())


@contextmanager
def held(stream: torch.Stream) -> Iterator[None]:
    """The stream does nothing of what it is given in the block until the block has ended."""
    gate = native.Gate(stream)
    try:
        yield
    finally:
        gate.open()


@contextmanager
def held_for_a_while(stream: torch.Stream) -> Iterator[None]:
    """As ``held``, for half a second at most: the block may wait for the stream."""
    gate = native.Gate(stream)
    opens = threading.Timer(0.5, gate.open)
    opens.start()
    yield
    opens.join()


def streams_of_copies() -> tuple[torch.Stream, torch.Stream]:
    """Those of copies out and back: the two that are given out when the first session of a process starts."""
    before = torch.Stream(device=DEVICE).stream_id
    with session():
        pass
    return tuple(torch.Stream(stream_id=before + at, device_index=0, device_type=20) for at in (1, 2))  # type: ignore[return-value]


def an_address_is_held() -> None:
    looks: list[Callable[[Tensor], int]] = [
        lambda tensor: tensor.data_ptr(),
        lambda tensor: tensor[5:].data_ptr(),
        lambda tensor: tensor.untyped_storage().data_ptr(),
    ]
    with ebbtide.Session("1GiB", policy="demand", **KEPT) as opened:
        with opened.step():
            seen = [away(value) for value in range(3)]
            for tensor, look in zip(seen, looks, strict=True):
                address = look(tensor)
                assert _torch.is_resident(tensor)
                assert _torch.evict([tensor]) == 0
                assert look(tensor) == address
            exported = away(3)
            capsule = torch.utils.dlpack.to_dlpack(exported)
        with opened.step():
            assert [_torch.evict([tensor]) for tensor in seen] == [4 * NUMBERS] * 3
            assert _torch.evict([exported]) == 0
            again = [tensor.data_ptr() for tensor in seen]  # a second time in its life
            assert len(set(again)) == 3
        with opened.step():
            assert [_torch.evict([tensor]) for tensor in seen] == [4 * NUMBERS] * 3
            assert all(is_all(tensor, value) for value, tensor in enumerate(seen))
    del capsule


def storages_without_operators() -> None:
    """Storages' own methods find the contents, and hold them no longer than they run."""
    with session():
        tensor = away(3)
        storage = tensor.untyped_storage()
        storage[0] = 1
        assert _torch.evict([tensor]) > 0
        assert storage[0] == 1
        tensor = away(3)
        other = away(4)
        other.untyped_storage().copy_(tensor.untyped_storage())
        assert _torch.evict([tensor, other]) == 8 * NUMBERS
        assert is_all(other, 3)
        tensor = away(3)
        tensor.untyped_storage().resize_(8 * NUMBERS)
        assert _torch.evict([tensor]) == 8 * NUMBERS
        assert is_all(tensor, 3)
        tensor = away(3)
        tensor.untyped_storage().resize_(0)
        assert _torch.evict([tensor]) == 0
        tensor.untyped_storage().resize_(4 * NUMBERS)
        tensor.fill_(6)
        assert _torch.evict([tensor]) > 0
        assert is_all(tensor, 6)
        tensor = away(3)
        assert is_all(torch.empty(0, device=DEVICE).set_(tensor.untyped_storage()), 3)
        tensor, other = away(3), away(4)
        torch.utils.swap_tensors(tensor, other)
        assert is_all(tensor, 4)
        assert is_all(other, 3)
        tensor, other = away(3), away(4)
        tensor.data = other
        assert is_all(tensor, 4)


def saving_holds_nothing() -> None:
    with session():
        tensors = [away(value) for value in range(3)]
        file = io.BytesIO()
        torch.save(tensors, file)
        assert _torch.evict(tensors) == 12 * NUMBERS
        file.seek(0)
        for value, (tensor, loaded) in enumerate(zip(tensors, torch.load(file), strict=True)):
            assert is_all(loaded, value)
            assert is_all(tensor, value)


def suspended() -> None:
    """As for a graph, which uses again the addresses of what its operators use."""
    with session():
        tensors = [away(value) for value in range(3)]
        _torch.suspend_device(True)
        assert all(map(_torch.is_resident, tensors))
        captured = tensors[0] + 1
        assert _torch.evict(tensors) == 0
        _torch.suspend_device(False)
        assert _torch.evict([*tensors, captured]) == 8 * NUMBERS
        assert all(is_all(tensor, value) for value, tensor in enumerate([*tensors]))
        assert is_all(captured, 1)


def a_tensor_dies_before_it_is_back() -> None:
    """Its memory is somebody else's at once, and the copy back must not write to it any more."""
    ours, (_, back) = torch.accelerator.current_stream(), streams_of_copies()
    with session():
        tensor = away(3)
        ours.synchronize()
        with held(back):
            _torch.prefetch([tensor])
            assert _torch.is_resident(tensor)
            del tensor
            other = numbers(5)
            event = ours.record_event()
            assert not event.query()
        assert is_all(other, 5)


def a_tensor_leaves_before_it_is_back() -> None:
    ours, (_, back) = torch.accelerator.current_stream(), streams_of_copies()
    with session():
        tensor = away(3)
        ours.synchronize()
        with held(back):
            _torch.prefetch([tensor])
            assert _torch.evict([tensor]) > 0
            other = numbers(5)
        assert is_all(other, 5)
        assert is_all(tensor, 3)


def memory_is_handed_over_in_order() -> None:
    """What comes back into memory that something leaves waits for it; so does what is born there."""
    ours, (out, _) = torch.accelerator.current_stream(), streams_of_copies()
    with session():
        tensor, leaves, born = away(3), numbers(4), numbers(5)
        ours.synchronize()
        with held(out):
            assert _torch.evict([leaves]) > 0
            _torch.prefetch([tensor])
            sums = tensor + 1
            assert _torch.evict([born]) > 0
            new = numbers(6)
        assert is_all(sums, 4)
        assert is_all(leaves, 4)
        assert is_all(born, 5)
        assert is_all(new, 6)


def another_stream_still_reads() -> None:
    ours, other = torch.accelerator.current_stream(), torch.Stream(device=DEVICE)
    with session():
        tensor, result = numbers(3), numbers(0)
        other.wait_stream(ours)
        with held(other):
            with other:
                result.copy_(tensor)
            tensor.mul_(1)
            assert _torch.evict([tensor]) == 0
        assert is_all(tensor, 3)
        ours.wait_stream(other)
        assert is_all(result, 3)


def all_is_back_at_the_end() -> None:
    """And goes on as plainly: nothing of the session's is kept."""
    plain = plainly("mlp-sgd")
    gc.collect()
    torch.accelerator.synchronize()
    torch.empty(1, pin_memory=True)  # PyTorch looks then which copies have ended
    before, pinned = torch.accelerator.memory_allocated(), native.pinned_bytes()
    for end in (nullcontext, partial(pytest.raises, ZeroDivisionError)):
        job = begin("mlp-sgd")
        with end(), ebbtide.Session("50%", policy="demand", **KEPT) as opened:
            losses = train(job, range(4), opened.step)
            weights = [parameter.detach() for parameter in job.net.parameters()]
            assert _torch.evict(weights) > 0
            if end is not nullcontext:
                raise ZeroDivisionError
        assert all(map(_torch.is_resident, weights))
        moved_before = _torch.counters()["evicted_bytes"]
        losses += train(job, range(4, STEPS))
        assert differences(bits(job, losses), plain) == ()
        assert _torch.counters()["evicted_bytes"] == moved_before
        del job, losses, weights, opened
        gc.collect()
        torch.accelerator.synchronize()
        torch.zeros(1, device=DEVICE)
        torch.empty(1, pin_memory=True)
        assert torch.accelerator.memory_allocated() == before
        assert (native.pinned_bytes(), _torch.counters()["tier_bytes"]) == (pinned, (0,))
        assert _torch.counters()["tier_bytes"] == (0,)


def a_storage_that_python_alone_has() -> None:
    with session():
        storage, shared = away(3).untyped_storage(), away(3).untyped_storage()
        native.fill_storage(shared._cdata, 0x41)
        assert shared[4 * NUMBERS - 1] == 0x41
    assert storage.cpu()[3] == 0x40
    assert storage[4 * NUMBERS - 1] == 0x40


def little_host_memory() -> Verdict:
    return within(plainly("mlp-sgd"), "mlp-sgd", fast="50%", policy="demand", host_bytes="64KiB")


def a_full_disk(spill: str) -> Verdict:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    return within(plainly("gpt-adamw"), "gpt-adamw", fast="50%", policy="demand", host_bytes="128KiB", spill=spill)


def a_closed_file(spill: str) -> None:
    """What cannot be read is an error wherever it is used, and what is in memory goes on."""
    with session(host_bytes="64KiB", spill=spill):
        there = numbers(9)
        tensors = [away(value) for value in range(12)]
        assert _torch.counters()["tier_bytes"][1] > 0
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}").startswith(f"{spill}/#"):
                    os.close(number)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"cannot come back: .*closed"):
                tensors[0].add_(1)
        assert is_all(there + 1, 10)


def place_for_all_sizes(spill: str) -> None:
    """Where host memory is full of small copies, a large one has them written, and their memory joined."""
    with session(host_bytes="1MiB", spill=spill):
        small = [away(value) for value in range(60)]
        assert _torch.counters()["tier_bytes"][0] > 800 << 10
        large = [torch.full((NUMBERS * 40,), float(value), device=DEVICE) for value in range(3)]
        assert [_torch.evict([each]) for each in large] == [4 * 40 * NUMBERS] * 3
        assert _torch.counters()["tier_peak_bytes"][0] <= 1 << 20
        assert [is_all(tensor, value) for value, tensor in enumerate(small)] == [True] * 60
        assert [is_all(tensor, value) for value, tensor in enumerate(large)] == [True] * 3
    assert _torch.counters()["tier_bytes"] == (0,)


def a_copy_is_dropped_before_what_it_had_is_back(spill: str) -> None:
    """Host memory is short, so the copy of a tensor that is on its way back is dropped. It leaves again at once."""
    ours, (out, back) = torch.accelerator.current_stream(), streams_of_copies()

    def of(kib: int, value: int) -> Tensor:
        return torch.full((kib * 256,), float(value), device=DEVICE)

    with session(host_bytes="512KiB", spill=spill):
        tensor, other, fill = of(24, 3), of(24, 4), [of(40, 10 + number) for number in range(12)]
        _torch.evict([other, tensor])
        del other
        for _ in range(8):  # these operators notice that
            torch.zeros(1, device=DEVICE)
        ours.synchronize()
        out.synchronize()
        with held_for_a_while(back):
            _torch.prefetch([tensor])
            assert _torch.is_resident(tensor)
            written = _torch.counters()["tier_written_bytes"][0]
            assert _torch.evict(fill[:11]) == 11 * 40 << 10
            assert _torch.evict([tensor]) == 24 << 10
            assert _torch.counters()["tier_written_bytes"][0] == written + (11 * 40 + 24 << 10)  # its copy was dropped
        assert is_all(tensor, 3)
        assert [is_all(each, 10 + number) for number, each in enumerate(fill)] == [True] * 12


def a_session_after_one_that_left_something(spill: str) -> None:
    """More host memory is allowed than before, and other directories are named: both are used."""
    first, second = (os.path.join(spill, name) for name in "ab")
    os.mkdir(first)
    os.mkdir(second)
    with session(host_bytes="64KiB", spill=first):
        left = [away(value) for value in range(8)]
        kept = [tensor.untyped_storage() for tensor in left]
        del left  # Python alone has them, so they stay
        _torch.set_device_limit(1 << 14)  # more is wanted than may be
    assert _torch.counters()["tier_bytes"][0] > 0
    with session(host_bytes="256KiB", spill=second):
        tensors = [away(value) for value in range(40)]
        named = {os.path.dirname(os.readlink(f"/proc/self/fd/{number}")) for number in os.listdir("/proc/self/fd")[:-1]}
        assert {first, second} <= named
        assert [is_all(tensor, value) for value, tensor in enumerate(tensors)] == [True] * 40
    assert [storage.cpu()[4 * NUMBERS - 1] for storage in kept] == [0, *[0x3F] * 1, *[0x40] * 6]


ACTIONS: dict[str, int] = {
    "makes": 5,
    "evicts": 3,
    "fetches": 3,
    "drops": 3,
    "changes": 1,
    "reads": 2,
    "looks": 2,
    "fills without an operator": 1,
    "writes through an address": 1,
    "limits": 1,
}
"""How often each is taken, of all."""


def random_actions(seed: int, spill: str) -> tuple[int, int]:
    """Tensors whose values are known, of widely different sizes, in sessions one after another: how many actions were
    taken, and how many bytes were written to files."""
    chance, actions, written = random.Random(seed), 0, 0
    tensors: list[tuple[Tensor, float]] = []
    names = [name for name, times in ACTIONS.items() for _ in range(times)]

    def some() -> list[Tensor]:
        return [tensor for tensor, _ in chance.sample(tensors, min(len(tensors), chance.randrange(1, 20)))]

    for _ in range(60):
        wishes = {
            "fast": chance.choice(["1200KiB", "1MiB", "4MiB", "1GiB"]),
            "host_bytes": chance.choice([16 << 10, 64 << 10, 100_000, 1 << 20, 3 << 20]),
            "spill": chance.choice([spill, spill, spill, None]),
            "chaos_rate": chance.choice([0, 0.1, 0.4]),
            "chaos_seed": seed,
            "remake": chance.choice(["check", "0"]),
        }
        with session(**wishes):
            for _ in range(chance.randrange(20, 200)):
                actions += 1
                action = chance.choice(names) if tensors else "makes"
                if action == "makes":
                    value = float(chance.randrange(1000))
                    tensors.append((torch.full((int(2 ** chance.uniform(10, 18.5)),), value, device=DEVICE), value))
                    continue
                at = chance.randrange(len(tensors))
                tensor, value = tensors[at]
                if action == "evicts":
                    _torch.evict(some())
                elif action == "fetches":
                    _torch.prefetch(some())
                elif action == "drops":
                    tensors.pop(at)
                elif action == "changes":
                    tensors[at] = tensor.add_(1), value + 1
                elif action == "reads":
                    tensors.append((tensor + 2, value + 2))
                elif action == "looks":
                    assert is_all(tensor, value)
                elif action == "fills without an operator":
                    native.fill(tensor, 0)
                    tensors[at] = tensor, 0.0
                elif action == "writes through an address":
                    native.over(tensor).add_(3)
                    tensors[at] = tensor, value + 3
                else:
                    _torch.set_device_limit(chance.choice([100 << 10, 1 << 20, 8 << 20]))
            counts = _torch.counters()["tier_written_bytes"]
            written += sum(counts[1:])
        assert all(is_all(tensor, value) for tensor, value in tensors)
        tensors = [each for each in tensors if chance.random() < 0.5]
    return actions, written


def pinned_by() -> tuple[list[int], list[int]]:
    """Return how much host memory the training's thread pinned, and others, in large pieces."""
    with ebbtide.Session("1GiB", policy="demand", **KEPT) as opened:
        with opened.step():
            tensors = [numbers(value) for value in range(8)]
            _torch.set_device_limit(4 * 4 * NUMBERS)
        assert [is_all(tensor, value) for value, tensor in enumerate(tensors)] == [True] * 8
        assert _torch.counters()["tier_written_bytes"][0] > 0
    pieces = [(nbytes, thread) for nbytes, thread in native.pinned_by() if nbytes >= 64 << 20]
    ours = threading.get_native_id()
    return tuple([nbytes for nbytes, by in pieces if (by == ours) == mine] for mine in (True, False))


def less_than_an_operator_needs() -> Verdict:
    return within(plainly("mlp-sgd"), "mlp-sgd", fast="5%", policy="demand")


def is_out_of_memory() -> None:
    """Where the device itself has no memory left, an operator fails with a sentence, and what follows goes well."""
    with session():
        tensors = [away(value) for value in range(8)]
        for limit in (1, 1 << 30):  # what they had goes back to PyTorch
            _torch.set_device_limit(limit)
        torch.accelerator.empty_cache()
        native.set_capacity(torch.accelerator.memory_reserved() + 8 * NUMBERS)
        kept = [tensor.add_(0) for tensor in tensors[:2]]
        _torch.pin_on_device(kept[0])
        _torch.pin_on_device(kept[1])
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of memory"):
                tensors[2].add_(1)
        native.set_capacity(1 << 30)
        assert [is_all(tensor, value) for value, tensor in enumerate(tensors)] == [True] * 8
        assert _torch.evict(tensors[2:]) == 6 * 4 * NUMBERS


def fits_by_moving() -> tuple[str, ...]:
    """On a device that has not the memory to train plainly."""
    plain = plainly("own-functions")
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    native.set_capacity(torch.accelerator.memory_reserved() + (7 << 19))
    with pytest.raises(torch.OutOfMemoryError):
        plainly("own-functions")
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    job = begin("own-functions")
    with ebbtide.Session("3MiB", policy="demand", **KEPT) as opened:
        losses = train(job, range(STEPS), opened.step)
        assert opened.report().steps[-1].fetched_bytes.total > 0
        ours = bits(job, losses)
        native.set_capacity(1 << 30)
    return differences(ours, plain)


def threads_train() -> None:
    """Two models at once, one of them in steps, while a third thread makes and drops tensors."""
    names = ("mlp-sgd", "own-functions")
    plain = [plainly(name) for name in names]
    jobs = [begin(name) for name in names]
    ends = threading.Event()
    faults = []

    def makes() -> None:
        while not ends.is_set():
            made = [moved(batch(number)) for number in range(3)]
            faults.extend(
                number for number, (rows, _) in enumerate(made) if not torch.equal(rows.cpu(), batch(number)[0])
            )

    with (
        ebbtide.Session("1MiB", policy="demand", chaos_rate=0.2, chaos_seed=9, **KEPT) as opened,
        ThreadPoolExecutor(2) as pool,
    ):
        making = pool.submit(makes)
        second = pool.submit(train, jobs[1], range(STEPS))
        try:
            first = train(jobs[0], range(STEPS), opened.step)
        finally:
            ends.set()
        making.result()
        losses = [first, second.result()]
        assert all(sum(_torch.counters()[way]) > 0 for way in ("evicted_bytes", "fetched_bytes"))
    assert faults == []
    for job, its_losses, its_plain in zip(jobs, losses, plain, strict=True):
        assert differences(bits(job, its_losses), its_plain) == ()
