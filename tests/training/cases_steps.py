"""What test_steps.py runs in child processes: programs with several optimizers, compiled ones, and staged readings.

Each compares the bits with the same program without a session, and shows that bytes really moved.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import ebbtide
from ebbtide import _torch
from ebbtide.capture import rates
from ebbtide.ir.files import load
from ebbtide.ir.run_report import RunReport
from ebbtide.ir.trace import Trace
from ebbtide.planning.policies import planner_named
from ebbtide.runtime import engine
from tests.training.cases_plans import links_carry, plan_here
from tests.training.same_bits import CASES, begin, step, train_plainly, verdict

ITERATIONS = 7
WIDTH = 256


def digest(tensors: Sequence[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def network(depth: int = 6) -> nn.Module:
    torch.manual_seed(depth)
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))


# ---- readings -----------------------------------------------------------------------------------------------------


def a_block_that_leaves_between_a_steps_beginning_and_its_reading() -> list[tuple[int, str]]:
    """And is of no known kind until the optimizer's hook runs: each step's gradient bytes, and what did not add up.

    What a busy I/O thread would do at that moment is done by the function that reads the clocks.
    """
    model = nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    real = engine.read_now

    def slow(counters: Any) -> Any:
        _torch.evict([model.weight.grad])
        engine.read_now = real
        return real(counters)

    with ebbtide.Session(fast="90%") as session:
        for number in range(6):
            if number == 5:
                engine.read_now = slow
            with session.step():
                model(torch.randn(64, 512)).sum().backward()
                if number in (1, 3, 5):
                    optimizer.step()
                    optimizer.zero_grad()
    assert engine.read_now is real
    return [(step.evicted_bytes.gradient, step.inconsistent) for step in session.report().steps]


def a_block_that_is_classified_after_a_step_and_leaves_before_the_next() -> list[str]:
    """Moves of every kind of moment, and kinds that are told late, in steps of two gradient accumulations."""
    model = nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loose = torch.ones(512, 512)
    with ebbtide.Session(fast="90%") as session:
        for number in range(12):
            _torch.evict([loose])
            with session.step():
                loose.add_(1)
                _torch.classify([loose], number % 5)
                model(torch.randn(64, 512)).sum().backward()
                _torch.evict([loose, model.weight.grad])
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()
            _torch.classify([loose], (number + 2) % 5)
    return [step.inconsistent for step in session.report().steps]


# ---- several optimizers, followed ---------------------------------------------------------------------------------


def one_optimizer(model: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def iteration() -> None:
        optimizer.zero_grad()
        model(torch.randn(512, WIDTH)).square().mean().backward()
        optimizer.step()

    return iteration


def muon_and_adamw(model: nn.Module) -> Callable[[], None]:
    """The documented use: matrices and the rest."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    rest = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    optimizers = [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(rest, lr=0.01)]

    def iteration() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(torch.randn(512, WIDTH)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    return iteration


def a_gan(model: nn.Module) -> Callable[[], None]:
    """The model is the generator, and its discriminator takes three steps for each of its own."""
    discriminator = network(5)
    of_discriminator = torch.optim.AdamW(discriminator.parameters(), lr=0.01)
    of_generator = torch.optim.AdamW(model.parameters(), lr=0.01)

    def iteration() -> None:
        for _ in range(3):
            of_discriminator.zero_grad()
            fake = model(torch.randn(128, WIDTH)).detach()
            (discriminator(fake).mean() - discriminator(torch.randn(128, WIDTH)).mean()).backward()
            of_discriminator.step()
        of_generator.zero_grad()
        (-discriminator(model(torch.randn(512, WIDTH))).mean()).backward()
        of_generator.step()

    return iteration


def a_hook_per_parameter(model: nn.Module) -> Callable[[], None]:
    """Optimizer in backward: each parameter has its own, which steps as soon as the gradient is there."""

    def stepping(optimizer: torch.optim.Optimizer) -> Callable[[Tensor], None]:
        def hook(_parameter: Tensor) -> None:
            optimizer.step()
            optimizer.zero_grad()

        return hook

    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01, momentum=0.9)
        parameter.register_post_accumulate_grad_hook(stepping(optimizer))

    def iteration() -> None:
        model(torch.randn(512, WIDTH)).square().mean().backward()

    return iteration


def per_layer_by_hand(model: nn.Module) -> Callable[[], None]:
    """As in manual optimization: each layer's optimizer steps by itself, after one backward pass."""
    optimizers = [torch.optim.Adam(layer.parameters(), lr=0.01) for layer in model if list(layer.parameters())]

    def iteration() -> None:
        model(torch.randn(512, WIDTH)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return iteration


PROGRAMS = {
    program.__name__: program
    for program in (one_optimizer, muon_and_adamw, a_gan, a_hook_per_parameter, per_layer_by_hand)
}


def trained(program: str) -> str:
    model = network()
    iteration = PROGRAMS[program](model)
    for _ in range(ITERATIONS):
        iteration()
    return digest(list(model.parameters()))


def followed(program: str, fast: str) -> RunReport:
    """A session that nobody tells of steps, around the whole program."""
    plain = trained(program)
    with ebbtide.Session(fast=fast) as session:
        assert trained(program) == plain
    return session.report()


def built_before(program: str, fast: str) -> RunReport:
    """The same around a training whose model and optimizers were there before."""
    plain = trained(program)
    model = network()
    iteration = PROGRAMS[program](model)
    with ebbtide.Session(fast=fast) as session:
        for _ in range(ITERATIONS):
            iteration()
    assert digest(list(model.parameters())) == plain
    return session.report()


def step_ends_following() -> tuple[int, int]:
    """Steps counted before and after the first ``session.step()``, of two optimizer steps each."""
    model = network()
    iteration = one_optimizer(model)
    with ebbtide.Session(fast="1GiB") as session:
        iteration()
        iteration()
        before = len(session.report().steps)
        for _ in range(2):
            with session.step():
                iteration()
                iteration()
        iteration()
    return before, len(session.report().steps)


# ---- compiled, and transformed ------------------------------------------------------------------------------------


def a_compiled_optimizer_step(optimizer_name: str, backend: str) -> RunReport:
    """As PyTorch's own recipe compiles it. Followed: its steps are counted though Dynamo takes it apart."""

    def run() -> str:
        torch._dynamo.reset()
        model = network()
        optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.01)
        compiled = torch.compile(lambda: optimizer.step(), backend=backend)
        for _ in range(ITERATIONS):
            optimizer.zero_grad()
            model(torch.randn(512, WIDTH)).square().mean().backward()
            compiled()
        return digest(list(model.parameters()))

    plain = run()
    with ebbtide.Session(fast="50%") as session:
        assert run() == plain
    return session.report()


