"""A closure that PyTorch's own ``optimizer.step`` is given is no part of it, and its gradients are gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

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
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS, type("Named", (torch.optim.SGD,), {})])
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


class Asked:
    """A closure that is an object, and wants to be called alone."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __call__(self) -> float:
        self.weight.grad = torch.ones(4)
        return 1.0


def test_a_closure_is_asked_for_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    listening = (OptimizerHooks(lambda: None, lambda: None, lambda: None, Native()), BeforeUpdates(lambda: None))
    for each in listening:
        subscribe(each)
    try:
        assert optimizer.step(Asked(weight)) == 1.0  # type: ignore[call-overload]
    finally:
        for each in listening:
            unsubscribe(each)
    assert weight.tolist() == [0.5] * 4


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


def test_an_iteration_is_looked_at_until_it_has_updated_anything() -> None:
    done: list[str] = []
    before = BeforeUpdates(lambda: done.append("looked"))
    weight = torch.nn.Parameter(torch.ones(3))
    optimizers = [torch.optim.SGD([weight]), torch.optim.SGD([torch.nn.Parameter(torch.ones(5))])]
    subscribe(before)
    try:
        for _ in range(2):
            before.begin()
            for _ in range(2):
                done.append("backward")
                weight.square().sum().backward()
            for optimizer in optimizers:
                done.append("step")
                optimizer.step()
            weight.square().sum().backward()
            torch.autograd.grad(weight.square().sum(), weight)
    finally:
        unsubscribe(before)
    assert done == ["backward", "looked", "backward", "looked", "step", "looked", "step"] * 2


def test_a_closure_is_looked_at_once_when_it_has_ended_for_the_first_time() -> None:
    done: list[str] = []
    before = BeforeUpdates(lambda: done.append("looked"))
    weight = torch.nn.Parameter(torch.ones(3))

    def closure() -> torch.Tensor:
        loss = (weight**4).sum()
        loss.backward()
        done.append("closure")
        return loss

    subscribe(before)
    try:
        torch.optim.LBFGS([weight], lr=0.1, max_iter=3).step(closure)
    finally:
        unsubscribe(before)
    assert done[:3] == ["looked", "closure", "looked"]
    assert len(done) > 3
    assert {*done[3:]} == {"closure"}  # LBFGS has changed the parameter


def test_a_hook_of_the_scripts_gets_the_closure_that_it_was_given() -> None:
    given: list[object] = []
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(4))], lr=0.1)
    optimizer.register_step_post_hook(lambda _, args, kwargs: given.append(args[1]))

    def closure() -> float:
        return 0.0

    hooks = OptimizerHooks(lambda: None, lambda: None, lambda: None, Native())
    subscribe(hooks)
    try:
        optimizer.step(closure)
    finally:
        unsubscribe(hooks)
    assert given == [closure]


def test_a_step_of_the_scripts_own_gets_what_it_was_given() -> None:
    """A net can be called, too, and a closure may have attributes that the step reads."""
    given: list[object] = []

    class Mine(torch.optim.SGD):
        def step(self, what: Any) -> None:  # type: ignore[override]
            given.append(what)
            if what is closure:
                super().step(what)

    hooks = OptimizerHooks(lambda: None, lambda: None, lambda: None, Native())
    net = torch.nn.Linear(2, 2)

    def closure() -> float:
        return 0.0

    subscribe(hooks)
    try:
        for what in (net, closure):
            Mine(net.parameters(), lr=0.1).step(what)
    finally:
        unsubscribe(hooks)
    assert given[0] is net
    assert given[1] is closure


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


class Own(torch.nn.Parameter):
    """Knows few functions, and has attributes of its own."""

    asked = 0

    @property
    def grad(self) -> Any:
        Own.asked += 1
        return super().grad

    @grad.setter
    def grad(self, value: Any) -> None:
        torch._C.TensorBase.grad.__set__(self, value)

    def numel(self) -> int:
        raise NotImplementedError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "layout" not in str(getattr(func, "__self__", ""))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_no_function_mode_and_no_type_of_the_scripts_hears_of_what_is_looked_at() -> None:
    def calls() -> tuple[int, int]:
        torch.manual_seed(0)
        Own.asked = 0
        weight = Own(torch.ones(3))
        optimizer = torch.optim.Adam([weight], foreach=False)
        with Counting() as mode:
            for _ in range(3):
                optimizer.zero_grad()
                weight.square().sum().backward()
                optimizer.step()
        return mode.calls, Own.asked

    plainly = calls()
    hooks = OptimizerHooks(lambda: None, lambda: None, lambda: None, Native())
    before = BeforeUpdates(lambda: None)
    subscribe(hooks)
    subscribe(before)
    try:
        assert calls() == plainly
    finally:
        unsubscribe(hooks)
        unsubscribe(before)
