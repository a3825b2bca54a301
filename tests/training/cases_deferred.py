"""What test_deferred.py runs in child processes: training with deferred updates, against plain PyTorch.

A scenario is a function of a net, its optimizer and the number of the step, which makes one step of training: it ends
with the bits of a plain run. What looks between steps is in ``test_looks``.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import ebbtide
from tests.helpers.at_once import at_once
from tests.training import cases_in_backward
from tests.training.cases_in_backward import (
    STEPS,
    WIDTH,
    Both,
    Training,
    adamw,
    checkpointed_step,
    gan_step,
    generator_and_discriminator,
    loss_of,
    muon_and_adamw,
    optimizer_in_groups,
    plain_step,
    tokens,
    train,
    variants_of,
)
from tests.training.cases_in_backward_refused import EITHER, one_zeroes, two_of_the_same

Step = Callable[[Any, Any, int], None]
Make = Callable[[Any], Any]


@contextmanager
def session(policy: str = "demand", **named: Any) -> Iterator[ebbtide.Session]:
    with ebbtide.Session(
        policy=policy, min_storage_bytes=4096, checksum=True, **{"fast": "50%", "optimizer": "deferred", **named}
    ) as ours:
        yield ours


def compare(step: Step, make: Make = adamw, steps: int = STEPS) -> ebbtide.RunReport:
    return cases_in_backward.compare(step, make, steps, session)


def deferred(step: Step, make: Make = adamw, steps: int = STEPS) -> ebbtide.RunReport:
    report = compare(step, make, steps)
    assert report.updates
    assert all("before its next use" in told for told in report.updates), report.updates
    return report


# ---- every optimizer ----------------------------------------------------------------------------------------------


def clipped(net: Any, optimizer: Any, number: int, scaler: Any) -> None:
    optimizer.zero_grad()
    for micro in (0, 50):
        scaler.scale(loss_of(net, number + micro) / 2).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()


def every_optimizer(name: str) -> list[str]:
    """Accumulated, unscaled and clipped gradients, a scheduler after each step, two groups, a tied weight; the variants
    tried."""
    for variant in variants_of(name):
        helpers: dict[int, tuple[Any, Any]] = {}

        def step(net: Any, optimizer: Any, number: int, helpers: dict[int, tuple[Any, Any]] = helpers) -> None:
            if number == 0:
                scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
                helpers[id(optimizer)] = optim.lr_scheduler.ExponentialLR(optimizer, 0.9), scaler
            schedule, scaler = helpers[id(optimizer)]
            clipped(net, optimizer, number, scaler)
            schedule.step()

        deferred(step, optimizer_in_groups(name, variant))
    return variants_of(name)


# ---- ways to train ------------------------------------------------------------------------------------------------


def scales_without_unscaling() -> None:
    """A fused optimizer unscales in its own kernel, and is told of what is infinite."""
    for fused in (True, False):
        scalers: dict[int, Any] = {}

        def step(net: Any, optimizer: Any, number: int, scalers: dict[int, Any] = scalers) -> None:
            if number == 0:
                scalers[id(optimizer)] = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
            scaler = scalers[id(optimizer)]
            optimizer.zero_grad()
            scaler.scale(loss_of(net, number)).backward()
            if number == 3:
                net.layers[2].weight.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()

        deferred(step, lambda net, fused=fused: optim.AdamW(thawed(net), lr=1e-2, fused=fused))


def thawed(net: Any) -> list[Tensor]:
    return [p for p in net.parameters() if p.requires_grad]


def keeps_gradients() -> None:
    """``zero_grad(set_to_none=False)``, and one step without any."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        if number != 3:
            optimizer.zero_grad(set_to_none=False)
        loss_of(net, number).backward()
        optimizer.step()

    deferred(step)


def zeroes_after_the_step() -> None:
    def step(net: Any, optimizer: Any, number: int) -> None:
        loss_of(net, number).backward()
        optimizer.step()
        optimizer.zero_grad()

    deferred(step)


