"""What trains in the tests of the tests' device: jobs, which run plainly and in sessions.

Nothing here looks at a loss before the end, so that the host is ahead of the streams, as it is with a GPU.
"""

import gc
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

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

DEVICE = lagging.DEVICE
STEPS = 6  # two recorded, then four bounded
WIDTH, CLASSES, ROWS = 64, 64, 128
KEPT = {"device": DEVICE, "min_storage_bytes": 4096, "host_bytes": "256MiB", "progress": "off", "wait_for_plan": True}

Batch = tuple[Tensor, ...]
Make = Callable[[Iterable[nn.Parameter]], optim.Optimizer]


def batch(number: int, *shape: int) -> Batch:
    chance = torch.Generator().manual_seed(number)
    rows = torch.randn(*(shape or (ROWS, WIDTH)), generator=chance)
    return rows, torch.randint(CLASSES, (rows.shape[0],), generator=chance)


def moved(tensors: Iterable[Tensor], device: str = DEVICE) -> Batch:
    return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)


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
    device: str = DEVICE
    optimizer: optim.Optimizer = field(init=False)
    also: dict[str, Tensor] = field(default_factory=dict)  # what else must have the same bits
    handles: list[Any] = field(default_factory=list)  # of hooks, which would keep the job alive

    def __post_init__(self) -> None:
        self.net.to(self.device)
        if isinstance(self.net, GPT2LMHeadModel):
            self.net.tie_weights()  # on a backend of others, `to` makes new parameters
        self.optimizer = self.make([p for p in self.net.parameters() if p.requires_grad])

    def batch(self, number: int) -> Batch:
        return moved(batch(number), self.device)

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
        return moved([torch.randint(128, (4, self.length(number)), generator=chance)], self.device)

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
        return moved(batch(number, 4, 8, 8, 8), self.device)


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
