"""What the tests of storages that outlive the birth of their successors run in child processes."""

import hashlib
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import ebbtide

STEPS = 6
WIDTH = 256


class Trained(NamedTuple):
    """A run under a budget beside a plain one."""

    same: bool
    modes: tuple[str, ...]
    within_budget: bool
    evicted_bytes: int  # in steps that followed a plan
    fetched_bytes: int


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


def gradients_of_samples(budget: str) -> Trained:
    plain, _ = _gradients_of_samples(None)
    ours, report = _gradients_of_samples(budget)
    assert report is not None
    planned = [step for step in report.steps if step.mode == "planned"]
    return Trained(
        plain == ours,
        tuple(str(step.mode) for step in report.steps),
        not report.budget_violated,
        sum(step.evicted_bytes.total for step in planned),
        sum(step.fetched_bytes.total for step in planned),
    )


class Recurrent(nn.Module):
    """Its state goes from step to step: late in one it is born, late in the next it is used for the last time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(8)])

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layers(x) + state)


def carried_state(folder: str) -> tuple[int, int]:
    """Bytes of the state that left and that returned in the last step, which followed a plan."""

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
    files = {f"save_{name}": f"{folder}/{name}" for name in ("trace", "plan", "timeline")}
    with ebbtide.Session(fast="30%", **files) as session:  # type: ignore[arg-type]
        assert train(STEPS + 4) == plain
    assert [step.mode for step in session.report().steps].count("planned") >= 4
    trace, timeline = ebbtide.load(f"{folder}/trace"), ebbtide.load(f"{folder}/timeline")
    states = [n for n, storage in enumerate(trace.storages) if storage.death > len(trace.ticks)]
    spans = [span for span in timeline.spans if span.storage in states]
    left = sum(span.nbytes for span in spans if span.kind == "evict")
    return left, sum(span.nbytes for span in spans if span.kind == "fetch")
