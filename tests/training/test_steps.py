"""Steps of real programs: whole iterations whatever optimizers there are, figures that add up, and the same bits.

Each compares the bits with the same program without a session, and shows that bytes really moved.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
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
from tests.helpers import child
from tests.training.same_bits import CASES, begin, step, train_plainly, verdict
from tests.training.test_plans import links_carry, plan_here

PLANNED = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_PROGRESS": "off"}
PAGES = PLANNED | {"EBBTIDE_POLICY": "demand"}
pytestmark = pytest.mark.in_child(PAGES)
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


def test_what_leaves_at_a_steps_beginning_and_is_classified_later_adds_up() -> None:
    """What a busy I/O thread would do at that moment is done by the function that reads the clocks. What leaves is of
    no known kind until the optimizer's hook runs."""
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
    steps = [(step.evicted_bytes.gradient, step.inconsistent) for step in session.report().steps]
    assert [inconsistent for _, inconsistent in steps] == [""] * 6
    assert steps[5][0] >= 512 * 512 * 4


def test_kinds_that_are_told_late_and_often_add_up() -> None:
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
    assert [step.inconsistent for step in session.report().steps] == [""] * 12


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


@pytest.mark.parametrize("program", ["one_optimizer", "muon_and_adamw"])
def test_a_session_around_a_training_that_knows_of_none_bounds_it(program: str) -> None:
    """Its model and optimizers were there before."""
    plain = trained(program)
    model = network()
    iteration = PROGRAMS[program](model)
    with ebbtide.Session(fast="60%") as session:
        for _ in range(ITERATIONS):
            iteration()
    assert digest(list(model.parameters())) == plain
    report = session.report()
    assert len(report.steps) == ITERATIONS
    assert report.bounded_as_asked
    assert report.unbounded_peak_bytes > 6 * 256 * 256 * 4 + 6 * 512 * 256 * 4
    assert sum(step.fetched_bytes.total for step in report.steps) > 0


def test_a_training_that_moves_to_a_pools_threads_is_bounded() -> None:
    """It begins on the main thread, as in a notebook, and goes on where a server's steps run."""
    plain = trained("one_optimizer")
    with ebbtide.Session(fast="60%") as session, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        model = network()
        iteration = one_optimizer(model)
        iteration()
        for number in range(ITERATIONS - 1):
            (one, other)[number % 2].submit(iteration).result()
        assert digest(list(model.parameters())) == plain
    report = session.report()
    assert len(report.steps) == ITERATIONS
    assert report.bounded_as_asked
    assert sum(step.fetched_bytes.total for step in report.steps) > 0


def test_the_first_named_step_ends_following() -> None:
    """Of two optimizer steps each."""
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
    assert before == 2
    assert len(session.report().steps) == 4


@pytest.mark.alike
@pytest.mark.parametrize(("optimizer", "backend"), [("AdamW", "eager"), ("SGD", "eager"), ("AdamW", "aot_eager")])
def test_a_compiled_optimizer_step_is_followed(optimizer: str, backend: str) -> None:
    """As PyTorch's own recipe compiles it. Followed: its steps are counted though Dynamo takes it apart."""

    def run() -> str:
        torch._dynamo.reset()
        model = network()
        ours = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
        compiled = torch.compile(lambda: ours.step(), backend=backend)
        for _ in range(ITERATIONS):
            ours.zero_grad()
            model(torch.randn(512, WIDTH)).square().mean().backward()
            compiled()
        return digest(list(model.parameters()))

    plain = run()
    with ebbtide.Session(fast="50%") as session:
        assert run() == plain
    report = session.report()
    assert len(report.steps) == ITERATIONS
    assert sum(step.evicted_bytes.total for step in report.steps[2:]) > 0
    assert sum(step.fetched_bytes.total for step in report.steps[2:]) > 0


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


@pytest.mark.in_child(PLANNED)
def test_per_sample_gradients_are_traced(tmp_path: Path) -> None:
    path = tmp_path / "step.trace"
    with ebbtide.record(path) as session:
        model = network()
        for _ in range(3):
            with session.step():
                list(per_sample(model))
    assert Path(path).exists()
    operators = [tick.operator for tick in load(Path(path), Trace).ticks]
    assert len(operators) > 20
    assert {"aten::addmm", "aten::bmm", "aten::gelu_backward"} & set(operators)


def traced(path: str, program: str, tells: bool) -> list[tuple[str, str]]:
    """Operators and phases of the third step, told by the program or followed."""
    with ebbtide.record(path) as session:
        iteration = PROGRAMS[program](network())
        for _ in range(4):
            with session.step() if tells else nullcontext():
                iteration()
    return [(tick.operator, str(tick.phase)) for tick in load(Path(path), Trace).ticks]


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


def test_what_lies_behind_a_tensor_subclass_is_of_its_kind() -> None:
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
    assert sum(traffic.optimizer_state for traffic in evicted) >= 2 * 512 * 512 * 4
    assert sum(traffic.other for traffic in evicted) == 0


def test_what_lies_behind_a_distributed_tensor_is_of_its_kind() -> None:
    """Parameters, gradients and states are DTensors, as FSDP2 has them."""
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
    steps = [step.evicted_bytes for step in session.report().steps]
    evicted = {kind: sum(getattr(traffic, kind) for traffic in steps) for kind in _torch.KINDS}
    for kind in ("parameter", "gradient", "optimizer_state"):
        assert evicted[kind] >= 512 * 512 * 4, kind
    assert evicted["other"] == 0


@pytest.mark.in_child(PLANNED)
def test_a_followed_step_with_more_operators_than_the_plans_is_passed_over_and_the_next_refines_it() -> None:
    """In one, small tensors are made after the last planned allocation: ticks that the schedule has not. The machine
    was measured wrongly, so the plan is made anew as soon as a step shows it."""
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
                    if number == 3:
                        torch.ones(3).add_(1)
    found = verdict(plain, ours, session)
    assert found.differences == ()
    assert found.modes[2:] == ("planned",) * 4
    assert not [warning for warning in caught if "planned anew" in str(warning.message)]
    assert planned == 2  # by the step after it


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_step_is_an_iteration_and_a_percentage_is_of_all_of_it(program: str) -> None:
    report = followed(program, "60%")
    assert len(report.steps) == ITERATIONS
    assert report.bounded_as_asked
    assert not report.budget_violated
    weights = 6 * 256 * 256 * 4
    activations = 6 * 512 * 256 * 4
    assert report.unbounded_peak_bytes > weights + activations
    assert report.arena_budget_bytes == pytest.approx(0.6 * report.unbounded_peak_bytes, rel=0.01)
    bounded = report.steps[2:]
    assert sum(step.evicted_bytes.total for step in bounded) > 0
    assert sum(step.fetched_bytes.total for step in bounded) > 0


@pytest.mark.in_child(PLANNED)
@pytest.mark.parametrize("program", list(PROGRAMS)[1:])
def test_steps_of_several_optimizers_are_planned(program: str) -> None:
    report = followed(program, "60%")
    assert [step.mode for step in report.steps].count("planned") >= 3
    assert sum(step.fetched_bytes.total for step in report.steps) > 0


@pytest.mark.here
@pytest.mark.parametrize("program", ["muon_and_adamw", "a_gan"])
def test_a_recorder_without_a_budget_follows_by_the_same_rule(program: str, tmp_path: Path) -> None:
    found = [child.run(traced, str(tmp_path / "it.trace"), program, tells, env=PLANNED) for tells in (0, 1)]
    assert found[0] == found[1]
    assert {phase for _, phase in found[0]} >= {"backward", "optimizer"}
