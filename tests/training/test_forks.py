"""Forked children: they read whatever is not training state, whenever it was born, and else end with a sentence.

Each way to start a child is tried with data born before the session, between two steps and inside one, each in memory
and away.
"""

import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import ebbtide
from ebbtide import _torch
from ebbtide.errors import SessionError
from tests.helpers import child
from tests.helpers.command import EBBTIDE, run

PAGES = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_POLICY": "demand", "EBBTIDE_PROGRESS": "off"}
pytestmark = pytest.mark.in_child(PAGES)
ROWS, WIDTH = 96, 4096  # 1.5 MiB
BATCH = 32
NOBODY = 65_534
_shared: list[torch.Tensor] = []  # what a pool's children find where the parent left it


class Trained:
    """A model of 4 MiB, its gradients and its optimizer's state."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(1024, 1024)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def begin(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(64, 1024)).square().mean().backward()

    def train(self, session: ebbtide.Session) -> None:
        for _ in range(3):
            with session.step():
                self.begin()
                self.optimizer.step()


def numbers(seed: int) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))


def by_fork(data: torch.Tensor, expected: bytes) -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if data.numpy().tobytes() == expected else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _row(number: int) -> bytes:
    return _shared[0][number].numpy().tobytes()


def by_pool(data: torch.Tensor, expected: bytes) -> bool:
    _shared[:] = [data]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return b"".join(pool.map(_row, range(ROWS))) == expected


def by_loader(data: torch.Tensor, expected: bytes, workers: int = 1, epochs: int = 1, context: str = "fork") -> bool:
    loader: DataLoader[Any] = DataLoader(
        TensorDataset(data),
        BATCH,
        num_workers=workers,
        persistent_workers=epochs > 1,
        multiprocessing_context=context,
    )
    return all(b"".join(rows.numpy().tobytes() for (rows,) in loader) == expected for _ in range(epochs))


WAYS: dict[str, Callable[[torch.Tensor, bytes], bool]] = {
    "os.fork": by_fork,
    "a pool": by_pool,
    "one worker": by_loader,
    "two workers": lambda data, expected: by_loader(data, expected, workers=2),
    "workers that stay": lambda data, expected: by_loader(data, expected, workers=2, epochs=2),
    "spawned workers": lambda data, expected: by_loader(data, expected, context="spawn"),
}


def births(session: ebbtide.Session, trained: Trained, early: torch.Tensor) -> Iterator[torch.Tensor]:
    """Data born before the session, between two steps, and inside one, each given out at such a moment."""
    trained.train(session)
    yield early
    yield numbers(1)
    with session.step():
        trained.begin()
        yield numbers(2)
        trained.optimizer.step()


@pytest.mark.parametrize("way", WAYS)
def test_children_read_data_whenever_it_was_born(way: str) -> None:
    trained, early = Trained(), numbers(0)
    away = 0
    with ebbtide.Session(fast="80%") as session:
        for seed, data in enumerate(births(session, trained, early)):
            assert _torch.is_managed(data)
            expected = numbers(seed).numpy().tobytes()
            for evicts in (False, True) if way != "spawned workers" else (seed == 1,):
                if evicts:
                    assert _torch.evict([data]) > 0
                    assert not _torch.is_resident(data)
                    away += 1
                assert WAYS[way](data, expected), (way, seed, evicts)
                assert data.numpy().tobytes() == expected
        assert not session.report().budget_violated
    assert away >= 1


class OfWeights(Dataset[torch.Tensor]):
    """Rows of what is trained: a mistake."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.weight[number].clone()


def a_worker_reads_training_state(what: str) -> None:
    """Ends in the loader's error; nothing may come out of it before that."""
    trained = Trained()
    with ebbtide.Session(fast="100%") as session:
        trained.train(session)
        weight = trained.model.weight
        touched = {
            "parameter": weight.detach(),
            "gradient": weight.grad,
            "optimizer state": trained.optimizer.state[weight]["exp_avg"],
        }[what]
        assert touched is not None
        for row in DataLoader(OfWeights(touched), 1, num_workers=1, multiprocessing_context="fork"):
            print("a row of training state came out:", row)


