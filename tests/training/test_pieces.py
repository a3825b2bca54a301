"""Storages in pieces: what is larger than the arena is used part by part, and what nobody touched costs nothing.

Pieces are of 2 MiB there (``EBBTIDE_PIECE``). Each case compares with what plain PyTorch computes, and shows that
pieces moved.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import ebbtide
from ebbtide import _torch
from ebbtide.ir.run_report import StepMode
from ebbtide.units import MIB

SMALL = {"EBBTIDE_PIECE": "2MiB", "EBBTIDE_PROGRESS": "off"}
pytestmark = pytest.mark.in_child(SMALL)
ARENA = 24 * MIB
ROWS, COLUMNS = 40_960, 256  # 40 MiB


@contextmanager
def _bounded(*, moves: bool = True) -> Iterator[ebbtide.Session]:
    with ebbtide.Session(arena_bytes=ARENA, policy="demand", progress="off") as session:
        yield session
        counters = _torch.counters()
        assert not counters["over_budget"], counters["message"]
        assert counters["reserved_peak_bytes"] <= ARENA
        assert (sum(counters["fetched_bytes"]) > 0) == moves
        assert (sum(counters["written_bytes"]) > 0) == moves


def _features() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))


def _losses(features: torch.Tensor, step: Callable[[], object]) -> list[float]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters())
    losses = []
    for first in range(0, ROWS, 2048):
        with step():  # type: ignore[attr-defined]
            optimizer.zero_grad()
            loss = net(features[first : first + 2048]).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("origin", ["loaded", "made", "adopted"])
def test_a_data_set_larger_than_the_arena_is_used_batch_by_batch(origin: str, tmp_path: Path) -> None:
    """Loaded within the session, made there, or adopted."""

    @contextmanager
    def nothing() -> Iterator[None]:
        yield

    path = tmp_path / "features.pt"
    features = _features()
    expected = _losses(features, nothing)
    if origin != "adopted":
        torch.save(features, path)
        del features
    with _bounded() as session:
        if origin == "loaded":
            features = torch.load(path)
        elif origin == "made":
            features = _features()
        assert _losses(features, session.step) == expected
        assert _torch.is_managed(features)


def test_a_bucket_costs_what_is_touched() -> None:
    with _bounded(moves=False):
        bucket = torch.empty(256 * MIB // 4)
        for part in range(3):
            bucket.narrow(0, part * 1000, 1000).copy_(torch.full((1000,), float(part)))
        assert bucket[:3000].sum().item() == 3000.0
        assert _torch.counters()["live_peak_bytes"] <= 8 * MIB  # of one piece, of four times the least


def test_a_buffer_is_written_slice_by_slice() -> None:
    expected = (_features() * 2).sum(1)
    with _bounded():
        buffer = torch.empty(ROWS, COLUMNS)
        features = _features()
        for first in range(0, ROWS, 1000):
            torch.mul(features[first : first + 1000], 2, out=buffer[first : first + 1000])
        sums = torch.cat([buffer[first : first + 1000].sum(1) for first in range(0, ROWS, 1000)])
        assert torch.equal(sums, expected)


def test_operators_in_order_work_on_more_than_there_is() -> None:
    def compute() -> list[torch.Tensor]:
        first = _features()
        second = first.clone()
        second.mul_(3).add_(first, alpha=2)
        third = torch.relu(second)
        zeros = torch.zeros(ROWS, COLUMNS)
        zeros.copy_(third)
        return [tensor[at : at + 100].clone() for tensor in (first, second, third, zeros) for at in (0, 20_000, 40_000)]

    expected = compute()
    with _bounded():
        for ours, plain in zip(compute(), expected, strict=True):
            assert torch.equal(ours, plain)


def test_an_array_holds_the_pieces_that_it_lies_in() -> None:
    features = _features()
    expected = [features[first : first + 64].numpy().copy() for first in range(0, ROWS, 8192)]
    del features
    with _bounded():
        features = _features()
        for first, plain in zip(range(0, ROWS, 8192), expected, strict=True):
            array = features[first : first + 64].numpy()
            assert (array == plain).all()
            array += 1  # it is writable
        features[:64] -= 1
        assert (features[:64].numpy() == (expected[0] + 1 - 1)).all()


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_step_with_storages_in_pieces_follows_its_plan(optimizer: str) -> None:
    """An embedding of ten pieces that no step holds as a whole: planned, and the same bits."""

    def train(step: Callable[[], object] | None) -> tuple[list[float], torch.Tensor]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Embedding(40_000, 128), torch.nn.Flatten(), torch.nn.Linear(128 * 8, 512))
        net.extend(layer for _ in range(4) for layer in (torch.nn.ReLU(), torch.nn.Linear(512, 512)))
        made = getattr(torch.optim, optimizer)(net.parameters(), lr=0.01)
        losses = []
        for seed in range(8):
            index = torch.randint(40_000, (64, 8), generator=torch.Generator().manual_seed(seed))
            with step() if step is not None else torch.enable_grad():  # type: ignore[attr-defined]
                made.zero_grad()
                loss = net(index).square().mean()
                loss.backward()
                made.step()
            losses.append(loss.item())
        return losses, net[0].weight.detach()[:1000].clone()

    losses, weight = train(None)
    with ebbtide.Session(fast="70%", wait_for_plan=True, progress="off") as session:
        assert train(session.step)[0] == losses
        session_weight = train(session.step)[1]
        assert torch.equal(session_weight, weight)
        report = session.report()
    planned = [step for step in report.steps if step.mode == StepMode.PLANNED]
    assert planned
    assert sum(step.evicted_bytes.total for step in planned) > 0


@pytest.mark.parametrize("how", ["dlpack", "dlpack of numpy", "data_ptr", "empty"])
def test_an_address_of_a_slice_holds_its_pieces(how: str) -> None:
    """DLPack's for good: all that it is given together must fit, and no more."""

    def uses(part: torch.Tensor) -> torch.Tensor:
        if how == "dlpack":
            torch.from_dlpack(part).add_(1)
        elif how == "dlpack of numpy":
            assert (np.from_dlpack(part) == part.numpy()).all()
        elif how == "data_ptr":
            assert part[:, :3].data_ptr() == part.data_ptr()
        else:
            assert part[part.shape[0] :].numpy().size == 0
        return part.clone()

    features = _features()
    expected = [uses(features[first : first + 64]) for first in range(0, ROWS, 16_384)]
    del features
    with _bounded():
        features = _features()
        for first, plain in zip(range(0, ROWS, 16_384), expected, strict=True):
            assert torch.equal(uses(features[first : first + 64]), plain)


def test_safetensors_writes_a_tensor_larger_than_the_arena(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = tmp_path / "features.safetensors"
    expected = _features()
    with _bounded():
        features = _features()
        save_file({"all": features, "part": torch.relu(features[100:300])}, path)
    loaded = load_file(path)
    assert torch.equal(loaded["all"], expected)
    assert torch.equal(loaded["part"], torch.relu(expected[100:300]))


def test_torchscript_saves_and_loads_a_tensor_larger_than_the_arena(tmp_path: Path) -> None:
    path = str(tmp_path / "linear.pt")
    torch.manual_seed(0)
    expected = torch.nn.Linear(COLUMNS, ROWS).weight.detach()
    with _bounded():
        torch.manual_seed(0)
        torch.jit.script(torch.nn.Linear(COLUMNS, ROWS)).save(path)
        loaded = torch.jit.load(path).weight.detach()
        assert _torch.is_managed(loaded)
        for first in range(0, ROWS, 1024):
            assert torch.equal(loaded[first : first + 1024], expected[first : first + 1024])
