"""Bits depend on how many threads share a thread's work, which no session may change."""

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ebbtide
from ebbtide import _torch
from tests.training.looks_at_what_is_made_anew import recipes

LONG = 20_000
"""The sums of products of so many numbers depend on how many threads share them."""


def in_a_new_thread(does: Callable[[], None]) -> None:
    thread = threading.Thread(target=does)
    thread.start()
    thread.join()


def _trained(steps: int) -> tuple[list[Tensor], list[tuple[int, int]]]:
    """Train with a new thread for each micro-batch, and begin with a product, for which MKL has its own number. Return
    what comes out, and the threads' numbers after their forward passes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(LONG, 16), nn.SiLU(), nn.Linear(16, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, numbers = list[Tensor](), list[tuple[int, int]]()

    def micro_batch(pictures: Tensor) -> None:
        loss = model(pictures).square().mean()
        numbers.append(_torch.threads_now())
        loss.backward()
        losses.append(loss.detach())

    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            pictures = torch.randn(16, LONG)
            in_a_new_thread(lambda pictures=pictures: micro_batch(pictures))
        optimizer.step()
    state = [held for each in optimizer.state.values() for held in each.values()]
    return [*losses, *model.state_dict().values(), *state], numbers


@pytest.mark.in_child
@pytest.mark.parametrize("order", ["as-written", "deferred"])
def test_a_new_thread_that_begins_with_a_product_has_the_threads_of_a_plain_run(order: str) -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)
    plain, plain_numbers = _trained(8)
    with ebbtide.Session(fast="70%", optimizer=order, progress="off", wait_for_plan=True) as session:
        ours, numbers = _trained(8)
    assert _torch.threads_now() not in plain_numbers
    assert numbers == plain_numbers
    assert all(map(torch.equal, plain, ours))
    assert sum(step.evicted_bytes.total for step in session.report().steps) > 0


def _limit(threads: int) -> None:
    """As threadpoolctl, which scikit-learn and joblib call: it does not see the MKL that PyTorch brings."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    path = next(line.split()[-1] for line in lines if "libgomp" in line)
    ctypes.CDLL(path).omp_set_num_threads(threads)


@pytest.mark.in_child({"EBBTIDE_POLICY": "demand"})
def test_mkls_own_number_of_threads_is_kept_for_what_is_made_anew() -> None:
    torch.set_num_threads(2)
    torch.ones(1 << 20).mul(2)  # the thread's first loop, which gives it that number
    one, other = torch.randn(256, 4096), torch.randn(4096, 256)

    def product() -> Tensor:
        _limit(1)
        made = one @ other
        _limit(2)
        return made

    plain = product()
    with ebbtide.Session(fast="1GiB", progress="off"), recipes(1):
        made, before = product(), _torch.counters()["made_anew_bytes"]
        _torch.evict([made])
        assert torch.equal(made.clone(), plain)
        assert _torch.counters()["made_anew_bytes"] - before == 256 * 256 * 4
