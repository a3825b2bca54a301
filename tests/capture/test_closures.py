"""A closure that is given to ``optimizer.step`` is no part of the optimizer, and its gradients are gradients."""

from collections.abc import Callable

import pytest
import torch

from ebbtide.capture.optimizer_events import subscribe, unsubscribe
from ebbtide.capture.optimizer_hooks import BeforeUpdates, OptimizerHooks
from ebbtide.ir.run_report import KINDS

GRADIENT = KINDS.index("gradient")


class Native:
    """Notes whether an optimizer runs, and the tensors of each kind."""

    def __init__(self) -> None:
        self.in_optimizer = False
        self.seen: list[tuple[int, torch.Tensor]] = []

    def enter_optimizer(self, enters: bool) -> None:
        self.in_optimizer = enters

    def classify(self, tensors: list[torch.Tensor], kind: int) -> None:
        self.seen += [(kind, tensor) for tensor in tensors]


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_a_closure_is_no_part_of_the_optimizer(kind: Callable[..., torch.optim.Optimizer], by_name: bool) -> None:
    native = Native()
    hooks = OptimizerHooks(lambda: None, lambda: None, lambda: None, native)
    subscribe(hooks)
    try:
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = kind([weight], lr=0.1)
        inside: list[bool] = []

        def closure() -> torch.Tensor:
            inside.append(native.in_optimizer)
            optimizer.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            return loss

        returned = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    finally:
        unsubscribe(hooks)
    assert inside
    assert not any(inside)
    assert not native.in_optimizer
    assert returned is not None
    assert float(returned.detach()) == 4.0
    assert any(kind == GRADIENT and tensor is weight.grad for kind, tensor in native.seen)


def test_a_closure_that_raises_leaves_the_optimizer_as_the_hooks_do() -> None:
    native = Native()
    hooks = OptimizerHooks(lambda: None, lambda: None, lambda: None, native)
    subscribe(hooks)
    try:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(4))], lr=0.1)

        def closure() -> float:
            raise ValueError("of the closure")

        with pytest.raises(ValueError, match="of the closure"):
            optimizer.step(closure)
    finally:
        unsubscribe(hooks)
    assert not native.in_optimizer


def test_only_the_first_update_of_an_iteration_is_looked_at_before() -> None:
    looked_at: list[int] = []
    before = BeforeUpdates(looked_at.append)
    optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.ones(size))]) for size in (3, 5)]
    subscribe(before)
    try:
        for _ in range(2):
            before.begin()
            for optimizer in optimizers:
                optimizer.step()
    finally:
        unsubscribe(before)
    assert looked_at == [12, 12]
