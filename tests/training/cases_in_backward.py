"""What test_in_backward.py runs in child processes: updates in the backward pass, against plain PyTorch.

A scenario is a function of a model, its optimizer and the number of the step, which makes one step of training. It is
trained plainly and in a session that updates in backward, both from the same seeds; a scenario that an early update
does not allow is one from its first step on (it is left as written), or from ``LATER`` on (an error).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ebbtide
from ebbtide.errors import OrderError

WIDTH = 192
STEPS = 6
LATER = 3
"""A step in which updates are early, if they ever are."""


class Net(nn.Module):
    """Five layers, the fourth is the second once more, behind a normalization; the embedding is tied to the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, tokens: Tensor, beside: bool = False) -> Tensor:
        x = self.embedding(tokens)
        for number in (0, 1, 2, 1, 3):
            x = F.gelu(self.layers[number](self.norm(x)))
        x = self.frozen(x)
        if beside:
            x = x + self.unused(x)
        return F.linear(x, self.embedding.weight)


def tokens(step: int) -> Tensor:
    return torch.randint(WIDTH, (64,), generator=torch.Generator().manual_seed(step))


def loss_of(net: nn.Module, step: int, **how: Any) -> Tensor:
    return F.cross_entropy(net(tokens(step), **how), tokens(step + 100))


