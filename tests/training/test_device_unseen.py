"""Tensors of the tests' device reached without operators."""

from typing import Any

import pytest
import torch
from torch import Tensor

import ebbtide
import ebbtide._torch as _torch
from tests.device import lagging
from tests.training.cases_device_memory import (
    NUMBERS,
    away,
    held_for_a_while,
    is_all,
    numbers,
    session,
    streams_of_copies,
)
from tests.training.device_jobs import DEVICE, KEPT

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
pytestmark = pytest.mark.in_child(ONE_THREAD, lagging.load)


def test_code_without_operators() -> None:
    """What is away comes back, and stays until the step ends. What is written is not lost."""
    with ebbtide.Session("1GiB", policy="demand", **KEPT) as opened:
        with opened.step():
            tensor, other = away(3), away(4)
            assert is_all(lagging.load().over(tensor) + 1, 4)
            lagging.load().fill(other, 0)
            assert _torch.is_resident(tensor)
            assert _torch.is_resident(other)
            assert _torch.evict([tensor, other]) == 0
        with opened.step():
            assert _torch.evict([tensor, other]) == 8 * NUMBERS
            assert is_all(tensor, 3)
            assert is_all(other, 0)
            written = _torch.counters()["tier_written_bytes"][0]
            assert _torch.evict([tensor]) > 0
            assert _torch.counters()["tier_written_bytes"][0] == written  # it was clean
            assert is_all(tensor, 3)
            assert lagging.load().first_byte(tensor) == 0
            lagging.load().fill(tensor, 0)
        with opened.step():
            assert _torch.evict([tensor]) > 0
            assert is_all(tensor, 0)


def test_storages_are_compared() -> None:
    """PyTorch asks whose memory it is, by address, without an operator: nobody needs the contents for that."""
    with session():
        tensor, other = away(3), away(3)
        assert torch._C._is_alias_of(tensor, tensor.view(2, -1))
        assert not torch._C._is_alias_of(tensor, other)
        assert not _torch.is_resident(tensor)


def test_memory_of_somebody_else() -> None:
    with session():
        base = numbers(3)
        over = lagging.load().over(base)
        assert is_all(over + 1, 4)
        assert _torch.evict([over]) == 0
        over.fill_(5)
        assert is_all(base, 5)


def test_on_its_way_back() -> None:
    """What writes to it waits for the copy, which would write over that."""
    ours, (_, back) = torch.accelerator.current_stream(), streams_of_copies()
    with session():
        tensor = away(3)
        torch.accelerator.synchronize()
        with held_for_a_while(back):
            _torch.prefetch([tensor])
            assert _torch.is_resident(tensor)
            lagging.load().fill(tensor, 0)
            ours.synchronize()
        back.synchronize()
        assert is_all(tensor, 0)


def test_made_anew_on_another_stream() -> None:
    """It is made on its own stream, and the one that writes to it waits."""
    first, second = (torch.Stream(device=DEVICE) for _ in range(2))
    with session(remake="1"):
        _torch.want_all_recipes(True, 0)
        with first:
            made = numbers(3) * 2.0
        first.synchronize()
        second.wait_stream(first)
        assert _torch.evict([made]) > 0
        with held_for_a_while(first):
            with second:
                lagging.load().fill(made, 0)
            second.synchronize()
        first.synchronize()
        assert is_all(made, 0)
        assert _torch.counters()["made_anew_bytes"] > 0


def test_told_to_two_threads_at_once() -> None:
    """PyTorch then forgets to tell us, until the tensor leaves or returns."""
    with session():
        tensor = away(3)
        assert is_all(tensor, 3)
        lagging.load().forget_call(tensor)
        assert _torch.evict([tensor]) > 0
        assert is_all(tensor, 3)
        lagging.load().fill(tensor, 0)
        _torch.evict([tensor])
        assert is_all(tensor, 0)


def test_in_a_hook_of_an_operator() -> None:
    """The operator was looked at, the hook's code was not: it may keep the address until the step ends."""
    views: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        views.append(lagging.load().over(tensor))
        return views[-1]

    with session():
        tensor = numbers(3).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda view: view):
            square = tensor * tensor
        assert _torch.evict([tensor.detach()]) == 0
        torch.full((NUMBERS,), 7.0, device=DEVICE)
        square.sum().backward()
        assert is_all(views[0] + 0, 3)
        assert tensor.grad is not None
        assert is_all(tensor.grad, 6)


@pytest.mark.parametrize("remake", ["0", "1", "check"])
def test_in_an_operator_of_others(remake: str) -> None:
    """It makes something of its argument, and then writes to that: what it made is not made anew from it."""
    library = torch.library.Library("others", "DEF")
    library.define("double_and_clear(Tensor x) -> Tensor")

    def double_and_clear(tensor: Tensor) -> Tensor:
        made = tensor * 2.0
        lagging.load().fill(tensor, 0)
        return made

    library.impl("double_and_clear", double_and_clear, "PrivateUse1")
    with session(remake=remake):
        _torch.want_all_recipes(remake != "0", 0)
        tensor = numbers(3)
        made = torch.ops.others.double_and_clear(tensor)
        assert _torch.evict([made]) > 0
        assert is_all(made, 6)
        assert is_all(tensor, 0)


def test_cloned_lazily() -> None:
    """PyTorch notices writes to such a clone in the same way, in a session and after it."""
    for ends_before in (False, True):
        for which in range(3):
            opened: Any = session(remake="1")
            opened.__enter__()
            _torch.want_all_recipes(True, 0)
            read = numbers(3)
            made = read * 2
            tensor, value = ((made, 6), (read, 3), (away(4), 4))[which]
            if ends_before:
                opened.__exit__(None, None, None)
            clone, filled = torch._lazy_clone(tensor), torch._lazy_clone(tensor)
            assert ends_before or _torch.evict([tensor]) == 0
            lagging.load().fill(filled, 0)
            tensor.add_(1)
            if not ends_before:
                _torch.evict([clone, filled, tensor])
            assert is_all(clone, value)
            assert is_all(filled, 0)
            assert is_all(tensor, value + 1)
            if not ends_before:
                opened.__exit__(None, None, None)
