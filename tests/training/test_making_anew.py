"""What is made anew has the same bits, whatever happens to it or to what it is made of meanwhile."""

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ebbtide
from ebbtide import _torch
from ebbtide.report.summary import render_summary
from tests.helpers import child
from tests.helpers.at_once import at_once
from tests.helpers.make_steps import disk
from tests.training import looks_at_what_is_made_anew as on_any_device
from tests.training.looks_at_what_is_made_anew import Look, looks_of, made_of_two, recipes

SLOW = disk(5 * 10**7, 5 * 10**7).to_toml()
"""To run an operator again costs less than any copy."""
PIECES = {"EBBTIDE_REMAKE": "check", "EBBTIDE_POLICY": "demand", "EBBTIDE_PIECE": "2MiB"}
WIDTH, HIDDEN, ROWS = 128, 1024, 1024


@dataclass(frozen=True, slots=True)
class Trained:
    same: bool
    remade: tuple[int, ...]  # bytes, by step
    evicted: tuple[int, ...]
    summary: str


class ByNumbers(nn.Module):
    """As GPT-2's GELU: each product by a number casts that first, and is born after the cast has ended."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * x.pow(3))))


def net(between: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(WIDTH, HIDDEN), between(), nn.Linear(HIDDEN, WIDTH)) for _ in range(4))
    return nn.Sequential(*layers).to(dtype)


def train(
    steps: int,
    threads: Callable[[int], None] = lambda step: None,
    between: Callable[[], nn.Module] = nn.SiLU,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Return the losses, and then the weights."""
    model, losses = net(between, dtype), list[Tensor]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(ROWS, WIDTH, dtype=dtype)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        threads(step)
        loss.backward()
        threads(-1)
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def trained(fast: str, steps: int, *how: Any) -> Trained:
    plain = train(steps, *how)
    with ebbtide.Session(fast=fast) as session:
        ours = train(steps, *how)
    report = session.report()
    return Trained(
        all(map(torch.equal, plain, ours)),
        tuple(step.made_anew_bytes for step in report.steps),
        tuple(step.evicted_bytes.total for step in report.steps),
        render_summary(report),
    )


def trained_by_numbers(fast: str, steps: int) -> Trained:
    return trained(fast, steps, lambda step: None, ByNumbers, torch.bfloat16)


def with_other_threads(fast: str, steps: int) -> Trained:
    """The number of PyTorch's threads is another one in each backward pass."""
    torch.set_num_threads(2)
    return trained(fast, steps, lambda step: torch.set_num_threads(2 if step < 0 else 1 + step % 2))


@dataclass(frozen=True, slots=True)
class Looked:
    same: bool
    remade_bytes: int
    recipes: int  # that are left while the storages live


WHOLE, IN_PIECES = 512, 1536
"""Sides of what is made: of 1 MiB, and of 9 MiB, which is four pieces of 2, 2, 2 and 3 MiB."""


def _made(side: int = WHOLE) -> tuple[Tensor, Tensor, Tensor]:
    return made_of_two(side)


