"""What lives until its successor is there ([Note: elders] in ``search.idle_table``) leaves under a plan, too."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import ebbtide
from ebbtide.errors import InfeasibleBudgetError
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import arena_pages, needed_bytes
from ebbtide.ir.trace import Storage, StorageKind
from ebbtide.planners import plan
from ebbtide.simulator import simulate
from ebbtide.simulator.lowering import lower
from tests.helpers.make_steps import PAGE, R, W, disk, step

STEPS = 6
WIDTH = 256


def _gradients_of_samples(budget: str | None) -> tuple[str, ebbtide.RunReport | None]:
    """Per-sample gradients; those of the step before live until the new ones are there."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(64, 128), torch.randint(0, 10, (64,))

    def loss(parameters: dict[str, torch.Tensor], sample: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(net, parameters, (sample[None],)), label[None])

    def step() -> None:
        nonlocal gradients
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))({k: v.detach() for k, v in net.named_parameters()}, x, y)
        for name, parameter in net.named_parameters():
            parameter.grad = gradients[name].mean(0)
        optimizer.step()

    gradients: dict[str, torch.Tensor] = {}
    report = None
    if budget is None:
        for _ in range(STEPS):
            step()
    else:
        with ebbtide.Session(fast=budget) as session:
            for _ in range(STEPS):
                with session.step():
                    step()
        report = session.report()
    digest = hashlib.sha256()
    for tensor in [*net.parameters(), *gradients.values()]:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest(), report


@pytest.mark.in_child
@pytest.mark.alike
@pytest.mark.parametrize("budget", ["26%", "30%", "40%"])
def test_gradients_of_samples_that_live_into_the_next_step_are_planned(budget: str) -> None:
    plain, _ = _gradients_of_samples(None)
    ours, report = _gradients_of_samples(budget)
    assert report is not None
    planned = [step for step in report.steps if step.mode == "planned"]
    assert plain == ours
    assert planned == list(report.steps[2:])
    assert len(planned) == 4
    assert not report.budget_violated
    assert sum(step.evicted_bytes.total for step in planned) > 4 * 16 << 20  # both large ones leave in every step
    assert sum(step.fetched_bytes.total for step in planned) > 0


class Recurrent(nn.Module):
    """Its state goes from step to step: late in one it is born, late in the next it is used for the last time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(8)])

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layers(x) + state)


@pytest.mark.in_child
def test_a_state_that_is_carried_from_step_to_step_leaves_in_one_and_returns_in_the_next(tmp_path: Path) -> None:
    def train(steps: int) -> bytes:
        torch.manual_seed(3)
        net, state = Recurrent(), torch.zeros(1000, WIDTH)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for number in range(steps):
            x = torch.randn(1000, WIDTH, generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            out = net(x, state.detach())
            out.square().mean().backward()
            state = out.detach()
            optimizer.step()
        return b"".join(tensor.detach().numpy().tobytes() for tensor in [*net.parameters(), state])

    plain = train(STEPS + 4)
    files = {f"save_{name}": f"{tmp_path}/{name}" for name in ("trace", "plan", "timeline")}
    with ebbtide.Session(fast="30%", **files) as session:  # type: ignore[arg-type]
        assert train(STEPS + 4) == plain
    assert [step.mode for step in session.report().steps].count("planned") >= 4
    trace, timeline = ebbtide.load(f"{tmp_path}/trace"), ebbtide.load(f"{tmp_path}/timeline")
    states = [n for n, storage in enumerate(trace.storages) if storage.death > len(trace.ticks)]
    spans = [span for span in timeline.spans if span.storage in states]
    assert sum(span.nbytes for span in spans if span.kind == "evict") > 0
    assert sum(span.nbytes for span in spans if span.kind == "fetch") > 0


def test_what_lives_into_the_next_step_leaves_and_is_not_named_once_its_successor_is_born() -> None:
    """Ten ticks. Storage 0 is born at tick 2 and lives until tick 5 of the next step; storage 1 needs its room."""
    kept = Storage(64 * PAGE, StorageKind.ACTIVATION, 2, 15, allocation=0)
    other = Storage(64 * PAGE, StorageKind.ACTIVATION, 7, 9, allocation=0)
    trace = step([10**9] * 10, [kept, other], [(0, 2, W), (0, 4, R), (1, 7, W), (1, 8, R)])
    budget = int(needed_bytes(trace, arena_pages).max())
    found = plan("ebbtide", trace, disk(), budget)
    assert found.budget_bytes == budget == 64 * PAGE
    machine = disk().with_budget(budget)
    schedule = lower(found, trace, machine)
    assert set(schedule.storage.tolist()) == {0}
    assert all(4 < tick <= 7 for tick in schedule.tick[schedule.verb == Verb.DROP])
    assert simulate(schedule, trace, machine, arena_pages).rescues == 0


def test_a_use_by_an_elder_keeps_it_where_it_is() -> None:
    """Used again at tick 3 of the next step, when its successor is there: no command could bring it back."""
    kept = Storage(64 * PAGE, StorageKind.ACTIVATION, 2, 15, allocation=0)
    trace = step([10**9] * 10, [kept], [(0, 2, W), (0, 4, R), (0, 13, R)])
    with pytest.raises(InfeasibleBudgetError):
        plan("ebbtide", trace, disk(), 64 * PAGE)
    assert len(lower(plan("ebbtide", trace, disk(), 128 * PAGE), trace, disk())) == 0
