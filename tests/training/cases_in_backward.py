"""What test_in_backward.py runs in child processes: updates in the backward pass, against plain PyTorch.

A scenario is a function of a model, its optimizer and the number of the step, which makes one step of training. It is
trained plainly and in a session that updates in backward, both from the same seeds. Scenarios that an early update does
not allow are in cases_in_backward_refused.py.
"""

import gc
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

import ebbtide

WIDTH = 192
STEPS = 6


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
    kind: Callable[[], nn.Module] = Net
    net: nn.Module = field(init=False)
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.net = self.kind()
        self.optimizer = self.make(self.net)

    def bits(self) -> dict[str, bytes]:
        """Of parameters, of the optimizer's state and of its order, as plain bytes, which no session manages."""
        named = {f"parameter {name}": value for name, value in self.net.state_dict().items()}
        states = self.optimizer.state_dict()["state"]
        named["order of states"] = torch.tensor([*repr([*states]).encode()])
        for index, state in states.items():
            if not isinstance(state, dict):
                continue
            kept = {name: value for name, value in state.items() if isinstance(value, Tensor | float | int)}
            named |= {f"state {index} {name}": torch.as_tensor(value) for name, value in kept.items()}
        return {name: value.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for name, value in named.items()}


def adamw(net: nn.Module) -> optim.Optimizer:
    return optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)


def train(
    step: Callable[..., None],
    make: Callable[[nn.Module], Any],
    steps: int = STEPS,
    kind: Callable[[], nn.Module] = Net,
) -> Training:
    training = Training(make, kind)
    for number in range(steps):
        step(training.net, training.optimizer, number)
    return training


@contextmanager
def session() -> Iterator[ebbtide.Session]:
    with ebbtide.Session(fast="50%", optimizer="in-backward", policy="demand", min_storage_bytes=4096) as ours:
        yield ours


def compare(
    step: Callable[..., None],
    make: Callable[[nn.Module], Any] = adamw,
    steps: int = STEPS,
    begin: Callable[[], AbstractContextManager[ebbtide.Session]] = session,
) -> ebbtide.RunReport:
    """The report of a session that ended with the bits of a plain run, in which bytes moved."""
    plain = train(step, make, steps).bits()
    with begin() as ours:
        bits = train(step, make, steps).bits()
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


def variants_of(name: str) -> list[str]:
    if name == "AdamW-tensor-lr":
        return ["loop", "fused"]  # foreach takes none
    return ["only"] if name == "Muon" else ["loop", "foreach", *(["fused"] if name in FUSED else [])]


def every_optimizer(name: str) -> list[str]:
    """With a scheduler that steps after each step, and parameters that are not used in each; the variants tried."""
    for variant in variants_of(name):
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
    return variants_of(name)


def stateless(step: Callable[..., None], make: Callable[[nn.Module], Any]) -> None:
    """Where what the optimizer keeps is too small to be moved."""
    plain = train(step, make).bits()
    with session() as ours:
        assert train(step, make).bits() == plain
    assert sum(step.fetched_bytes.total for step in ours.report().steps) > 0
    assert gradient_bytes(ours.report()) == 0


# ---- other ways to train that work --------------------------------------------------------------------------------


def checkpointed_step(layers: Sequence[int], use_reentrant: bool) -> Callable[..., None]:
    """A step whose forward pass through these layers is made again in the backward pass."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        x = net.embedding(tokens(number))
        for part in (net.layers[layer] for layer in layers):
            x = checkpoint(lambda x, part=part: F.gelu(part(x)), x, use_reentrant=use_reentrant)
        F.cross_entropy(x, tokens(number + 100)).backward()
        optimizer.step()

    return step


def checkpointed(use_reentrant: bool) -> None:
    """From parameters that have not been updated yet."""
    early(checkpointed_step((0, 2, 3), use_reentrant))


def autocast_around_all_but_step() -> None:
    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss_of(net, number).backward()
        optimizer.step()

    early(step)


def autocast_without_a_context() -> None:
    """Its cache of casts outlives the pass: a context that ends would clear it, and the next step casts anew."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        torch.set_autocast_enabled("cpu", True)
        (loss_of(net, number) + loss_of(net, number + 50)).backward()
        torch.set_autocast_enabled("cpu", False)
        optimizer.step()

    early(step)