def per_sample(model: nn.Module) -> Iterator[Tensor]:
    """Gradients of every sample, by vmap over grad: boxed calls show the recorder more than their arguments."""
    parameters = dict(model.named_parameters())

    def loss(own: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(model, own, (row[None],)).square().mean()

    gradients = vmap(grad(loss), (None, 0))(parameters, torch.randn(8, WIDTH))
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter -= 0.1 * gradients[name].mean(0)
            yield gradients[name]


def per_sample_gradients_traced(path: str) -> Sequence[str]:
    """Recorded without a budget: the operators of the step."""
    with ebbtide.record(path) as session:
        model = network()
        for _ in range(3):
            with session.step():
                list(per_sample(model))
    assert Path(path).exists()
    return [tick.operator for tick in load(Path(path), Trace).ticks]


def traced(path: str, program: str, tells: bool) -> list[tuple[str, str]]:
    """Operators and phases of the third step, told by the program or followed."""
    with ebbtide.record(path) as session:
        iteration = PROGRAMS[program](network())
        for _ in range(4):
            with session.step() if tells else nullcontext():
                iteration()
    return [(tick.operator, str(tick.phase)) for tick in load(Path(path), Trace).ticks]


# ---- kinds --------------------------------------------------------------------------------------------------------


class Pair(torch.Tensor):
    """Two tensors in one, as a quantized state holds its values and its scales; it has no storage itself."""

    @staticmethod
    def __new__(cls, values: Tensor, scales: Tensor) -> "Pair":
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values: Tensor, scales: Tensor) -> None:
        self.values_, self.scales = values, scales

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values_", "scales"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], _context: None, _size: Any, _stride: Any) -> "Pair":
        return Pair(inner["values_"], inner["scales"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(function)


def kinds_of_wrapped_state() -> tuple[int, int]:
    """Bytes of optimizer state that left: its storage lies behind a subclass. And those of no kind."""
    model = nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ebbtide.Session(fast="1GiB") as session:
        state = Pair(torch.ones(512, 512), torch.ones(64, 64))
        optimizer.state[model.weight]["pair"] = state
        for _ in range(2):
            with session.step():
                model(torch.randn(8, 512)).sum().backward()
                optimizer.step()
                _torch.evict([state.values_, state.scales])
                state.values_.add_(1)
    evicted = [step.evicted_bytes for step in session.report().steps]
    return sum(traffic.optimizer_state for traffic in evicted), sum(traffic.other for traffic in evicted)


def kinds_of_distributed_parameters() -> dict[str, int]:
    """Bytes that left by kind, of a model whose parameters, gradients and states are DTensors, as FSDP2 has them."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    with ebbtide.Session(fast="1GiB") as session:
        weight = nn.Parameter(distribute_tensor(torch.ones(512, 512), mesh, [Replicate()]))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, foreach=False)
        for _ in range(3):
            with session.step():
                (weight * 2).to_local().sum().backward()
                optimizer.step()
                state = optimizer.state[weight]["momentum_buffer"]
                assert isinstance(state, DTensor)
                _torch.evict([weight.to_local().detach(), weight.grad.to_local(), state.to_local()])
                weight.grad = None
    dist.destroy_process_group()
    evicted = [step.evicted_bytes for step in session.report().steps]
    return {kind: sum(getattr(traffic, kind) for traffic in evicted) for kind in _torch.KINDS}


# ---- a second look at a plan --------------------------------------------------------------------------------------


def a_followed_step_that_does_more(extra_in: Sequence[int]) -> tuple[Any, int, list[str]]:
    """In these steps small tensors are made after the last planned allocation: ticks that the schedule has not.

    The machine is one that was measured wrongly, so the plan is made anew as soon as a step shows it: the verdict, how
    often was planned, and what was warned of.
    """
    planner = planner_named("ebbtide")
    planned = 0

    def counting(*args: Any) -> Any:
        nonlocal planned
        planned += 1
        return planner(*args)

    links_carry(1_000_000)
    plan_here(counting)
    rates._ENOUGH_NS = 1  # the case is small
    case = CASES["gpt2-adamw-fused"]
    plain = train_plainly(case, 6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ebbtide.Session(fast="50%") as session:
            ours = begin(case)
            for number in range(6):
                with session.step():
                    step(ours)
                    if number in extra_in:
                        torch.ones(3).add_(1)
    return verdict(plain, ours, session), planned, [str(warning.message) for warning in caught]