def plain_step(net: nn.Module, optimizer: optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    loss_of(net, step).backward()
    optimizer.step()


@dataclass
class Training:
    """A net and its optimizer, from a seed."""

    make: Callable[[nn.Module], Any]
    net: nn.Module = field(init=False)
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer = self.make(self.net)

    def bits(self) -> dict[str, bytes]:
        """Of parameters and of the optimizer's state, as plain bytes, which no session manages."""
        named = {f"parameter {name}": value for name, value in self.net.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            kept = {name: value for name, value in state.items() if isinstance(value, Tensor | float | int)}
            named |= {f"state {index} {name}": torch.as_tensor(value) for name, value in kept.items()}
        return {name: value.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for name, value in named.items()}


def adamw(net: nn.Module) -> optim.Optimizer:
    return optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)


def train(step: Callable[..., None], make: Callable[[nn.Module], Any], steps: int = STEPS) -> Training:
    training = Training(make)
    for number in range(steps):
        step(training.net, training.optimizer, number)
    return training


@contextmanager
def session() -> Iterator[ebbtide.Session]:
    with ebbtide.Session(fast="50%", optimizer="in-backward", policy="demand", min_storage_bytes=4096) as ours:
        yield ours


def compare(step: Callable[..., None], make: Callable[[nn.Module], Any] = adamw) -> ebbtide.RunReport:
    """The report of a session that ended with the bits of a plain run, in which bytes moved."""
    plain = train(step, make).bits()
    with session() as ours:
        bits = train(step, make).bits()
    assert [name for name in plain if plain[name] != bits.get(name)] == []
    assert plain.keys() == bits.keys()
    report = ours.report()
    bounded = [step for step in report.steps if step.mode != "recorded"]
    assert sum(step.evicted_bytes.total for step in bounded) > 0
    assert sum(step.fetched_bytes.total for step in bounded) > 0
    return report


def gradient_bytes(report: ebbtide.RunReport) -> int:
    """That came back from the disk."""
    return sum(step.fetched_bytes.gradient for step in report.steps)


def early(step: Callable[..., None], make: Callable[[nn.Module], Any] = adamw) -> None:
    report = compare(step, make)
    assert all("as soon as its gradient is complete" in told for told in report.updates), report.updates
    assert report.updates
    assert gradient_bytes(report) <= STEPS * WIDTH * WIDTH * 4  # without a plan one may leave before its update


# ---- every optimizer ----------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "ASGD": (optim.ASGD, {"lr": 1e-2}),
    "Adadelta": (optim.Adadelta, {"lr": 0.5}),
    "Adafactor": (optim.Adafactor, {"lr": 1e-2}),
    "Adagrad": (optim.Adagrad, {"lr": 1e-2}),
    "Adam": (optim.Adam, {"lr": 1e-2, "weight_decay": 0.01}),
    "AdamW": (optim.AdamW, {"lr": 1e-2}),
    "AdamW-amsgrad": (optim.AdamW, {"lr": 1e-2, "amsgrad": True, "maximize": True}),
    "Adamax": (optim.Adamax, {"lr": 1e-2}),
    "Muon": (optim.Muon, {"lr": 1e-2}),
    "NAdam": (optim.NAdam, {"lr": 1e-2}),
    "RAdam": (optim.RAdam, {"lr": 1e-2}),
    "RMSprop": (optim.RMSprop, {"lr": 1e-3, "momentum": 0.9, "centered": True}),
    "Rprop": (optim.Rprop, {"lr": 1e-3}),
    "SGD": (optim.SGD, {"lr": 1e-2, "momentum": 0.0}),
    "SGD-momentum": (optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    "SGD-nesterov": (optim.SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "AdamW-tensor-lr": (optim.AdamW, {"lr": "tensor"}),
}
FUSED = ("Adam", "AdamW", "AdamW-amsgrad", "SGD", "SGD-momentum", "SGD-nesterov", "Adagrad")
WITHOUT_LARGE_STATE = ("SGD", "Adafactor")


def optimizer_in_groups(name: str, variant: str) -> Callable[[nn.Module], optim.Optimizer]:
    kind, settings = OPTIMIZERS[name]
    flavour = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}.get(variant, {})

    def make(net: nn.Module) -> optim.Optimizer:
        thawed = [p for p in net.parameters() if p.requires_grad and (name != "Muon" or p.ndim == 2)]
        lr = settings["lr"]
        rates = [torch.tensor(1e-2), torch.tensor(2e-3)] if lr == "tensor" else [lr, lr / 5]
        rest = {key: value for key, value in settings.items() if key != "lr"}
        groups = [{"params": thawed[:5], "lr": rates[0]}, {"params": thawed[5:], "lr": rates[1]}]
        return kind(groups, **rest, **flavour)  # type: ignore[call-arg]

    return make


def every_optimizer(name: str) -> list[str]:
    """With a scheduler that steps after each step, and parameters that are not used in each; the variants tried."""
    variants = ["only"] if name == "Muon" else ["loop", "foreach", *(["fused"] if name in FUSED else [])]
    if name == "AdamW-tensor-lr":
        variants = ["loop", "fused"]  # foreach takes none
    for variant in variants:
        schedulers: dict[int, optim.lr_scheduler.LRScheduler] = {}
        sometimes = not (name.startswith("SGD-") and variant == "fused")  # PyTorch's own wants all buffers or none

        def step(
            net: nn.Module,
            optimizer: Any,
            number: int,
            schedulers: dict[int, Any] = schedulers,
            sometimes: bool = sometimes,
        ) -> None:
            if number == 0:
                schedulers[id(optimizer)] = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            optimizer.zero_grad()
            loss_of(net, number, beside=sometimes and number % 2 == 1).backward()
            optimizer.step()
            schedulers[id(optimizer)].step()

        if name in WITHOUT_LARGE_STATE:
            stateless(step, optimizer_in_groups(name, variant))
        else:
            early(step, optimizer_in_groups(name, variant))
    return variants


def stateless(step: Callable[..., None], make: Callable[[nn.Module], Any]) -> None:
    """Where what the optimizer keeps is too small to be moved."""
    plain = train(step, make).bits()
    with session() as ours:
        assert train(step, make).bits() == plain
    assert sum(step.fetched_bytes.total for step in ours.report().steps) > 0
    assert gradient_bytes(ours.report()) == 0


# ---- other ways to train that work --------------------------------------------------------------------------------


def checkpointed(use_reentrant: bool) -> None:
    """The forward pass is made again in the backward pass, from parameters that have not been updated yet."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        x = net.embedding(tokens(number))
        for part in (net.layers[0], net.layers[2], net.layers[3]):
            x = checkpoint(lambda x, part=part: F.gelu(part(x)), x, use_reentrant=use_reentrant)
        F.cross_entropy(x, tokens(number + 100)).backward()
        optimizer.step()

    early(step)


def autocast_around_all_but_step() -> None:
    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss_of(net, number).backward()
        optimizer.step()

    early(step)


def gradients_of_inputs() -> None:
    """``torch.autograd.grad`` makes no gradient of a parameter's; a parameter thaws, another freezes, one is added."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        if number == 3:
            net.layers[3].requires_grad_(False)
            net.unused.requires_grad_(True)
        if number == 4:
            net.frozen.requires_grad_(True)
            optimizer.add_param_group({"params": list(net.frozen.parameters()), "lr": 1e-3})
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number)).requires_grad_()
        (slope,) = torch.autograd.grad(net.layers[0](x).square().sum(), x)
        optimizer.zero_grad()
        (loss_of(net, number, beside=number >= 3) + slope.mean()).backward()
        optimizer.step()

    def make(net: Any) -> optim.Optimizer:
        net.unused.requires_grad_(False)
        return optim.AdamW([*net.embedding.parameters(), *net.layers.parameters(), *net.unused.parameters()], lr=1e-2)

    early(step, make)


