"""What the tests of the Python interface run in child processes."""

import hashlib
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

import ebbtide
from ebbtide import _torch
from ebbtide.errors import SettingError

STEPS = 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(256, 512)
        self.rest = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x))


class Trained(NamedTuple):
    """``always_there``: at the end of every step, the first weights could not be made to leave memory."""

    weights: str
    losses: tuple[float, ...]
    modes: tuple[str, ...] = ()
    evicted_bytes: int = 0
    always_there: bool = False
    within_budget: bool = False
    stats: dict[str, int] | None = None
    written_bytes: int = 0
    written_in_steps: int = 0


def _train(net: Net, session: ebbtide.Session | None, keeps: bool, evaluates: bool) -> tuple[list[float], bool]:
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    losses, there = [], True
    torch.manual_seed(6)
    first = list(net.first.parameters())
    if session is not None and keeps:
        session.keep(net.first)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = net(torch.randn(512, 256)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if session is not None:
            session.step()
            there = there and _torch.evict(first) == 0 and all(map(_torch.is_resident, first))
        if evaluates:
            with session.evaluating() if session is not None else nullcontext(), torch.no_grad():
                losses.append(net(torch.randn(512, 256)).square().mean().item())
    return losses, there


def _hash(net: Net) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()


def plainly(evaluates: bool) -> Trained:
    net = Net()
    losses, _ = _train(net, None, False, evaluates)
    return Trained(_hash(net), tuple(losses))


def by_calls(keeps: bool, evaluates: bool, policy: str = "ebbtide") -> Trained:
    """Steps end where the loop's body does; some weights are kept, and after each step the net is evaluated."""
    net = Net()
    with ebbtide.Session("45%", min_storage_bytes="4KiB", policy=policy, progress="off") as session:
        losses, there = _train(net, session, keeps, evaluates)
        stats = session.memory_stats()
    report = session.report()
    return Trained(
        _hash(net),
        tuple(losses),
        tuple(str(step.mode) for step in report.steps),
        sum(step.evicted_bytes.total for step in report.steps),
        there,
        not report.budget_violated,
        stats,
        report.written_bytes or 0,
        sum(step.written_bytes.total for step in report.steps),
    )


def pipeline(folder: str) -> tuple[int, int, int, int, bool]:
    """Record, load, plan, save, simulate: the step's time with everything resident, under the plan, under a policy, the
    plan's bound, and whether what was saved is what is loaded."""
    path = Path(folder) / "step.trace"
    with ebbtide.record(path) as recorder:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(512, 256)).square().mean().backward()
            optimizer.step()
            recorder.step()
    assert recorder.done, recorder.summary()
    trace = ebbtide.load(path)
    plan = ebbtide.plan(path, "50%", machine="h200")
    ebbtide.save(plan, Path(folder) / "step.plan")
    simulated = ebbtide.simulate(trace, plan, machine="h200")
    from_file = ebbtide.simulate(path, Path(folder) / "step.plan", machine="h200")
    assert from_file.step_ns == simulated.step_ns
    with pytest.raises(SettingError, match="the plan lru cannot be read"):
        ebbtide.simulate(trace, "lru", machine="h200")  # a policy's name, without its argument's
    reactive = ebbtide.simulate(trace, fast=plan.budget_bytes, machine="h200", policy="lru")
    same = ebbtide.load(Path(folder) / "step.plan") == plan
    return trace.step_ns, simulated.step_ns, reactive.step_ns, plan.lower_bound_ns, same


def kept_and_gone() -> tuple[bool, bool]:
    """What takes the place of a kept storage that is gone can be kept, too; and NumPy's pin outlives the session's."""
    import numpy as np

    found = []
    with ebbtide.Session("1GiB", min_storage_bytes="4KiB", policy="demand", progress="off") as session:
        for _ in range(20):
            a = torch.ones(1 << 18)
            where = a.data_ptr()
            session.keep([a])
            del a
            b = torch.ones(1 << 18)
            if b.data_ptr() != where:
                continue
            session.keep({"b": b})
            _torch.evict([b])
            found.append(_torch.is_resident(b))
            view = b.numpy()
            break
    _torch.evict([b])
    return found == [True], _torch.is_resident(b) and bool(np.all(view == 1))


def peak_with_an_evaluation(evaluates: bool) -> int:
    """Of a session in percent, in whose first steps a large evaluation may lie."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters())
    with ebbtide.Session("60%", min_storage_bytes="4KiB", policy="demand", progress="off") as session:
        for number in range(4):
            net(torch.randn(64, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
            if evaluates and number == 0:
                with session.evaluating(), torch.no_grad():
                    net(torch.randn(8192, 256))
    return session.report().unbounded_peak_bytes
