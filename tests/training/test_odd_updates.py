"""Deferred updates of optimizers that do odd things: the bits of the script's own order, or a refusal."""

import copy
import gc
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim

from ebbtide.errors import OrderError
from tests.training.cases_deferred import adamw, compare, deferred, plain_step, session
from tests.training.cases_in_backward import WIDTH, Net, loss_of

QUIET = {"EBBTIDE_PROGRESS": "off"}
pytestmark = pytest.mark.in_child(QUIET)


def listed_twice() -> tuple[str, ...]:
    def make(net: Any) -> optim.Optimizer:
        return optim.AdamW([*net.parameters(), net.layers[0].weight], lr=1e-2, foreach=True)

    with pytest.warns(UserWarning, match="duplicate"):
        return compare(plain_step, make).updates


def in_the_same_memory() -> tuple[str, ...]:
    def make(net: Any) -> optim.Optimizer:
        net.layers[1].weight.data = net.layers[0].weight.data
        return optim.AdamW(net.parameters(), lr=1e-2, foreach=True)

    return compare(plain_step, make).updates


def in_slices_of_the_same_memory() -> tuple[str, ...]:
    """Each is a storage of its own that lies across the other's."""

    def make(net: Any) -> optim.Optimizer:
        whole, nbytes = torch.randn(2 * WIDTH, WIDTH).untyped_storage(), 4 * WIDTH * WIDTH
        for number, begin in enumerate((0, nbytes // 2)):
            with torch.no_grad():
                net.layers[number].weight.set_(whole[begin : begin + nbytes], 0, (WIDTH, WIDTH))
        return optim.AdamW(net.parameters(), lr=1e-2, foreach=True)

    return compare(plain_step, make).updates


def with_a_post_hook() -> tuple[str, ...]:
    def make(net: Any) -> optim.Optimizer:
        optimizer = adamw(net)
        optimizer.register_step_post_hook(lambda *_: None)
        return optimizer

    return compare(plain_step, make).updates


def test_settings_of_the_process() -> None:
    """They change between a step and what looks at its parameters."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        torch.set_default_dtype(torch.bfloat16)
        copy.deepcopy(net)
        torch.set_default_dtype(torch.float32)
        with torch.backends.mkldnn.flags(enabled=False):
            copy.deepcopy(net)

    deferred(step, lambda net: optim.ASGD(net.parameters(), lr=1e-2))


def test_an_array_as_rate() -> None:
    def make(net: Any) -> optim.Optimizer:
        return optim.SGD(net.parameters(), lr=np.array(0.1), momentum=0.9, foreach=False)  # type: ignore[arg-type]

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        optimizer.param_groups[0]["lr"] *= 0.5

    deferred(step, make)


def goes_on(net: Any, optimizer: Any, before: list[Tensor]) -> None:
    for p, was in zip(net.parameters(), before, strict=True):
        assert torch.equal(p, was)
    optimizer.step()


def test_after_a_step_that_raised_no_update_of_it_is_made() -> None:
    """Plain PyTorch makes no update at all; the notes that were taken before must not become any."""
    torch.manual_seed(0)
    said = ""
    with suppress(OrderError), session() as ours:  # the session's end says it again
        net = Net()
        optimizer = adamw(net)
        for number in range(3):
            plain_step(net, optimizer, number)
        before = [p.detach().clone() for p in net.parameters()]
        optimizer.zero_grad()
        loss_of(net, 3).backward()
        net.norm.bias.grad = torch.ones_like(net.norm.bias).to_sparse()
        with pytest.raises(RuntimeError, match="sparse"):
            optimizer.step()
        assert ours.report().updates
        with pytest.raises(OrderError) as found:
            goes_on(net, optimizer, before)
        said = str(found.value)
    assert "step raised an error" in said


def test_handlers_of_signals() -> None:
    """A job's handler that saves what it trains finds all parameters after the same step, wherever it comes."""
    calls, torn = 0, 0

    def step(net: Any, optimizer: Any, number: int) -> None:
        steps, ended = False, False

        def save(*_: object) -> None:
            nonlocal calls, torn
            if not steps and number:
                calls += 1
                torn += len({float(state["step"]) for state in optimizer.state.values()}) != 1
            if not ended:  # a signal that came just before the timer was stopped must not start it again
                signal.setitimer(signal.ITIMER_REAL, 0.001)

        before = signal.signal(signal.SIGALRM, save)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        try:
            optimizer.zero_grad()
            loss_of(net, number).backward()
            steps = True
            optimizer.step()
            steps = False
        finally:
            ended = True
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    deferred(step, steps=30)
    assert calls > 0
    assert torn == 0


def test_what_is_collected_looks() -> None:
    """Python's collector comes anywhere, and calls ``__del__`` of what it finds: all parameters are after one step."""
    looks = 0

    class Looking:
        def __init__(self, net: Any, optimizer: Any, number: int) -> None:
            self.own, self.of = self, (net, optimizer, number)

        def __del__(self) -> None:
            nonlocal looks
            net, optimizer, number = self.of
            steps = {float(optimizer.state[p]["step"]) for p in net.parameters() if p in optimizer.state}
            assert steps <= {number + 1.0}
            looks += 1

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        gc.collect()
        Looking(net, optimizer, number)
        gc.set_threshold(20 + 7 * number)
        copy.deepcopy(net)
        gc.set_threshold(*thresholds)
        gc.collect()

    thresholds = gc.get_threshold()
    raised = []
    sys.unraisablehook = raised.append  # type: ignore[assignment]
    deferred(step, steps=40)
    assert raised == [], [f"{each.exc_value!r}" for each in raised]
    assert looks


class Late(Exception):
    """It cannot be made anew of its type alone."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def test_a_handler_that_raises_while_an_operator_looks() -> None:
    """The operator finds every update made, those after the one that the signal came in, too."""
    from ebbtide.update_order.noted_update import NotedUpdate

    carry_out, poked = NotedUpdate.carry_out, []

    def late(*_: object) -> None:
        raise Late(7)

    def carry_out_amid_signals(update: Any) -> None:
        if not poked:
            poked.append(update)
            signal.raise_signal(signal.SIGUSR1)
        carry_out(update)

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        before = signal.signal(signal.SIGUSR1, late)
        NotedUpdate.carry_out = carry_out_amid_signals  # type: ignore[method-assign]
        poked.clear()
        try:
            heard = 7
            try:
                with torch.no_grad():
                    torch._foreach_mul_(list(net.parameters()), 0.5)
                    len(poked)  # what the handler raised comes here at the latest
            except Late as error:
                heard = error.number
            assert heard == 7
        finally:
            NotedUpdate.carry_out = carry_out  # type: ignore[method-assign]
            signal.signal(signal.SIGUSR1, before)

    deferred(step)
    assert poked


def test_a_full_stack() -> None:
    """An operator is called where the script's calls are as deep as Python allows."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        plain_step(net, optimizer, number)
        parameters, halved = list(net.parameters()), list[bool]()

        def deeper() -> None:
            try:
                deeper()
            except RecursionError:
                if not halved:
                    torch._foreach_mul_(parameters, 0.5)
                    halved.append(True)

        with torch.no_grad():
            deeper()
        assert halved

    deferred(step)


@pytest.mark.parametrize("ends", [False, True])
def test_an_operator_that_went_on_without_an_update_ends_the_training(ends: bool) -> None:
    """The operator that looks cannot be stopped, so training ends at the next step, or with the session."""
    from ebbtide.update_order.deferred import Deferred

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    net, check = Net(), Deferred._check_step
    optimizer = adamw(net)

    def train() -> None:
        with session():
            for number in range(4):
                plain_step(net, optimizer, number)
            Deferred._check_step = no_memory  # type: ignore[method-assign]
            with suppress(MemoryError), torch.no_grad():
                torch._foreach_norm(list(net.parameters()))
                len(ends * "x")  # what was raised comes here at the latest
            Deferred._check_step = check  # type: ignore[method-assign]
            if not ends:
                plain_step(net, optimizer, 4)
                raise AssertionError

    with pytest.raises(OrderError) as found:
        train()
    assert "could not be begun" in str(found.value)


def test_a_handler_that_raises() -> None:
    """It ends a batch, and training goes on as in plain PyTorch."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        def late(*_: object) -> None:
            raise Late(number)

        def poke(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            signal.raise_signal(signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, late)
        hook = net.layers[2].register_forward_pre_hook(poke)
        with suppress(Late):
            plain_step(net, optimizer, number)
        hook.remove()
        signal.signal(signal.SIGUSR1, before)
        plain_step(net, optimizer, number)

    deferred(step)


@pytest.mark.parametrize("case", [listed_twice, in_the_same_memory, in_slices_of_the_same_memory, with_a_post_hook])
def test_odd_optimizers_are_left_as_written(case: Callable[[], tuple[str, ...]]) -> None:
    assert ("a hook of its step" if case is with_a_post_hook else "parameters share memory") in case()[-1]