def a_batch_that_is_skipped() -> None:
    """Before its backward pass."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        loss = loss_of(net, number)
        if number == 4:
            return
        loss.backward()
        optimizer.step()

    early(step)


def moved_to_where_it_is() -> None:
    """As scripts do before they save, with gradients that are gone."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        net.to("cpu").to(torch.float32).requires_grad_(True)
        net.frozen.requires_grad_(False)

    early(step)


class Both:
    """Two optimizers as one object."""

    def __init__(self, *all_of: optim.Optimizer) -> None:
        self.all_of = all_of

    def state_dict(self) -> dict[str, Any]:
        states = (each.state_dict()["state"] for each in self.all_of)
        return {"state": {f"{a} {b}": value for a, state in enumerate(states) for b, value in state.items()}}


def two_optimizers() -> None:
    """Of one loss, as Muon and AdamW are used."""

    def step(net: Any, both: Both, number: int) -> None:
        for optimizer in both.all_of:
            optimizer.zero_grad()
        loss_of(net, number).backward()
        for optimizer in both.all_of:
            optimizer.step()

    def make(net: Any) -> Both:
        matrices = [p for p in net.layers.parameters() if p.ndim == 2]
        rest = [p for p in (*net.layers.parameters(), *net.norm.parameters()) if p.ndim != 2]
        return Both(optim.Muon(matrices, lr=1e-2), optim.AdamW([*rest, net.embedding.weight], lr=1e-2))

    early(step, make)


def a_gan() -> tuple[str, ...]:
    """The generator is updated in backward; the discriminator, whose gradients the generator's pass adds to, is not."""

    def step(net: Any, both: Both, number: int) -> None:
        generator, discriminator = both.all_of
        noise = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(number))
        fake = net.layers[1](F.gelu(net.layers[0](noise)))
        discriminator.zero_grad()
        net.layers[3](F.gelu(net.layers[2](fake.detach()))).square().mean().backward()
        net.layers[3](F.gelu(net.layers[2](noise))).mean().backward()
        discriminator.step()
        generator.zero_grad()
        (-net.layers[3](F.gelu(net.layers[2](fake))).square().mean()).backward()
        generator.step()

    def make(net: Any) -> Both:
        pairs = (net.layers[:2], net.layers[2:])
        return Both(*(optim.AdamW(pair.parameters(), lr=1e-3) for pair in pairs))

    return compare(step, make).updates


def built_before_the_session(folder: str) -> None:
    """Also planned, with what the trace of the step says of its order."""
    path = f"{folder}/step.trace"
    plain = train(plain_step, adamw, STEPS + 3).bits()
    training = Training(adamw)
    plain_step(training.net, training.optimizer, 0)
    with ebbtide.Session(fast="50%", optimizer="in-backward", min_storage_bytes=4096, save_trace=path) as ours:
        for number in range(1, STEPS + 3):
            with ours.step():
                plain_step(training.net, training.optimizer, number)
        bits = training.bits()
    assert bits == plain
    report = ours.report()
    assert [step.mode for step in report.steps].count("planned") >= 3
    assert gradient_bytes(report) == 0
    assert sum(step.fetched_bytes.optimizer_state for step in report.steps) > 0
    phases = [tick.phase for tick in ebbtide.load(path).ticks]
    first, last = phases.index("optimizer"), len(phases) - phases[::-1].index("optimizer")
    assert phases.count("optimizer") > 10
    assert "backward" in phases[first:last]
    kinds = {storage.kind for storage in ebbtide.load(path).storages}
    assert {"parameter", "gradient", "optimizer_state", "activation"} <= kinds


# ---- left as written ----------------------------------------------------------------------------------------------


