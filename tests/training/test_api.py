"""The Python interface on real training: steps by calls, evaluation, what is kept, and the pipeline."""

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
from tests.helpers import child

pytestmark = pytest.mark.in_child

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


def test_the_pipeline_can_be_called(tmp_path: Path) -> None:
    """Record, load, plan, save, simulate."""
    path = tmp_path / "step.trace"
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
    ebbtide.save(plan, tmp_path / "step.plan")
    simulated = ebbtide.simulate(trace, plan, machine="h200")
    from_file = ebbtide.simulate(path, tmp_path / "step.plan", machine="h200")
    assert from_file.step_ns == simulated.step_ns
    with pytest.raises(SettingError, match="the plan lru cannot be read"):
        ebbtide.simulate(trace, "lru", machine="h200")  # a policy's name, without its argument's
    reactive = ebbtide.simulate(trace, fast=plan.budget_bytes, machine="h200", policy="lru")
    assert ebbtide.load(tmp_path / "step.plan") == plan
    assert plan.lower_bound_ns <= simulated.step_ns <= reactive.step_ns
    assert trace.step_ns <= simulated.step_ns


def test_what_takes_the_place_of_what_was_kept_can_be_kept_and_others_pins_hold() -> None:
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
    assert found == [True]
    assert _torch.is_resident(b)
    assert np.all(view == 1)


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


@pytest.mark.alike
@pytest.mark.parametrize(("keeps", "evaluates"), [(True, True), (True, False), (False, True), (False, False)])
def test_steps_by_calls_are_planned_and_change_no_bit(keeps: bool, evaluates: bool) -> None:
    plain = plainly(evaluates)
    ours = by_calls(keeps, evaluates)
    assert (ours.weights, ours.losses) == (plain.weights, plain.losses)
    assert ours.modes[-3:] == ("planned",) * 3
    assert ours.evicted_bytes > 0
    assert ours.within_budget
    assert ours.stats["written_bytes"] <= ours.written_bytes  # of the whole run, the steps' and what lies between
    assert 0 < ours.written_in_steps <= ours.written_bytes
    assert ours.always_there == keeps
    assert ours.stats["reserved_bytes.all.peak"] <= ours.stats["reserved_bytes.limit"]
    assert 0 < ours.stats["active_bytes.all.current"] <= ours.stats["reserved_bytes.all.current"]


def test_what_is_kept_stays_also_where_everything_leaves() -> None:
    plain = plainly(False)
    ours = by_calls(True, False, "evict-all")
    assert (ours.weights, ours.losses) == (plain.weights, plain.losses)
    assert ours.always_there
    assert ours.evicted_bytes > 0


@pytest.mark.here
def test_a_percentage_is_of_the_steps_alone() -> None:
    with_one, without = (child.run(peak_with_an_evaluation, evaluates) for evaluates in (True, False))
    assert without <= with_one <= 1.05 * without