def compiled_after_step() -> None:
    """A compiler describes gradients of the parameters that it sees, and reads none."""
    compiled: dict[int, Callable[[Tensor], Tensor]] = {}

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        evaluate = compiled.setdefault(id(net), torch.compile(net, backend="aot_eager"))
        with torch.no_grad():
            evaluate(tokens(number))

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


def sparse_gradients() -> None:
    """Which ``step`` uses as ever."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        x = net.embedding(tokens(number))
        for layer in net.layers:
            x = F.gelu(layer(x))
        F.cross_entropy(x, tokens(number + 100)).backward()
        optimizer.step()

    def make(net: Any) -> optim.Optimizer:
        net.embedding = nn.Embedding(WIDTH, WIDTH, sparse=True)
        return optim.Adagrad([p for p in net.parameters() if p.requires_grad], lr=1e-2)

    early(step, make)


def gradients_of_gradients() -> None:
    """In every second step."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        loss_of(net, number).backward(create_graph=number % 2 == 1)
        optimizer.step()

    early(step)


def an_array_of_a_parameter() -> None:
    """It shows what the parameter is before step, and after it."""
    arrays: dict[int, Any] = {}

    def step(net: Any, optimizer: Any, number: int) -> None:
        array = arrays.setdefault(id(net), net.layers[1].weight.detach().numpy())
        optimizer.zero_grad()
        loss_of(net, number).backward()
        before = float(array.sum())
        optimizer.step()
        with torch.no_grad():
            net.frozen.bias.fill_(before - float(array.sum()))

    early(step)


def small_parameters_that_are_read() -> None:
    """Before step, which updates them."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        loss_of(net, number).backward()
        nn.utils.clip_grad_norm_(net.norm.parameters(), 0.1)
        seen = net.norm.weight.detach().sum()
        optimizer.step()
        with torch.no_grad():
            net.frozen.bias.fill_(seen)

    early(step)


def within(mode: Callable[[], Any]) -> Callable[..., None]:
    """A step whose backward pass alone runs in a mode."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        loss = loss_of(net, number)
        with mode() if number % 2 else nullcontext():
            loss.backward()
        optimizer.step()

    return step


class Rounded(TorchDispatchMode):
    """What operators make is rounded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        is_new = isinstance(made, Tensor) and made.dtype == torch.float32 and not func._schema.is_mutable
        return made.bfloat16().float() if is_new and not made._is_view() else made


def a_mode_around_the_backward_pass() -> None:
    early(within(Rounded))


def an_operator_under_way_on_another_thread() -> None:
    """It begins before the backward pass, and reads a parameter after that, before step."""
    began, passed = threading.Event(), threading.Event()

    def summed(weights: Tensor) -> Tensor:
        began.set()
        assert passed.wait(60)
        return weights.sum()

    slowly = torch.library.custom_op("tests::summed_slowly", summed, mutates_args=())

    def step(net: Any, optimizer: Any, number: int) -> None:
        if number < 4:
            plain_step(net, optimizer, number)
            return
        optimizer.zero_grad()
        loss = loss_of(net, number)
        began.clear(), passed.clear()
        read: list[Tensor] = []
        thread = threading.Thread(target=lambda: read.append(slowly(net.layers[3].weight.detach())))
        thread.start()
        assert began.wait(60)
        loss.backward()
        passed.set(), thread.join()
        optimizer.step()
        with torch.no_grad():
            net.frozen.bias.fill_(read[0])

    early(step)


def another_steps_in_a_hook() -> None:
    """One optimizer steps within the backward pass, in which another's gradients are not complete yet."""

    def step(net: Any, both: Any, number: int) -> None:
        for optimizer in both.all_of:
            optimizer.zero_grad()
        hook = net.layers[0].register_full_backward_hook(lambda *_: both.all_of[1].step())
        x = net.embedding(tokens(number))
        for layer in net.layers:
            x = F.gelu(layer(x))
        F.cross_entropy(x, tokens(number + 100)).backward()
        hook.remove()
        both.all_of[0].step()

    def make(net: Any) -> Both:
        first = [*net.embedding.parameters(), *net.layers[:2].parameters()]
        return Both(optim.AdamW(first, lr=1e-2), optim.AdamW(net.layers[2:].parameters(), lr=1e-2))

    early(step, make)