def accumulates(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    loss_of(net, number + 50).backward()
    optimizer.step()


def clips(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()


def reads_gradients(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    [p.grad for p in net.parameters()]
    optimizer.step()


def reads_parameters(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    net.norm.weight.detach().sum()
    optimizer.step()


def reads_state(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    for state in optimizer.state.values():
        state["exp_avg"].sum()
    optimizer.step()


def scales(net: Any, optimizer: Any, number: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    optimizer.zero_grad()
    scaler.scale(loss_of(net, number)).backward()
    scaler.step(optimizer)
    scaler.update()


def schedules_before_step(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    optimizer.param_groups[0]["lr"] *= 0.5
    optimizer.step()


def loads_before_step(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()


def keeps_gradients(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad(set_to_none=False)
    loss_of(net, number).backward()
    optimizer.step()


def gives_a_closure(net: Any, optimizer: Any, number: int) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, number)
        loss.backward()
        return loss

    optimizer.step(closure)


def steps_under_autocast(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss_of(net, number).backward()
        optimizer.step()


def differentiates_gradients(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward(create_graph=True)
    optimizer.step()


def steps_compiled(net: Any, optimizer: Any, number: int) -> None:
    if not hasattr(optimizer, "compiled"):
        optimizer.compiled = torch.compile(optimizer.step, backend="eager")
    optimizer.zero_grad()
    loss_of(net, number).backward()
    optimizer.compiled()


def checkpoints_tied_layers(net: Any, optimizer: Any, number: int) -> None:
    """Each of its two backward passes within the backward pass completes the layer's gradient."""
    optimizer.zero_grad()
    x = net.embedding(tokens(number))
    for part in (net.layers[1], net.layers[2], net.layers[1]):
        x = checkpoint(lambda x, part=part: F.gelu(part(x)), x, use_reentrant=True)
    F.cross_entropy(x, tokens(number + 100)).backward()
    optimizer.step()


def steps_twice(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    optimizer.step()
    optimizer.step()


def with_a_hook_of_step(net: Any) -> optim.Optimizer:
    optimizer = adamw(net)
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


def halve(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


def with_a_hook_of_a_gradient(net: Any) -> optim.Optimizer:
    net.layers[2].weight.register_post_accumulate_grad_hook(halve)
    return adamw(net)


def with_sparse_gradients(net: Any) -> optim.Optimizer:
    net.embedding = nn.Embedding(WIDTH, WIDTH, sparse=True)
    return optim.Adagrad([p for p in net.parameters() if p.requires_grad], lr=1e-2)


def embeds(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    x = net.embedding(tokens(number))
    for layer in net.layers:
        x = F.gelu(layer(x))
    F.cross_entropy(x, tokens(number + 100)).backward()
    optimizer.step()


class Own(optim.AdamW):
    """Not one of torch.optim."""


def of_its_own(net: Any) -> optim.Optimizer:
    return Own([p for p in net.parameters() if p.requires_grad], lr=1e-2)


def lbfgs(net: Any) -> optim.Optimizer:
    return optim.LBFGS([p for p in net.parameters() if p.requires_grad], lr=1e-2, max_iter=2)


def two_of_the_same(net: Any) -> Both:
    thawed = [p for p in net.parameters() if p.requires_grad]
    return Both(optim.AdamW(thawed, lr=1e-2), optim.AdamW(thawed, lr=1e-2))


def both_step(net: Any, both: Both, number: int) -> None:
    both.all_of[0].zero_grad()
    loss_of(net, number).backward()
    for optimizer in both.all_of:
        optimizer.step()


def sharing_memory(net: Any) -> optim.Optimizer:
    net.layers[2].weight.data = net.layers[0].weight.data
    return adamw(net)


def steps_in_inference_mode(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    with torch.inference_mode():
        optimizer.step()


REFUSALS: dict[str, tuple[Callable[..., None], Callable[[nn.Module], Any]]] = {
    "accumulates": (accumulates, adamw),
    "clips": (clips, adamw),
    "reads_gradients": (reads_gradients, adamw),
    "reads_parameters": (reads_parameters, adamw),
    "scales": (scales, adamw),
    "schedules_before_step": (schedules_before_step, adamw),
    "loads_before_step": (loads_before_step, adamw),
    "keeps_gradients": (keeps_gradients, adamw),
    "gives_a_closure": (gives_a_closure, adamw),
    "steps_under_autocast": (steps_under_autocast, adamw),
    "differentiates_gradients": (differentiates_gradients, adamw),
    "steps_compiled": (steps_compiled, adamw),
    "checkpoints_tied_layers": (checkpoints_tied_layers, adamw),
    "steps_twice": (steps_twice, adamw),
    "with_a_hook_of_step": (plain_step, with_a_hook_of_step),
    "with_a_hook_of_a_gradient": (plain_step, with_a_hook_of_a_gradient),
    "with_sparse_gradients": (embeds, with_sparse_gradients),
    "of_its_own": (plain_step, of_its_own),
    "lbfgs": (gives_a_closure, lbfgs),
    "two_of_the_same": (both_step, two_of_the_same),
    "sharing_memory": (plain_step, sharing_memory),
    "steps_in_inference_mode": (steps_in_inference_mode, adamw),
}


def refused(name: str) -> tuple[str, ...]:
    """What the report says of the optimizers; the bits are plain PyTorch's, and gradients stay where they were."""
    step, make = REFUSALS[name]
    return compare(step, make).updates


# ---- errors -------------------------------------------------------------------------------------------------------


def evaluates_before_step(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    with torch.no_grad():
        loss_of(net, number)
    optimizer.step()


def saves_before_step(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    net.state_dict()
    optimizer.step()


def skips_after_backward(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    optimizer.zero_grad()


def reads_the_norm_after_step(net: Any, optimizer: Any, number: int) -> None:
    plain_step(net, optimizer, number)
    net.norm.weight.grad.norm()


def sums_two_losses(net: Any, optimizer: Any, number: int) -> None:
    """With one forward pass."""
    optimizer.zero_grad()
    logits = net(tokens(number))
    F.cross_entropy(logits, tokens(number + 100)).backward(retain_graph=True)
    logits.square().mean().backward()
    optimizer.step()


def never_zeroes(net: Any, optimizer: Any, number: int) -> None:
    loss_of(net, number).backward()
    optimizer.step()


def hooks_late(net: Any, optimizer: Any, number: int) -> None:
    net.norm.weight.register_post_accumulate_grad_hook(lambda p: None)
    plain_step(net, optimizer, number)


def changes_a_parameter(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    with torch.no_grad():
        net.norm.weight.mul_(0.9)
    optimizer.step()


def changes_data(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    net.norm.weight.data.mul_(0.9)
    optimizer.step()


def reads_through_a_view(net: Any, optimizer: Any, number: int) -> None:
    view = net.norm.weight.detach()[:4]
    optimizer.zero_grad()
    loss_of(net, number).backward()
    view.sum()
    optimizer.step()


def replaces_state(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    optimizer.state.clear()
    optimizer.step()


def replaces_state_of_one(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    optimizer.state[net.norm.weight]["exp_avg"] = torch.zeros(WIDTH)
    optimizer.step()


def swallows_what_clipping_says(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    with suppress(Exception):
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()


class Stop(Exception):
    """The script's own."""


def raises_in_backward(net: Any, optimizer: Any, number: int) -> None:
    """And goes on, as a script does that skips what fails."""

    def stop(_: Tensor) -> None:
        raise Stop

    optimizer.zero_grad()
    x = net.embedding(tokens(number))
    x.register_hook(stop)
    loss = F.cross_entropy(net.layers[1](net.layers[0](x)), tokens(number + 100))
    try:
        loss.backward()
    except Stop:
        net.state_dict()


ERRORS: dict[str, Callable[..., None]] = {
    "accumulates": accumulates,
    "clips": clips,
    "reads_parameters": reads_parameters,
    "reads_state": reads_state,
    "scales": scales,
    "schedules_before_step": schedules_before_step,
    "loads_before_step": loads_before_step,
    "keeps_gradients": keeps_gradients,
    "gives_a_closure": gives_a_closure,
    "steps_under_autocast": steps_under_autocast,
    "differentiates_gradients": differentiates_gradients,
    "checkpoints_tied_layers": checkpoints_tied_layers,
    "steps_twice": steps_twice,
    "evaluates_before_step": evaluates_before_step,
    "saves_before_step": saves_before_step,
    "skips_after_backward": skips_after_backward,
    "reads_the_norm_after_step": reads_the_norm_after_step,
    "sums_two_losses": sums_two_losses,
    "never_zeroes": never_zeroes,
    "hooks_late": hooks_late,
    "changes_a_parameter": changes_a_parameter,
    "changes_data": changes_data,
    "reads_through_a_view": reads_through_a_view,
    "raises_in_backward": raises_in_backward,
    "replaces_state": replaces_state,
    "replaces_state_of_one": replaces_state_of_one,
    "swallows_what_clipping_says": swallows_what_clipping_says,
}


def error(name: str) -> tuple[str, int]:
    """What is said when a script does this for the first time in step ``LATER``, and after it the number of steps that
    it can still make."""
    with session():
        training = train(plain_step, adamw, LATER)
        try:
            ERRORS[name](training.net, training.optimizer, LATER)
            if name == "never_zeroes":
                ERRORS[name](training.net, training.optimizer, LATER + 1)
        except OrderError as refused:
            said = str(refused)
        else:
            return "nothing", 0
        made = 0
        try:
            for number in range(LATER, LATER + 2):
                plain_step(training.net, training.optimizer, number)
                made += 1
        except OrderError:
            pass
    return said, made
