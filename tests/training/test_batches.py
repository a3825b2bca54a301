"""A batch that does not fit is refused before the optimizer changes anything, by an error that batch finders know.

The budget is a size. In plain PyTorch the error comes from an allocator: here a batch of ``TOO_MANY`` rows raises it,
before the optimizer's step, so that both runs take the same way.
"""

import gc
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ebbtide
from ebbtide import _torch
from ebbtide.errors import BudgetError
from ebbtide.host import process
from ebbtide.runtime import start_arena
from ebbtide.units import MIB

pytestmark = pytest.mark.in_child
WIDTH = 256
TOO_MANY = 32768  # rows: 32 MiB for each activation
ROOM = 48 * MIB
_KNOWN = "DefaultCPUAllocator: can't allocate memory"


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(2) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())])


def batch(rows: int) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))


class Training:
    """``plain``: no session, and too large a batch is refused by itself."""

    def __init__(self, plain: bool) -> None:
        self.plain = plain
        self.refusal = RuntimeError if plain else torch.OutOfMemoryError
        self.net = net()
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def step(self, rows: int) -> None:
        self.optimizer.zero_grad()
        self.net(batch(rows)).square().mean().backward()
        self.refuse(rows)
        self.optimizer.step()

    def refuse(self, rows: int) -> None:
        """As an allocator would, before the optimizer's step."""
        if self.plain and rows == TOO_MANY:
            raise RuntimeError(_KNOWN)

    def bits(self) -> list[bytes]:
        state = [value for state in self.optimizer.state.values() for value in state.values()]
        return [tensor.detach().numpy().tobytes() for tensor in (*self.net.parameters(), *state)]


def session() -> ebbtide.Session:
    """A size with room for batches of 512, and none for ``TOO_MANY``."""
    fast = process.resident_bytes() + ROOM
    return ebbtide.Session(fast=f"{fast // MIB}MiB", policy="demand", min_storage_bytes=4096, progress="off")


def skipping(training: Training, sizes: Sequence[int], step: Callable[[int], object]) -> list[bytes]:
    """A step of each size. One that is refused has changed nothing, and training goes on."""
    for rows in sizes:
        before = training.bits()
        try:
            step(rows)
        except training.refusal:
            assert training.bits() == before
        else:
            assert rows < TOO_MANY
        gc.collect()
    return training.bits()


def skips(training: Training) -> list[bytes]:
    return skipping(training, (256, 256, TOO_MANY, 256, TOO_MANY, 512), training.step)


def looks_for_one(training: Training) -> list[bytes]:
    """By hand, from the first step on."""
    rows = TOO_MANY
    for _ in range(3):
        try:
            training.step(rows)
        except training.refusal:
            assert not training.optimizer.state
            rows //= 128
    assert rows == 256
    return training.bits()


def skips_in_a_closure(training: Training) -> list[bytes]:
    """As Lightning has it: the pass is made within the optimizer's step."""

    def closure(rows: int) -> torch.Tensor:
        training.optimizer.zero_grad()
        loss = training.net(batch(rows)).square().mean()
        loss.backward()
        training.refuse(rows)
        return loss

    def step(rows: int) -> None:
        training.optimizer.step(lambda: closure(rows))

    return skipping(training, (256, TOO_MANY, 512), step)


def skips_with_a_scaler(training: Training) -> list[bytes]:
    """``unscale_`` may be called once for each step, and PyTorch's error comes before it."""
    scaler = torch.amp.GradScaler("cpu")

    def step(rows: int) -> None:
        training.optimizer.zero_grad()
        scaler.scale(training.net(batch(rows)).square().mean()).backward()
        training.refuse(rows)
        scaler.unscale_(training.optimizer)
        nn.utils.clip_grad_norm_(training.net.parameters(), 1.0)
        scaler.step(training.optimizer)
        scaler.update()

    return skipping(training, (256, TOO_MANY, 256, TOO_MANY, 512), step)


