"""Memory that is kept for what is made anew."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ebbtide
from ebbtide import _torch
from tests.training.looks_at_what_is_made_anew import recipes


def add_gradients(steps: int) -> tuple[list[tuple[int, ...]], list[Tensor]]:
    """Return the strides of a gradient that comes by two ways, and then the weights."""
    torch.manual_seed(0)
    first, second, third = (nn.Parameter(torch.randn(rows, 1)) for rows in (4096, 37, 4096))
    optimizer = torch.optim.SGD([first, second, third], lr=1e-3)
    strides: list[tuple[int, ...]] = []
    for _ in range(steps):
        inputs, one, other = torch.randn(4096, 37), torch.randn(4096, 1), torch.randn(1, 4096).t()
        optimizer.zero_grad()
        features, x = first * 3, inputs @ second
        x.register_hook(lambda gradient: strides.append(gradient.stride()))
        ((x * third * one).sum() * 1e-2 + ((x - features) * other).sum() * 1e-2).backward()
        optimizer.step()
    return strides, [parameter.detach() for parameter in (first, second, third)]


@pytest.mark.in_child({"EBBTIDE_REMAKE": "check"})
def test_autograd_adds_gradients_in_place_where_it_does_plainly() -> None:
    """It does so where nobody else has a gradient's storage. A sum elsewhere may have other strides."""
    for add, fast in ((add_gradients, "50%"), (add_gradients_of_forward, "90%")):
        _are_added_as_plainly(add, fast)


def _are_added_as_plainly(add: Callable[[int], tuple[list[tuple[int, ...]], list[Tensor]]], fast: str) -> None:
    strides, weights = add(10)
    settings: Any = {"min_storage_bytes": 4096, "chaos_rate": 0.3, "wait_for_plan": True}
    for policy, seed in (("demand", 0), ("demand", 1), ("ebbtide", 2), ("ebbtide", 3)):
        with ebbtide.Session(fast=fast, policy=policy, chaos_seed=seed, **settings) as ours:
            seen, ended = add(10)
        assert seen == strides
        assert all(map(torch.equal, ended, weights))
        assert sum(step.made_anew_bytes for step in ours.report().steps) > 0


class GradientsInForward(torch.autograd.Function):
    """A loss that computes its gradient in its forward pass, as fused ones do, and keeps what is made of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, kept: list[Tensor]) -> Tensor:
        gradient = torch.empty_strided(x.shape, (1, len(x))).copy_(x * scale)
        kept.append(gradient.abs())
        ctx.save_for_backward(gradient)
        return (gradient * x).sum() / 2

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0], None, None


def add_gradients_of_forward(steps: int) -> tuple[list[tuple[int, ...]], list[Tensor]]:
    """The same where one of the two gradients is made in the forward pass."""
    torch.manual_seed(0)
    first, scale = nn.Parameter(torch.randn(37, 1)), torch.randn(4096, 1)
    optimizer = torch.optim.SGD([first], lr=1e-3)
    strides: list[tuple[int, ...]] = []
    for _ in range(steps):
        kept: list[Tensor] = []
        optimizer.zero_grad()
        x = torch.randn(4096, 37) @ first
        x.register_hook(lambda gradient: strides.append(gradient.stride()))
        loss = (x.t() * torch.randn(1, 4096)).sum() * 1e-2
        (loss + GradientsInForward.apply(x, scale, kept) * 1e-2).backward()
        optimizer.step()
    return strides, [first.detach()]


@pytest.mark.in_child
def test_what_is_read_to_make_a_storage_anew_has_ended_for_the_script() -> None:
    """Finalizers and weak references of a storage see it end as plainly, though what was made of it needs its bytes."""
    with ebbtide.Session(fast="1GiB"), recipes(0):
        one = torch.arange(float(1 << 20))
        made, expected = one * 2, torch.from_numpy(np.arange(0, 2 << 20, 2, dtype=np.float32))
        ended: list[str] = []
        weakref.finalize(one.untyped_storage(), ended.append, "ended")
        del one
        assert ended == ["ended"]
        _torch.evict([made])
        assert torch.equal(made, expected)
        assert _torch.counters()["made_anew_bytes"] > 0
        live = _torch.counters()["live_bytes"]
        del made
        assert _torch.counters()["live_bytes"] == live - (2 << 22)  # what it read ends with it