def test_a_child_that_asks_for_an_array_of_training_state_is_refused() -> None:
    """By a way that can raise, it does."""
    trained = Trained()
    with ebbtide.Session(fast="100%") as session:
        trained.train(session)
        pid = os.fork()
        if pid == 0:
            try:
                trained.model.weight.detach().numpy()
            except RuntimeError as error:
                os._exit(0 if "touched training state" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_may_leave_the_step_that_it_was_forked_in() -> None:
    torch.set_num_threads(1)  # a forked child has no OpenMP
    kept: list[torch.Tensor] = []
    with ebbtide.Session(fast="80%", policy="demand", progress="off") as session, session.step():
        passing = torch.full((1 << 20,), 1.0)
        del passing  # its pages stay, and are the next storage's
        child = os.fork()
        if child == 0:
            kept.append(torch.full((1 << 20,), 3.0))
    if child == 0:
        os._exit(int(_torch.is_managed(kept[0]) or float(kept[0][-1]) != 3.0))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("moment", ["in its step", "between its steps", "after it"])
def test_a_child_of_a_process_with_a_session_is_refused_one_of_its_own(moment: str) -> None:
    """Both train on."""
    trained, read, write = Trained(), *os.pipe()

    def child() -> None:
        if os.fork():
            os.wait()
            return
        try:
            ebbtide.Session(fast="50%").__enter__()
        except SessionError as error:
            weight = torch.ones(64, 64, requires_grad=True)
            (weight * 2).sum().backward()  # without a session it trains
            os.write(write, str(error).encode() if weight.grad is not None else b"")
        finally:
            os._exit(0)

    with ebbtide.Session(fast="50%") as session:
        for number in range(5):
            with session.step():
                trained.begin()
                if number == 3 and moment == "in its step":
                    child()
                trained.optimizer.step()
            if number == 3 and moment == "between its steps":
                child()
        moved = sum(step.evicted_bytes.total for step in session.report().steps)
    if moment == "after it":
        child()
    os.close(write)
    with os.fdopen(read) as told:
        said = told.read()
    assert "start it with the spawn method" in said
    assert moved > 0


@pytest.mark.here
@pytest.mark.parametrize("what", ["parameter", "gradient", "optimizer state"])
def test_a_worker_that_reads_training_state_ends_with_the_sentence(what: str) -> None:
    """Though the worker has a handler of its own for the signal."""
    with pytest.raises(child.ChildError) as ended:
        child.run(a_worker_reads_training_state, what, env=PAGES)
    said = str(ended.value)
    assert "ebbtide: a forked child touched training state" in said
    assert "start it with the spawn method" in said
    assert "DataLoader worker" in said
    assert "came out" not in said


VALIDATES_EVERY_EPOCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(500, 500) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(5):
    model(torch.randn(8, 500)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    rows = TensorDataset(torch.randn(200, 500))  # made between two optimizer steps
    with torch.no_grad():
        total = sum(model(x).double().sum().item() for (x,) in DataLoader(rows, 50, num_workers=1))
    print("epoch", epoch, total)
"""


def test_a_fork_where_no_thread_may_begin_is_an_error_that_a_script_can_catch() -> None:
    """A thread makes what is to be made anew before a fork."""
    torch.set_num_threads(1)
    with ebbtide.Session(fast="1GiB"):
        _torch.want_all_recipes(True)
        numbers = torch.randn(512, 512)
        made = torch.exp(numbers)
        _torch.evict([made])
        assert _torch.recipes() > 0
        if os.getuid() == 0:  # which may have as many as it likes
            os.setresuid(NOBODY, NOBODY, NOBODY)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        with pytest.raises(BlockingIOError):
            os.fork()
        _torch.want_all_recipes(False)
        assert torch.equal(made, torch.exp(numbers))


@pytest.mark.here
def test_a_script_may_make_a_validation_set_in_every_epoch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(VALIDATES_EVERY_EPOCH)
    env = {"EBBTIDE_MIN_STORAGE": "4096"}
    plain = run(EBBTIDE, "run", "--fast", "60%", str(script), env=env | {"EBBTIDE_DISABLE": "1"})
    ours = run(EBBTIDE, "run", "--fast", "60%", "--policy", "demand", str(script), env=env, status=0)
    assert "within budget" in ours.stderr
    assert plain.stdout.count("epoch") == 5
    assert ours.stdout == plain.stdout
