"""Train a case plainly, then under sessions, and say exactly what differs and what moved.

All runs happen in one process, so they share threads, libraries and caches; only the session lies between them.
"""

import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ebbtide.settings import PAGE_BYTES
from tests.helpers import machine
from tests.helpers.zoo import FAMILIES, Case
from tests.helpers.zoo_features import FEATURES

CASES = {case.name: case for case in FAMILIES + FEATURES}
MOVING_KINDS = ("parameter", "gradient", "optimizer_state", "activation")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one comparison found; plain data, so that it can come from a child process. Traffic is that of bounded
    steps only. ``unbounded_peak_bytes`` is the step's peak of live tensor bytes."""

    compared: int
    differences: tuple[str, ...]
    evicted_bytes: Mapping[str, int]
    fetched_bytes: Mapping[str, int]
    modes: tuple[str, ...]
    budget_violated: bool
    trouble: str
    arena_budget_bytes: int
    unbounded_peak_bytes: int
    adopted_bytes: int
    made_anew_bytes: int


@dataclass(slots=True)
class Run:
    """A model in training, and its losses so far (tensors, to be compared to the last bit)."""

    case: Case
    model: nn.Module
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    losses: list[Tensor] = field(default_factory=list)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that training leaves behind: losses, weights, gradients, buffers, optimizer state."""
        for step, loss in enumerate(self.losses):
            yield f"loss {step}", loss
        for name, parameter in self.model.named_parameters():
            yield f"weight {name}", parameter.detach()
            if parameter.grad is not None:
                yield f"gradient {name}", parameter.grad
        for name, buffer in self.model.named_buffers():
            yield f"buffer {name}", buffer
        for index, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                yield f"state {index} {name}", torch.as_tensor(value)


def begin(case: Case, seed: int = 0) -> Run:
    """A model and its optimizer, the same for the same seed."""
    torch.manual_seed(seed)
    model = case.model().train()
    return Run(case, model, case.optimizer(model.parameters()), torch.Generator().manual_seed(seed + 1))


def step(run: Run) -> None:
    """One training step, as a script would write it."""
    case = run.case
    run.optimizer.zero_grad(set_to_none=not case.keep_gradients)
    for _ in range(case.micro_batches):
        batch = case.batch(run.generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
            loss = case.loss(run.model, batch) / case.micro_batches
        loss.backward()
        run.losses.append(loss.detach())
    if case.clip is not None:
        nn.utils.clip_grad_norm_(run.model.parameters(), case.clip)
    run.optimizer.step()


def train(run: Run, steps: int, session: Any = None) -> None:
    for _ in range(steps):
        with session.step() if session else nullcontext():
            step(run)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A finished run's tensors as plain bytes: a session adopts every tensor it finds, and must not see these."""

    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...], bytearray]]

    @staticmethod
    def of(run: Run) -> "Snapshot":
        return Snapshot(
            {
                name: (tensor.dtype, tuple(tensor.shape), bytearray(tensor.reshape(-1).view(torch.uint8).numpy()))
                for name, tensor in run.tensors()
            }
        )

    def differences(self, run: Run) -> tuple[str, ...]:
        """What only one side has, or is not the same to the last bit, where and by how much; losses first, step by
        step, and at the end the machine.

        A lost page is a thousand elements that are far off; a sum in another order is most of them, by their last bit.
        """
        actual = dict(run.tensors())
        one_sided = [f"only one run has: {name}" for name in self.tensors.keys() ^ actual.keys()]
        both = [name for name in self.tensors if name in actual]
        unequal = [f"{name}: {how}" for name in both if (how := self._unlike(name, actual[name]))]
        return tuple([*one_sided, *unequal, machine.describe()] if one_sided or unequal else ())

    def _unlike(self, name: str, actual: Tensor) -> str:
        dtype, shape, content = self.tensors[name]
        expected = torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(shape)
        if (actual.dtype, actual.shape) != (dtype, shape):
            return f"{actual.dtype} {tuple(actual.shape)}, not {dtype} {shape}"
        width = actual.element_size()
        ours, plain = (x.reshape(-1).view(torch.uint8).reshape(-1, width) for x in (actual.contiguous(), expected))
        wrong = (ours != plain).any(1).nonzero().flatten()
        if len(wrong) == 0:
            return ""
        off = (actual.double() - expected.double()).abs()
        zeros = int((ours[wrong] == 0).all(1).sum())
        first, last = (f"{at} (page {at * width // PAGE_BYTES})" for at in (int(wrong[0]), int(wrong[-1])))
        return (
            f"{len(wrong)} of {off.numel()} elements of {width} bytes, from {first} to {last}, {zeros} of them 0 here, "
            f"by at most {off.max():.2g} of {expected.double().abs().max():.2g}"
        )