def zeroes_before_backward() -> None:
    def step(net: Any, optimizer: Any, number: int) -> None:
        loss = loss_of(net, number)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    deferred(step)


def steps_twice() -> None:
    """With the same gradients."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        optimizer.step()

    deferred(step)


def averages(way: str) -> None:
    """An exponential moving average of the parameters, which is evaluated and goes into the loss's bits."""
    averages: dict[int, list[Tensor]] = {}

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        own = averages.setdefault(id(optimizer), [p.detach().clone() for p in thawed(net)])
        with torch.no_grad():
            if way == "foreach":
                torch._foreach_lerp_(own, thawed(net), 0.1)
            else:
                for average, p in zip(own, thawed(net), strict=True):
                    average.lerp_(p, 0.1)
            if number == STEPS - 1:
                for average, p in zip(own, thawed(net), strict=True):
                    p.copy_(average)

    deferred(step)


def model_average() -> None:
    averaged: dict[int, Any] = {}

    def step(net: Any, optimizer: Any, number: int) -> None:
        if number == 0:
            averaged[id(optimizer)] = optim.swa_utils.AveragedModel(net)
        plain_step(net, optimizer, number)
        averaged[id(optimizer)].update_parameters(net)
        if number == STEPS - 1:
            net.load_state_dict(averaged[id(optimizer)].module.state_dict())

    deferred(step)


def changes_between_steps() -> None:
    """Whatever a script may do to parameters, gradients, state and settings once ``step`` has returned."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        weight, group = net.layers[2].weight, optimizer.param_groups[0]
        group["lr"] *= 0.9
        group["betas"] = (0.9, 0.9)
        if number == 1:
            with torch.no_grad():
                net.layers[0].weight.mul_(0.9)
            net.layers[1].weight.data = net.layers[1].weight.data * 0.5
            weight.grad.mul_(2)
        if number == 2:
            optimizer.state[weight]["exp_avg"] = torch.zeros_like(weight)
            weight.grad = torch.ones_like(weight)
        if number == 3:
            optimizer.state[weight].clear()
            optimizer.load_state_dict(optimizer.state_dict())
        if number == 4:
            optimizer.state.clear()
            net.layers[3].requires_grad_(False)
            del group["params"][2]

    assert any("before its next use" in told for told in compare(step).updates)


def checkpointed(use_reentrant: bool) -> None:
    deferred(checkpointed_step((1, 2, 1), use_reentrant))


def autocast_around_all() -> None:
    """The step too, and the looks of the next forward pass are made under autocast."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            plain_step(net, optimizer, number)

    deferred(step)
    deferred(step, lambda net: optim.Muon([p for p in thawed(net.layers) if p.ndim == 2], lr=1e-2))


def steps_outside_autocast() -> None:
    """Only the looks are under autocast. Muon multiplies matrices, which autocast would do in another precision."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(net, number)
        loss.backward()
        optimizer.step()

    deferred(step, lambda net: optim.Muon([p for p in thawed(net.layers) if p.ndim == 2], lr=1e-2))


class Straight(torch.autograd.Function):
    """Saves its weight without a look at it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ gradient


def a_function_that_saves_a_parameter() -> None:
    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        x = net.layers[0](net.embedding(tokens(number)))
        x = Straight.apply(x, net.layers[1].weight)
        F.cross_entropy(net.layers[2](x), tokens(number + 100)).backward()
        optimizer.step()

    deferred(step)


def a_function_that_saves_state_that_is_no_argument() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, known: list[Tensor]) -> Tensor:
            ctx.save_for_backward(*known)
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            (known,) = ctx.saved_tensors
            return gradient * (1 + known.mean()), None

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        state = optimizer.state.get(net.layers[3].weight)
        beside = Scaled.apply(net.norm.weight, [state["exp_avg_sq"]]).sum() if state else 0
        (loss_of(net, number) + beside).backward()
        optimizer.step()

    deferred(step)