def a_rate_that_is_another_for_a_while() -> None:
    """The script's step reads the rate once the backward pass has ended."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        group = optimizer.param_groups[0]
        rate = group["lr"]
        hooks = [
            net.layers[2].register_full_backward_hook(lambda *_: group.update(lr=10 * rate)),
            net.layers[0].register_full_backward_hook(lambda *_: group.update(lr=rate)),
        ]
        x = net.embedding(tokens(number))
        for layer in net.layers:
            x = F.gelu(layer(x))
        F.cross_entropy(x, tokens(number + 100)).backward()
        for hook in hooks:
            hook.remove()
        optimizer.step()

    early(step)


def hooks_take_no_numbers() -> None:
    """PyTorch numbers hooks as they come, and a pickled net has the numbers of its own."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        before = RemovableHandle.next_id
        plain_step(net, optimizer, number)
        assert RemovableHandle.next_id == before

    early(step)


def tensors_of_the_scripts_in_a_group() -> None:
    """They are no settings of the optimizer's, and may be of any kind."""

    def make(net: nn.Module) -> optim.Optimizer:
        optimizer: optim.Optimizer = adamw(net)
        with torch.inference_mode():
            optimizer.param_groups[0]["mine"] = torch.ones(1)
        optimizer.param_groups[0]["sizes"] = torch.empty(1, device="meta")
        return optimizer

    early(plain_step, make)


class Keeps(optim.SGD):
    """It keeps its state in a list."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.state = [torch.zeros(WIDTH, WIDTH)]  # type: ignore[assignment]


def beside_an_optimizer_of_the_scripts_own() -> None:
    def step(net: Any, optimizer: Any, number: int) -> None:
        net.own = getattr(net, "own", None) or Keeps(net.frozen.parameters())
        plain_step(net, optimizer, number)
        net.own.step()

    compare(step)


def a_hook_that_comes_late(of_step: bool) -> tuple[str, ...]:
    """When nothing is due, it ends early updates, and no training."""

    def halve(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    def step(net: Any, optimizer: Any, number: int) -> None:
        if number == 4 and of_step:
            optimizer.register_step_post_hook(lambda *_: None)
        elif number == 4:
            net.layers[2].weight.register_post_accumulate_grad_hook(halve)
        plain_step(net, optimizer, number)

    return compare(step).updates


def nets_that_are_left_before_their_step() -> None:
    """Their memory is the next net's."""

    def all_of_them() -> list[dict[str, bytes]]:
        found = []
        for last in (4, 3, 5):
            training = train(plain_step, adamw, last)
            training.optimizer.zero_grad()
            loss_of(training.net, last).backward()
            del training
            gc.collect()
            found.append(train(plain_step, adamw, STEPS).bits())
        return found

    plain = all_of_them()
    with session() as ours:
        assert all_of_them() == plain
    assert sum(step.fetched_bytes.total for step in ours.report().steps) > 0
    assert train(plain_step, adamw).bits() == plain[0]