def evaluates(training: Training) -> list[bytes]:
    """Between steps, and keeps more than there is room for."""
    found = []
    for _ in range(4):
        training.step(256)
        with torch.no_grad():
            kept = [training.net(batch(1024)) for _ in range(2 * ROOM // MIB)]  # 1 MiB each
            found.append(torch.stack([each.sum(0) for each in kept]).numpy().tobytes())
        del kept
    return [*found, *training.bits()]


def accelerates(training: Training) -> list[bytes]:
    from accelerate.utils import find_executable_batch_size

    tried = []

    def train(batch_size: int) -> None:
        tried.append(batch_size)
        training.step(batch_size)

    find_executable_batch_size(train, starting_batch_size=TOO_MANY, reduce_batch_size_fn=lambda: 256)()
    assert tried[-1] == 256
    return training.bits()


SCRIPTS: dict[str, Callable[[Training], list[bytes]]] = {
    each.__name__: each
    for each in (skips, looks_for_one, skips_in_a_closure, skips_with_a_scaler, evaluates, accelerates)
}


@pytest.mark.alike
@pytest.mark.parametrize("name", SCRIPTS)
def test_after_a_batch_that_did_not_fit_training_goes_on_as_in_plain_pytorch(name: str) -> None:
    plain = SCRIPTS[name](Training(plain=True))
    with session() as ours:
        bits = SCRIPTS[name](Training(plain=False))
        gc.collect()
        counters = _torch.counters()
    assert bits == plain
    report = ours.report()
    assert 0 < counters["reserved_bytes"] <= counters["arena_limit_bytes"]
    assert sum(counters["evicted_bytes"]) > 0
    assert report.bounded_as_asked
    found_one = name in ("looks_for_one", "accelerates")  # before any step had fitted
    assert report.budget_violated != (found_one or name == "evaluates"), report.trouble


@pytest.mark.parametrize("name", ["skips", "looks_for_one", "skips_with_a_scaler", "accelerates"])
def test_a_batch_that_the_machine_has_no_memory_for_is_refused_by_the_operator(name: str) -> None:
    """Rather than exceed the budget until the kernel ends the process. What it may have at all is little more."""
    plain = SCRIPTS[name](Training(plain=True))
    there = process.anonymous_bytes() + ROOM + 8 * MIB
    start_arena.most_bytes = lambda: there
    assert process.reset_peak()
    with session() as ours:
        bits = SCRIPTS[name](Training(plain=False))
        peak = process.peak_resident_bytes() - (process.resident_bytes() - process.anonymous_bytes())
        evicted = sum(_torch.counters()["evicted_bytes"])
    assert bits == plain
    assert peak <= there
    assert evicted > 0
    assert ours.report().bounded_as_asked


def refused(nbytes: int) -> bool:
    try:
        torch.empty(nbytes, dtype=torch.uint8).fill_(1)
    except torch.OutOfMemoryError:
        return True
    return False


def test_what_the_machine_has_is_not_refused(tmp_path: Path) -> None:
    """A file that was mapped, and an array, have gone before the machine is nearly full. What does not fit is refused,
    until the machine has more."""
    file, free = tmp_path / "zeros", process.anonymous_bytes() + 600 * MIB
    file.write_bytes(bytes(300 * MIB))
    start_arena.most_bytes = lambda: free
    found = []
    with ebbtide.Session(
        fast=f"{process.resident_bytes() // MIB + 40}MiB", policy="demand", piece_bytes="2GiB", progress="off"
    ):
        for make in (lambda: np.memmap(file, np.uint8, "r"), lambda: np.ones(350 * MIB, np.uint8)):
            held = make()
            assert held[::4096].sum() >= 0
            del held
            found.append(refused(400 * MIB))
        found.append(refused(700 * MIB))
        _torch.set_machine(free + 400 * MIB)
        found.append(refused(700 * MIB))
    assert tuple(found) == (False, False, True, False)


def test_what_came_between_steps_is_not_said_of_a_batch_that_fits() -> None:
    """Where the script names its steps."""
    with session() as within:
        training = Training(plain=False)
        for _ in range(2):
            with within.step():
                training.step(256)
        with torch.no_grad():
            training.net(batch(TOO_MANY))
        with pytest.raises(BudgetError) as caught, within.step():
            training.step(256)
    assert not isinstance(caught.value, torch.OutOfMemoryError)


def test_a_batch_that_exceeds_a_percentage_raises_no_share_and_is_told() -> None:
    shares = []

    def step(rows: int) -> None:
        training.step(rows)
        shares.append(_torch.counters()["arena_limit_bytes"])

    with ebbtide.Session("25%", policy="demand", min_storage_bytes=4096, progress="off") as within:
        training = Training(plain=False)
        skipping(training, (256, 256, 256, TOO_MANY, 256), step)
    report = within.report()
    assert shares[1] == shares[2] == shares[3]
    assert report.budget_violated
    assert "or a smaller batch" in report.trouble


def test_the_error_names_a_budget_that_works_and_says_it_in_pytorchs_words_too() -> None:
    """It survives a pickle, and batch finders know it."""
    from accelerate.utils.memory import should_reduce_batch_size
    from lightning.pytorch.utilities.memory import is_oom_error

    Training(plain=True).step(256)  # which loads what an optimizer needs
    with session():
        training = Training(plain=False)
        training.step(256)
        with pytest.raises(BudgetError) as raised:
            training.step(TOO_MANY)
    error = raised.value
    again: Any = pickle.loads(pickle.dumps(error))
    assert (str(again), type(again), again.minimum_bytes) == (str(error), type(error), error.minimum_bytes)
    assert isinstance(error, torch.OutOfMemoryError)
    assert is_oom_error(error)
    assert should_reduce_batch_size(error)
    said = str(error)
    fast = error.minimum_fast
    assert fast.endswith("MiB")
    assert fast in said
    assert "or a smaller batch" in said
    assert "DefaultCPUAllocator: can't allocate memory" in said
