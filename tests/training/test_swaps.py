"""Tensors are swapped in the middle of training, in every order of updates: nothing of ours refers to them.

``torch.utils.swap_tensors`` refuses a tensor to which anybody else refers. PyTorch swaps where modules are converted
or loaded, by request, and where parameters are subclasses of tensors (FSDP2, torchao).
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils import swap_tensors

import ebbtide
from ebbtide.errors import OrderError
from tests.training.cases_in_backward import Training, adamw, compare, loss_of

QUIET = {"EBBTIDE_PROGRESS": "off"}
ORDERS = ("as-written", "deferred", "in-backward")
pytestmark = pytest.mark.in_child(QUIET)
Step = Callable[[Any, Any, int], None]


@contextmanager
def swapping() -> Iterator[None]:
    """Have modules swap where they would set ``data`` or copy."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def two_parameters(net: Any, optimizer: Any) -> None:
    swap_tensors(net.layers[0].weight, net.layers[3].weight)


def with_a_new_one(net: Any, optimizer: Any) -> None:
    weight = net.layers[2].weight
    swap_tensors(weight, nn.Parameter(weight.detach() * 0.5))


def with_a_frozen_one(net: Any, optimizer: Any) -> None:
    swap_tensors(net.layers[0].weight, net.frozen.weight)


def two_states(net: Any, optimizer: Any) -> None:
    state = optimizer.state[net.layers[1].weight]
    swap_tensors(state["exp_avg"], state["exp_avg_sq"])


def all_are_loaded(net: Any, optimizer: Any) -> None:
    with swapping():
        net.load_state_dict({name: value * 0.9 for name, value in net.state_dict().items()})


def all_are_converted(net: Any, optimizer: Any) -> None:
    with swapping():
        net.double()
        net.float()


SWAPS = {
    each.__name__: each
    for each in (two_parameters, with_a_new_one, with_a_frozen_one, two_states, all_are_loaded, all_are_converted)
}
WHEN = ("before backward", "before step", "after step")


def _step(swap: Callable[[Any, Any], None], when: str) -> Step:
    def step(net: Any, optimizer: Any, number: int) -> None:
        swaps_at = when if number in (2, 4) else ""
        optimizer.zero_grad()
        if swaps_at == "before backward":
            swap(net, optimizer)
        loss_of(net, number).backward()
        if swaps_at == "before step":
            swap(net, optimizer)
        optimizer.step()
        if swaps_at == "after step":
            swap(net, optimizer)

    return step


def _session(order: str) -> ebbtide.Session:
    return ebbtide.Session(fast="50%", optimizer=order, policy="demand", min_storage_bytes=4096, checksum=True)


def _compare(order: str, step: Step, make: Callable[[nn.Module], Any] = adamw) -> str:
    """Compare with a plain run. Return what a session says that refuses it, or "". Plain PyTorch never does."""
    try:
        compare(step, make, begin=lambda: _session(order))
    except OrderError as error:
        return error.what
    return ""


@pytest.mark.alike
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("order", ORDERS)
def test_swapped_tensors_train_to_the_same_bits(order: str, swap: str, when: str) -> None:
    """In backward, what is swapped may have been updated already, or its gradient be gone: then there is an error."""
    refused = _compare(order, _step(SWAPS[swap], when))
    if order != "in-backward" or (when == "before backward" and swap != "with_a_frozen_one"):
        assert refused == ""
    elif swap == "with_a_frozen_one":  # nobody zeroes the gradients of what the optimizer does not have
        assert "gradients" in refused or when == "before step"
    elif when == "before step":
        assert "uses a parameter or state before step" in refused


@pytest.mark.parametrize("order", ORDERS)
def test_parameters_of_two_optimizers_are_swapped(order: str) -> None:
    """A parameter of one with a parameter of the other."""

    class Both:
        def __init__(self, net: Any) -> None:
            self.optimizers = [optim.AdamW(net.layers[:2].parameters()), optim.SGD(net.layers[2:].parameters(), lr=0.1)]
            self.state_dict = self.optimizers[0].state_dict

        def zero_grad(self) -> None:
            for optimizer in self.optimizers:
                optimizer.zero_grad()

        def step(self) -> None:
            for optimizer in self.optimizers:
                optimizer.step()

    assert _compare(order, _step(two_parameters, "before backward"), Both) == ""


@pytest.mark.parametrize("order", ORDERS)
def test_nobody_else_refers_to_what_is_trained(order: str) -> None:
    """After steps, no parameter, gradient or state has a reference that it would not have in plain PyTorch."""

    def count() -> list[tuple[int, int]]:
        training = Training(adamw)
        for number in range(4):
            _step(two_parameters, "")(training.net, training.optimizer, number)
        states = [value for state in training.optimizer.state.values() for value in state.values()]
        tensors = [*training.net.parameters(), *states]
        return [(weakref.getweakrefcount(tensor), tensor._use_count()) for tensor in tensors]

    plain = count()
    with _session(order):
        assert count() == plain