def steps_in_inference_mode() -> None:
    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        loss_of(net, number).backward()
        with torch.inference_mode():
            optimizer.step()
        with torch.inference_mode():
            loss_of(net, number)

    compare(step)


def torch_func() -> None:
    """Parameters that operators see within ``vmap`` and ``grad`` alone."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        weights = dict(net.layers.named_parameters())

        def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            for layer in range(4):
                x = F.gelu(F.linear(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"]))
            return x.square().mean()

        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number))
        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
        for name, parameter in weights.items():
            parameter.grad = gradients[name].detach().sum(0)
        optimizer.step()

    deferred(step, lambda net: optim.AdamW(net.layers.parameters(), lr=1e-2))


def scripted() -> None:
    scripts: dict[int, Any] = {}

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        layers = scripts.setdefault(id(optimizer), torch.jit.script(nn.Sequential(*net.layers)))
        layers(torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number))).square().mean().backward()
        optimizer.step()

    deferred(step, lambda net: optim.AdamW(net.layers.parameters(), lr=1e-2))


def traced() -> None:
    """In a trace the sizes that Python reads are tensors: Adafactor's own numbers would be, too."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number))
        layers = nn.Sequential(*net.layers)
        optimizer.zero_grad()
        (layers(x).square().mean() + loss_of(net, number)).backward()
        optimizer.step()
        torch.jit.trace(layers, x, check_trace=False)

    deferred(step, lambda net: optim.Adafactor(net.layers.parameters(), lr=1e-2))


def looks_while_pytorch_compiles() -> None:
    """With this flag, which is of all threads, optimizers compute with tensors in place of numbers."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        compiler: Any = torch.compiler
        compiler._is_compiling_flag = True
        [parameter.sum() for parameter in net.layers.parameters()]
        assert compiler._is_compiling_flag
        compiler._is_compiling_flag = False

    deferred(step, lambda net: optim.NAdam(net.layers.parameters(), lr=1e-2))


def counts_versions() -> None:
    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        torch.autograd.graph.increment_version(tensor=net.layers[0].weight)
        torch.autograd.graph.increment_version(parameter for parameter in net.layers.parameters())

    deferred(step)


def parts_of_one_tensor() -> None:
    """They have memory of their own since they were converted, and still one version counter."""

    def make(net: Any) -> optim.Optimizer:
        weights = torch.stack([layer.weight.detach() for layer in net.layers]).double()
        for layer, weight in zip(net.layers, weights, strict=True):
            layer.weight = nn.Parameter(weight)
        return adamw(net.float())

    deferred(plain_step, make)


def keeps_versions() -> None:
    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        loss_of(net, number).backward()
        with torch.autograd._unsafe_preserve_version_counter(tuple(net.layers.parameters())):
            optimizer.step()

    deferred(step)


def with_an_array_of_small_state() -> tuple[str, ...]:
    """It is read after each step, without an operator."""
    arrays: dict[int, Any] = {}

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        state = optimizer.state[net.layers[0].weight]
        net.seen = [*getattr(net, "seen", []), float(arrays.setdefault(id(net), state["step"].numpy()))]
        if number == STEPS - 1:
            assert net.seen == [float(made) for made in range(1, STEPS + 1)], net.seen

    return compare(step).updates


def a_batch_that_raises() -> None:
    """Between a step and the next: the script catches it and goes on."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        try:
            loss_of(net, number + 100)
            raise KeyError
        except KeyError:
            plain_step(net, optimizer, number)

    deferred(step)


def steps_in_the_backward_pass() -> None:
    """An optimizer for each parameter, which steps as soon as the gradient is complete."""

    def make(net: Any) -> Both:
        both = Both(*(optim.AdamW([parameter], lr=1e-2) for parameter in net.layers.parameters()))
        for parameter, own in zip(net.layers.parameters(), both.all_of, strict=True):

            def complete(parameter: Tensor, own: Any = own) -> None:
                own.step()
                own.zero_grad()

            parameter.register_post_accumulate_grad_hook(complete)
        return both

    def step(net: Any, both: Both, number: int) -> None:
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number))
        for layer in net.layers:
            x = F.gelu(layer(x))
        x.square().mean().backward()

    assert any("before its next use" in told for told in compare(step, make).updates)