def _numpy(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return torch.from_numpy(made.numpy().copy())


def _dlpack(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(made)).clone()


def _view(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return made.view(-1)[1000:].t().clone()


def _slices(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return torch.cat([made[first : first + 100].sum(1) for first in range(0, len(made), 100)])


def _numpy_of_a_slice(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    array = made[5:9].numpy()
    array[1] = 0
    return made.clone()


def _slice_of_an_operand_written(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    one[-100:].zero_()
    other[:3].numpy()[:] = 1
    return made + one


def _read_and_write_operand(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    one.zero_()
    return made + one


def _operand_through_numpy(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    other.numpy()[:] = 0
    return made + other


def _operand_behind_a_slice(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    """A recipe reads a slice of a storage, and somebody writes to the whole."""
    part = torch.empty(0).set_(one.untyped_storage()[4096 * 16 : 4096 * 48])  # type: ignore[call-overload]
    more = torch.exp(part)
    _torch.evict([more])
    one.fill_(2)
    return torch.cat([more, made.view(-1)])


def _part_changed_in_place(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    made[10:20].mul_(made[30:40])
    made[0].zero_()
    _torch.evict([made])
    return made.clone()


def _saved(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    found: Tensor = torch.load(file)
    return found


def _without_gradients(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        return (made @ made).float()


def _in_a_child(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, str(float(made[7, 9])).encode())
        os._exit(0)
    os.wait()
    return torch.tensor([float(os.read(reader, 100)), float(made[7, 9])])


def _on_a_thread_that_flushes_denormals(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    def look() -> Tensor:
        flush = torch._C.set_flush_denormal
        getattr(flush, "__wrapped__", flush)(True)  # as of a thread that began so
        return made.clone()

    return at_once(look, 1)[0]


LOOKS = looks_of(vars(on_any_device) | globals())


def look(name: str, side: int = WHOLE, rows: int | None = None) -> Looked:
    """Look at a storage that is away, all or so many of its rows, or do something to what it was made of."""
    plain = _plainly(LOOKS[name], side)
    with ebbtide.Session(fast="1GiB"), recipes():
        one, other, made = _made(side)
        assert _torch.recipes() >= 1
        _torch.evict([made[:rows]])
        assert not _torch.is_resident(made)
        before = _torch.counters()
        found = LOOKS[name](one, other, made)
        after, left = _torch.counters(), _torch.recipes()
        same = found.numpy().tobytes() == plain.numpy().tobytes()
    return Looked(same, after["made_anew_bytes"] - before["made_anew_bytes"], left)


def _plainly(case: Look, side: int) -> Tensor:
    with mock.patch.object(_torch, "evict", return_value=0):
        return case(*_made(side))


@pytest.mark.in_child(PIECES)
def test_only_the_pieces_that_are_away_are_made_and_only_where_one_is_needed() -> None:
    """Rows 341 and 683 are the first that lie in the second and third of four pieces."""
    _, _, plain = _made(IN_PIECES)
    found = list[int]()

    def use(does: Callable[[], object]) -> None:
        before = _torch.counters()["made_anew_bytes"]
        does()
        found.append(_torch.counters()["made_anew_bytes"] - before)

    with ebbtide.Session(fast="1GiB"), recipes():
        one, _, made = _made(IN_PIECES)
        assert _torch.evict([made[400:1000]]) == 0  # a copy would count
        assert [_torch.is_resident(made[row]) for row in (0, 400, 800, 1400)] == [True, False, False, True]
        use(lambda: made[:300].sum())
        use(lambda: made[1200:].numpy().sum())  # which may write there: it has no recipe any more
        use(lambda: made[500:501].sum())
        assert _torch.evict([made]) >= 3 << 20
        use(lambda: made[1400].sum())
        use(lambda: made[0, 0].item())
        _torch.evict([made])
        use(lambda: one[1500:].zero_())
        use(lambda: made.sum())
        assert torch.equal(made, plain)
    assert [nbytes >> 20 for nbytes in found] == [0, 0, 4, 0, 6, 6, 0]


@pytest.mark.in_child(PIECES)
def test_what_does_not_fit_beside_its_operands_is_made_in_order() -> None:
    """A storage of 12 MiB and its operands."""
    side = 1774
    _, _, plain = _made(side)
    sums = [plain[first : first + 100].sum().item() for first in range(0, side, 100)]
    del plain
    with ebbtide.Session(arena_bytes=24 << 20, policy="demand"), recipes():
        one, _, made = _made(side)
        _torch.evict([made[200:], one])
        for _ in range(3):
            assert [made[first : first + 100].sum().item() for first in range(0, side, 100)] == sums
            _torch.evict([made])
        array = made.numpy()
        assert array[:100].sum() == made[:100].numpy().sum()
        counters = _torch.counters()
        assert not counters["over_budget"], counters["message"]
        assert int(counters["made_anew_bytes"]) > 12 << 20


@pytest.mark.in_child
def test_a_profile_tells_what_is_made_anew_from_what_the_script_runs() -> None:
    """A look at made contents runs one operator."""
    with ebbtide.Session(fast="1GiB"), recipes():
        _, _, made = _made()
        _torch.evict([made])
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            made.clone()
    found = {event.key: event.count for event in profiled.key_averages()}
    assert (found["ebbtide: making anew"], found["aten::clone"]) == (1, 1)


def by_numpy(x: Tensor) -> Tensor:
    """A kernel that calls no operator by which it differs from PyTorch's."""
    made = torch.empty_like(x)
    np.negative(x.detach().numpy(), out=made.numpy())
    return made


@pytest.fixture
def planned(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "machine.toml"
    file.write_text(SLOW)
    return {"EBBTIDE_REMAKE": "check", "EBBTIDE_MACHINE": str(file)}


@pytest.mark.parametrize(
    ("more", "least_bytes"),
    [
        ({}, 0),
        ({"EBBTIDE_POLICY": "capuchin"}, 0),
        ({"EBBTIDE_POLICY": "checkmate"}, 0),
        ({"EBBTIDE_POLICY": "chen"}, 0),
        # Each hidden layer has two pieces; all that is smaller, and could be made anew, has 4 MiB together.
        ({"EBBTIDE_PIECE": "2MiB"}, 4 << 20),
    ],
    ids=["ours", "capuchin", "checkmate", "chen", "in pieces"],
)
def test_a_planned_training_makes_storages_anew_with_the_same_bits(
    more: dict[str, str], least_bytes: int, planned: dict[str, str]
) -> None:
    found = child.run(trained, "30%", 6, env=planned | more)
    assert found.same
    assert min(found.remade[3:]) > least_bytes, found.remade
    assert "made anew a step" in found.summary


def test_what_an_operator_makes_after_those_that_run_in_it_is_made_anew(planned: dict[str, str]) -> None:
    """Of the others, what matrices make and the layers' last products, there are 16 MiB in all."""
    found = child.run(trained_by_numbers, "30%", 6, env=planned)
    assert found.same
    assert max(found.remade) > 16 << 20, found.remade


def test_where_it_is_turned_off_nothing_is_made_anew(planned: dict[str, str]) -> None:
    found = child.run(trained, "30%", 6, env=planned | {"EBBTIDE_REMAKE": "0"})
    assert found.same
    assert not any(found.remade)
    assert min(found.evicted[3:]) > 0
    assert "made anew" not in found.summary


def test_an_operator_runs_again_with_the_number_of_threads_that_it_had(planned: dict[str, str]) -> None:
    found = child.run(with_other_threads, "30%", 6, env=planned)
    assert found.same
    assert min(found.remade[3:]) > 0, found.remade


@pytest.mark.in_child({"EBBTIDE_REMAKE": "check", "EBBTIDE_POLICY": "demand"})
@pytest.mark.parametrize("name", LOOKS)
def test_a_storage_that_is_away_is_made_before_somebody_sees_it_or_changes_what_it_is_made_of(name: str) -> None:
    found = look(name)
    assert found.same
    assert found.remade_bytes > 0


@pytest.mark.in_child(PIECES)
@pytest.mark.alike
@pytest.mark.parametrize("rows", [None, IN_PIECES // 2], ids=["all", "half"])
@pytest.mark.parametrize("name", LOOKS)
def test_so_is_a_storage_in_pieces_or_a_part_of_it(name: str, rows: int | None) -> None:
    found = look(name, IN_PIECES, rows)
    assert found.same
    assert found.remade_bytes >= 4 << 20


@pytest.mark.in_child(PIECES | {"EBBTIDE_CHAOS_RATE": "0.4"})
def test_a_training_in_pieces_that_leave_at_random_has_the_same_bits() -> None:
    found = trained("75%", 5)
    assert found.same
    assert min(found.remade[2:]) > 4 << 20, found.remade