def train_plainly(case: Case, steps: int) -> Snapshot:
    """What a run without a session ends with; its tensors are gone when this returns."""
    run = begin(case)
    train(run, steps)
    return Snapshot.of(run)


def train_in_turn(cases: Sequence[Case]) -> Snapshot:
    """The same of a run that makes a step of each case, which all have one model."""
    run = begin(cases[0])
    for run.case in cases:
        train(run, 1)
    return Snapshot.of(run)


def compare(name: str, fast: str, steps: int) -> Verdict:
    """Run a case plainly, then from its birth under a session with budget ``fast``."""
    return beside(train_plainly(CASES[name], steps), name, fast, steps)


def beside(plain: Snapshot, name: str, fast: str, steps: int) -> Verdict:
    return verdict(plain, *bounded(name, fast, steps))


def bounded(name: str, fast: str, steps: int) -> tuple[Run, Any]:
    """A case that was trained from its birth under a session, and the session."""
    import ebbtide

    with ebbtide.Session(fast=fast) as session:
        ours = begin(CASES[name])
        train(ours, steps, session)
    return ours, session


def compare_ways(name: str, steps: int, ways: Mapping[str, tuple[str, Mapping[str, str]]]) -> dict[str, Verdict | str]:
    """The same with several sessions after one plain run; each has a budget, and variables that it reads. What one
    raises is told in its place."""
    plain = train_plainly(CASES[name], steps)
    verdicts: dict[str, Verdict | str] = {}
    for way, (fast, env) in ways.items():
        os.environ.update(env)
        try:
            verdicts[way] = beside(plain, name, fast, steps)
        except Exception:
            verdicts[way] = traceback.format_exc()
        for variable in env:
            del os.environ[variable]
    return verdicts


def compare_adopted(name: str, fast: str, steps: int) -> Verdict:
    """The same, but model and optimizer are built, and take one step, before the session begins."""
    import ebbtide

    case = CASES[name]
    plain = train_plainly(case, 1 + steps)
    ours = begin(case)
    train(ours, 1)
    with ebbtide.Session(fast=fast) as session:
        train(ours, steps, session)
    return verdict(plain, ours, session)


def verdict(plain: Snapshot, ours: Run, session: Any) -> Verdict:
    report = session.report()
    bounded = [step for step in report.steps if step.mode != "recorded"]
    return Verdict(
        compared=len(plain.tensors),
        differences=plain.differences(ours),
        evicted_bytes={kind: sum(getattr(step.evicted_bytes, kind) for step in bounded) for kind in MOVING_KINDS},
        fetched_bytes={kind: sum(getattr(step.fetched_bytes, kind) for step in bounded) for kind in MOVING_KINDS},
        modes=tuple(str(step.mode) for step in report.steps),
        budget_violated=report.budget_violated,
        trouble=report.trouble,
        arena_budget_bytes=report.arena_budget_bytes,
        unbounded_peak_bytes=report.unbounded_peak_bytes,
        adopted_bytes=report.adopted_bytes,
        made_anew_bytes=sum(step.made_anew_bytes for step in bounded),
    )


def compare_plain(name: str, steps: int) -> tuple[str, ...]:
    """Two plain runs: what differs here would differ under any session, so it must be nothing."""
    first = train_plainly(CASES[name], steps)
    second = begin(CASES[name])
    train(second, steps)
    return first.differences(second)