def in_parallel() -> None:
    """DistributedDataParallel, one process of one: its reducer copies gradients, or makes them views of its buckets."""
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    for views in (False, True):
        wrapped: dict[int, Any] = {}

        def step(net: Any, optimizer: Any, number: int, wrapped: dict[int, Any] = wrapped, views: bool = views) -> None:
            if number == 0:
                net.unused.requires_grad_(False)
                wrapped[id(optimizer)] = DistributedDataParallel(net, gradient_as_bucket_view=views)
            optimizer.zero_grad()
            loss_of(wrapped[id(optimizer)], number).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()

        compare(step) if views else deferred(step)
    distributed.destroy_process_group()


def loads_data_in_workers() -> None:
    """Which are forked when updates have been put off."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        loader = torch.utils.data.DataLoader([tokens(number)] * 4, batch_size=1, num_workers=2)  # type: ignore[arg-type]
        for (batch,) in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(batch), batch).backward()
            optimizer.step()

    deferred(step, steps=3)


def saves_and_loads() -> None:
    """A checkpoint in the middle of training, from which it goes on, in files and with new objects."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        if number == 3:
            file = io.BytesIO()
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
            loss_of(net, 100).backward()
            optimizer.step()
            file.seek(0)
            saved = torch.load(file)
            net.load_state_dict(saved["net"])
            optimizer.load_state_dict(saved["optimizer"])

    deferred(step)


def retains_a_graph_from_before_the_step() -> None:
    """Autograd refuses it, as it does in the script's order."""

    def refused(training: Training) -> bool:
        net, optimizer = training.net, training.optimizer
        for number in range(3):
            plain_step(net, optimizer, number)
        optimizer.zero_grad()
        loss = loss_of(net, 3)
        loss.backward(retain_graph=True)
        optimizer.step()
        try:
            loss.backward()
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)
        return False

    assert refused(Training(adamw))
    with session():
        assert refused(Training(adamw))


