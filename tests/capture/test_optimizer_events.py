"""Subscribers hear of optimizers and of backward passes in one order, and PyTorch is left as it was found."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint

from ebbtide.capture.optimizer_events import Call, Place, Subscriber, subscribe, unsubscribe

ENGINE: Any = torch.autograd


class Listener(Subscriber):
    """Writes what it hears into a list that it shares."""

    def __init__(self, at: Place, heard: list[str]) -> None:
        self.place = at  # type: ignore[misc]
        self.name = at.name.lower()
        self.heard = heard
        self.changed: Call | None = None

    def built(self, optimizer: Optimizer) -> None:
        self.heard.append(f"{self.name} built")

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
        self.heard.append(f"{self.name} before{' a closure' if len(args) > 1 else ''}")
        return self.changed

    def after_step(self, optimizer: Optimizer) -> None:
        self.heard.append(f"{self.name} after")

    def around_backward(self, run: Callable[[], Any], roots: Sequence[torch.Tensor], trains: bool) -> Any:
        self.heard.append(f"{self.name} {'trains' if trains else 'runs'} {len(roots)}")
        try:
            return run()
        finally:
            self.heard.append(f"{self.name} ran")


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture
def listeners(heard: list[str]) -> Iterator[dict[Place, Listener]]:
    """One for each place, the last place first to subscribe."""
    made = {at: Listener(at, heard) for at in reversed(Place)}
    for listener in made.values():
        subscribe(listener)
    yield made
    for listener in made.values():
        unsubscribe(listener)


def test_the_order_is_that_of_places(listeners: dict[Place, Listener], heard: list[str]) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = SGD([weight], lr=0.5)
    assert heard == ["budget built", "update_order built", "steps built", "watch built"]
    heard.clear()
    weight.sum().backward()
    assert heard == [
        *("watch trains 1", "steps trains 1", "update_order trains 1", "budget trains 1"),
        *("budget ran", "update_order ran", "steps ran", "watch ran"),
    ]
    heard.clear()
    optimizer.step()
    assert heard == [
        *("budget before", "update_order before", "steps before", "watch before"),
        *("budget after", "update_order after", "steps after", "watch after"),
    ]
    assert torch.equal(weight.detach(), torch.full((2,), 0.5))


def test_later_subscribers_see_what_an_earlier_one_makes_of_a_call(
    listeners: dict[Place, Listener], heard: list[str]
) -> None:
    optimizer = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.5)
    heard.clear()
    listeners[Place.UPDATE_ORDER].changed = (optimizer, lambda: 3.0), {}
    assert optimizer.step() == 3.0  # type: ignore[func-returns-value]
    assert heard[1:4] == ["update_order before", "steps before a closure", "watch before a closure"]


def test_only_passes_that_add_to_gradients_train_and_none_within_another(
    listeners: dict[Place, Listener], heard: list[str]
) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    torch.autograd.grad(weight.sum(), weight)
    assert heard[0] == "watch runs 1"
    heard.clear()
    product = checkpoint(lambda factor: factor * factor, weight * 2, use_reentrant=True)
    torch.autograd.backward([product.sum(), weight.sum()])
    by_watch = [word for word in heard if word.startswith("watch")]
    assert by_watch == ["watch trains 2", "watch runs 1", "watch ran", "watch ran"]


def test_the_last_one_leaves_pytorch_as_it_was(heard: list[str]) -> None:
    before = Optimizer.add_param_group, ENGINE._engine_run_backward
    first, second = Listener(Place.STEPS, heard), Listener(Place.STEPS, heard)
    subscribe(first)
    subscribe(second)
    assert len(_global_optimizer_pre_hooks) == len(_global_optimizer_post_hooks) == 1
    unsubscribe(first)
    unsubscribe(first)
    SGD([torch.nn.Parameter(torch.ones(2))])
    assert heard == ["steps built"]
    unsubscribe(second)
    assert not _global_optimizer_pre_hooks
    assert not _global_optimizer_post_hooks
    assert before == (Optimizer.add_param_group, ENGINE._engine_run_backward)
    SGD([torch.nn.Parameter(torch.ones(2))])
    assert heard == ["steps built"]


def test_what_pytorch_puts_back_itself_hears_on(listeners: dict[Place, Listener], heard: list[str]) -> None:
    """Its compiler puts itself in front of the engine, and then puts one name back by another."""
    if not hasattr(torch.compiler, "_patch_engine_backward"):
        pytest.skip("this version's compiler does not")
    with torch.compiler._patch_engine_backward():
        pass
    torch.nn.Parameter(torch.ones(2)).sum().backward()
    assert [word for word in heard if word.startswith("watch")] == ["watch trains 1", "watch ran"]


def test_what_another_library_wraps_meanwhile_stays_and_works(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was lost with the session once."""
    weight = torch.nn.Parameter(torch.ones(2))
    first, second = Listener(Place.STEPS, heard), Listener(Place.WATCH, heard)
    subscribe(first)
    ours = ENGINE._engine_run_backward

    def theirs(*args: Any, **kwargs: Any) -> Any:
        heard.append("theirs")
        return ours(*args, **kwargs)

    monkeypatch.setattr(ENGINE, "_engine_run_backward", theirs)
    weight.sum().backward()
    assert heard == ["theirs", "steps trains 1", "steps ran"]
    unsubscribe(first)
    heard.clear()
    assert ENGINE._engine_run_backward is theirs
    weight.sum().backward()
    assert heard == ["theirs"]
    subscribe(second)
    weight.sum().backward()
    assert heard == ["theirs", "watch trains 1", "theirs", "watch ran"]
    unsubscribe(second)
    assert ENGINE._engine_run_backward is theirs
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((2,), 3.0))