class Both:
    """Two optimizers as one object."""

    def __init__(self, *all_of: optim.Optimizer) -> None:
        self.all_of = all_of

    def state_dict(self) -> dict[str, Any]:
        states = (each.state_dict()["state"] for each in self.all_of)
        return {"state": {f"{a} {b}": value for a, state in enumerate(states) for b, value in state.items()}}


def both_step(net: Any, both: Both, number: int) -> None:
    """Of one loss."""
    for optimizer in both.all_of:
        optimizer.zero_grad()
    loss_of(net, number).backward()
    for optimizer in both.all_of:
        optimizer.step()


def muon_and_adamw(net: Any) -> Both:
    matrices = [p for p in net.layers.parameters() if p.ndim == 2]
    rest = [p for p in (*net.layers.parameters(), *net.norm.parameters()) if p.ndim != 2]
    return Both(optim.Muon(matrices, lr=1e-2), optim.AdamW([*rest, net.embedding.weight], lr=1e-2))


def two_optimizers() -> None:
    early(both_step, muon_and_adamw)


def gan_step(net: Any, both: Both, number: int) -> None:
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


def generator_and_discriminator(net: Any) -> Both:
    pairs = (net.layers[:2], net.layers[2:])
    return Both(*(optim.AdamW(pair.parameters(), lr=1e-3) for pair in pairs))


def gan_step_that_ends_with_zeros(net: Any, both: Both, number: int) -> None:
    """In the generator's first pass, the discriminator has made a step, and has no gradients."""
    generator, discriminator = both.all_of
    noise = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(number))
    fake = net.layers[1](F.gelu(net.layers[0](noise)))
    net.layers[3](F.gelu(net.layers[2](fake.detach()))).square().mean().backward()
    discriminator.step()
    discriminator.zero_grad()
    (-net.layers[3](F.gelu(net.layers[2](fake))).square().mean()).backward()
    generator.step()
    generator.zero_grad()
    discriminator.zero_grad()


def a_gan(ends_with_zeros: bool) -> tuple[str, ...]:
    """The generator is updated in backward; the discriminator, whose gradients the generator's pass adds to, is not."""
    step = gan_step_that_ends_with_zeros if ends_with_zeros else gan_step
    return compare(step, generator_and_discriminator).updates


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


def born_in_the_session() -> list[str]:
    """The steps' modes, of a net and an optimizer that a session sees begin."""
    with ebbtide.Session(fast="50%", optimizer="in-backward", min_storage_bytes=4096) as ours:
        train(plain_step, adamw, STEPS)
    return [step.mode for step in ours.report().steps]


def a_handler_that_saves(in_the_pass: int) -> int:
    """A job's handler that saves the weights. The signal comes once or more within the fourth backward pass."""

    def train(session: Any) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
        torch.manual_seed(0)
        net = Net()
        optimizer = optim.AdamW(net.parameters())
        saved: list[dict[str, Tensor]] = []
        ended: list[dict[str, Tensor]] = []

        def copied() -> dict[str, Tensor]:
            return {name: value.clone() for name, value in net.state_dict().items()}

        def come(*_: object) -> None:
            for _ in range(in_the_pass if len(ended) == 3 else 0):
                signal.raise_signal(signal.SIGTERM)

        signal.signal(signal.SIGTERM, lambda *_: saved.append(copied()))
        net.layers[0].register_full_backward_hook(come)
        with session:
            for step in range(STEPS):
                plain_step(net, optimizer, step)
                ended.append(copied())
        return saved, ended

    _, weights = train(nullcontext())
    saved, ended = train(ebbtide.Session(fast="60%", optimizer="in-backward", min_storage_bytes=4096))
    assert all(torch.equal(a[name], b[name]) for a, b in zip(weights, ended, strict=True) for name in a)
    assert all(torch.equal(saved[0][name], weights[3][name]) for name in saved[0])  # as the step has left them
    assert signal.getsignal(signal.SIGTERM).__name__ == "<lambda>"
    return len(saved)