def two_threads() -> None:
    """Both evaluate right after each step: whoever comes second waits for the update."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)

        def evaluate() -> float:
            with torch.no_grad():
                return loss_of(net, number).item()

        seen = at_once(evaluate, 3)
        assert seen[0] == seen[1] == seen[2]
        optimizer.param_groups[0]["lr"] *= seen[0]

    deferred(step)


WAYS: dict[str, Callable[[], object]] = {
    "two_optimizers": lambda: deferred(one_zeroes, muon_and_adamw),
    "two_of_the_same_parameters": lambda: deferred(one_zeroes, two_of_the_same),
    "a_gan": lambda: deferred(gan_step, generator_and_discriminator),
} | {
    each.__name__: each
    for each in (
        scales_without_unscaling,
        keeps_gradients,
        zeroes_after_the_step,
        zeroes_before_backward,
        steps_twice,
        model_average,
        changes_between_steps,
        autocast_around_all,
        steps_outside_autocast,
        a_function_that_saves_a_parameter,
        a_function_that_saves_state_that_is_no_argument,
        steps_in_inference_mode,
        torch_func,
        scripted,
        traced,
        looks_while_pytorch_compiles,
        parts_of_one_tensor,
        keeps_versions,
        counts_versions,
        a_batch_that_raises,
        steps_in_the_backward_pass,
        in_parallel,
        loads_data_in_workers,
        saves_and_loads,
        retains_a_graph_from_before_the_step,
        two_threads,
    )
}


def way(name: str) -> None:
    WAYS[name]()


# ---- left as written ----------------------------------------------------------------------------------------------


def step_compiled(net: Any, optimizer: Any, number: int) -> None:
    """From step 3 on, when earlier updates have been put off: compiled code reads addresses."""
    layers = nn.Sequential(*net.layers)
    if number == 3:
        optimizer.compiled = torch.compile(layers, backend="aot_eager")
    optimizer.zero_grad()
    layers = optimizer.compiled if number >= 3 else layers
    layers(torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number))).square().mean().backward()
    optimizer.step()


@cache
def compiled_beforehand() -> Any:
    """It is called without Dynamo, and reads the addresses that it is given."""
    example = torch.ones(WIDTH, WIDTH)
    compiled: Any = torch.compile(lambda weight: weight.sin().sum(), fullgraph=True, backend="eager")
    return compiled.aot_compile(((example,), {}))


def step_compiled_beforehand(net: Any, optimizer: Any, number: int) -> None:
    scale = compiled_beforehand()(net.layers[0].weight.detach()) if number >= 3 else 1.0
    optimizer.zero_grad()
    (loss_of(net, number) * scale).backward()
    optimizer.step()


def of_the_layers(net: Any) -> optim.Optimizer:
    return optim.AdamW(net.layers.parameters(), lr=1e-2)


def with_one_step_for_all(net: Any) -> optim.Optimizer:
    optimizer, step = adamw(net), torch.tensor(0.0)
    for parameter in optimizer.param_groups[0]["params"]:
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": step, **moments}
    return optimizer


def with_a_rate_that_is_trained(net: Any) -> optim.Optimizer:
    rate = net.frozen.bias.requires_grad_(True)[:1].detach().fill_(0.01)
    return optim.SGD([net.frozen.bias, *net.layers.parameters()], lr=rate, foreach=False)


LEFT = EITHER | {
    "step_compiled": (step_compiled, of_the_layers, "compiled code reads parameters"),
    "step_compiled_beforehand": (step_compiled_beforehand, of_the_layers, "compiled code reads parameters"),
    "with_one_step_for_all": (
        plain_step,
        with_one_step_for_all,
        "state, gradients or settings share memory with what an update changes",
    ),
    "with_a_rate_that_is_trained": (
        plain_step,
        with_a_rate_that_is_trained,
        "state, gradients or settings share memory with what an update changes",
    ),
}
"""The scenario, its optimizer, and why its updates are not deferred."""


def left(name: str) -> tuple[str, ...]:
    step, make, _ = LEFT[name]
    return compare(step, make).updates


# ---- planned ------------------------------------------------------------------------------------------------------


class Deep(nn.Module):
    """Mostly weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


def deep_step(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    net(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number))).square().mean().backward()
    optimizer.step()


def planned(folder: str) -> None:
    """Gradients live across the step's border: they leave in one step and return in the next, and the plan says so."""

    def bits() -> dict[str, bytes]:
        return train(deep_step, lambda net: optim.AdamW(net.parameters(), lr=1e-2, fused=True), 12, Deep).bits()

    plain = bits()
    with ebbtide.Session(
        fast="33%",
        optimizer="deferred",
        min_storage_bytes=4096,
        save_trace=f"{folder}/step.trace",
        save_plan=f"{folder}/plan",
    ) as ours:
        assert bits() == plain
    report = ours.report()
    steady = [step for step in report.steps if step.mode == "planned"][2:]
    assert len(steady) >= 3
    assert all(step.fetched_bytes.gradient > 0 for step in steady), [step.fetched_bytes for step in report.steps]
    assert all(step.written_bytes.gradient > 0 for step in steady)
    trace = ebbtide.load(f"{folder}/step.trace")
    crossing = [
        number
        for number, storage in enumerate(trace.storages)
        if storage.kind == "gradient" and storage.death > len(trace.ticks)
    ]
    assert len(crossing) >= 10
    plan = ebbtide.load(f"{folder}/plan")
    fast = plan.stays[0].tier
    returning = [number for number in crossing if sum(s.tier == fast for s in plan.stays if s.storage == number) == 2]
    assert returning
    phases = [tick.phase for tick in trace.ticks]
    first_backward = phases.index("backward")
    assert phases[:first_backward].count("optimizer") >= 10
