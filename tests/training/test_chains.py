"""What is made anew of ingredients that have gone has the same bits, and so many bytes of these were really made."""

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ebbtide
from ebbtide import _torch
from tests.helpers import child
from tests.helpers.at_once import at_once
from tests.training.looks_at_what_is_made_anew import recipes
from tests.training.test_making_anew import SLOW

ENV = {"EBBTIDE_REMAKE": "check", "EBBTIDE_POLICY": "demand", "EBBTIDE_MIN_STORAGE": "4096"}
pytestmark = pytest.mark.in_child(ENV)
SIDE = 512
NBYTES = SIDE * SIDE * 4


def _evict(*tensors: Tensor) -> None:
    _torch.evict(list(tensors))


def _ran_again(nbytes: int) -> Callable[[Any], Any]:
    """Mark a case with the bytes of ingredients that are made for it."""

    def mark(case: Any) -> Any:
        CASES[case.__name__.removeprefix("_").replace("_", "-")] = case, nbytes
        return case

    return mark


Case = Callable[[Tensor, Tensor], Tensor]
CASES: dict[str, tuple[Case, int]] = {}


@_ran_again(NBYTES)
def _one(one: Tensor, other: Tensor) -> Tensor:
    made = torch.tanh(one * other)
    _evict(made)
    return made.clone()


@_ran_again(2 * 8 * 16 * 64 * 64 * 4)
def _convolution_norm_relu(one: Tensor, other: Tensor) -> Tensor:
    """The results of the convolution and of the norm die; the running statistics change once."""
    mean, variance = torch.zeros(16), torch.ones(16)
    images, weight = one.view(8, 8, 64, -1), other.view(-1)[: 16 * 8 * 9].view(16, 8, 3, 3)
    made = F.relu(F.batch_norm(F.conv2d(images, weight, padding=1), mean, variance, training=True))
    _evict(made)
    return torch.cat([made.view(-1), mean, variance])


@_ran_again(3 * 8 * 16 * 64 * 64 * 4)
def _residual(one: Tensor, other: Tensor) -> Tensor:
    """The sum is made in place, in the norm's result."""
    images, weight = one.view(8, 8, 64, -1), other.view(-1)[: 16 * 8].view(16, 8, 1, 1)
    identity = F.conv2d(images, weight)
    branch = F.batch_norm(F.conv2d(images, weight * 2), None, None, training=True)
    made = F.relu(branch.add_(identity))
    del identity, branch
    _evict(made)
    return made.clone()


@_ran_again(11 * NBYTES // 2 + 3 * 2048 * 4)
def _rms_norm(one: Tensor, other: Tensor) -> Tensor:
    """In bf16, as llama does it. What is widened, and what that was made of, are read twice, and so are made twice."""
    x = one.view(-1, 128).bfloat16()
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    made = (wide * scale).bfloat16() * other[0, :128].bfloat16()
    del wide, scale
    _evict(made)
    return made.float()


@_ran_again(NBYTES)
def _operand_written_to(one: Tensor, other: Tensor) -> Tensor:
    """The ingredient reads it, and has died."""
    made = torch.tanh(one * other)
    _evict(made)
    one.zero_()
    return made + one


@_ran_again(NBYTES)
def _operand_written_to_through_numpy(one: Tensor, other: Tensor) -> Tensor:
    made = torch.tanh(one * other)
    _evict(made)
    other.numpy()[:] = 0
    return made + other


@_ran_again(NBYTES)
def _changed_before_it_was_read(one: Tensor, other: Tensor) -> Tensor:
    ingredient = one * other
    ingredient.add_(one).mul_(2)
    made = torch.sigmoid(ingredient)
    del ingredient
    _evict(made)
    return made.clone()


@_ran_again(NBYTES)
def _changed_after_it_was_read(one: Tensor, other: Tensor) -> Tensor:
    ingredient = one * other
    made = torch.sigmoid(ingredient)
    ingredient.zero_()
    _evict(made)
    return made + ingredient


@_ran_again(2 * NBYTES)
def _shared_by_two(one: Tensor, other: Tensor) -> Tensor:
    ingredient = one * other
    made, more = torch.sigmoid(ingredient), torch.tanh(ingredient)
    del ingredient
    _evict(made, more)
    return made + more


@_ran_again(3 * NBYTES)
def _changed_by_what_was_made_of_it(one: Tensor, other: Tensor) -> Tensor:
    """The sum's recipe has that of the square, which has that of the product, as it was before."""
    made = one * other
    square = made.square()
    made.add_(square)
    again = torch.tanh(made)
    del square
    _evict(again)
    return again + made


@_ran_again(2 * NBYTES + 2 * SIDE * 8)
def _views_and_lists(one: Tensor, other: Tensor) -> Tensor:
    ingredient, rows = one * other, torch.arange(SIDE).flip(0)
    stacked = torch.cat([ingredient.t(), one, ingredient[100:]])
    picked = ingredient[:, rows]
    del ingredient, rows
    _evict(stacked, picked)
    return torch.cat([stacked, picked])


@_ran_again(NBYTES)
def _place_is_anothers_by_now(one: Tensor, other: Tensor) -> Tensor:
    ingredient = one * other
    made = torch.tanh(ingredient)
    del ingredient
    others = [torch.full((SIDE, SIDE), 7.0) for _ in range(3)]
    _evict(made)
    return made + sum(others)


@_ran_again(NBYTES)
def _from_another_thread(one: Tensor, other: Tensor) -> Tensor:
    """Four ask for it at once, and one makes it."""
    made = torch.tanh(one * other)
    _evict(made)
    return torch.stack(at_once(lambda: made * 2))


@_ran_again(0)
def _with_another_number_of_threads(one: Tensor, other: Tensor) -> Tensor:
    """It has no recipe then, and is moved."""
    before = torch.get_num_threads()
    ingredient = one * other
    torch.set_num_threads(before + 1)
    made = torch.tanh(ingredient)
    torch.set_num_threads(before)
    del ingredient
    _evict(made)
    return made.clone()


@_ran_again(0)
def _slice_changed_in_place(one: Tensor, other: Tensor) -> Tensor:
    """A storage is a slice of the one that has the recipe."""
    made = one * other
    part = torch.empty(0).set_(made.untyped_storage()[4096 * 16 : 4096 * 48])  # type: ignore[call-overload]
    part.mul_(2)
    _evict(made)
    return made.clone()


@dataclass(frozen=True, slots=True)
class Chained:
    same: bool
    remade_bytes: int
    ingredient_bytes: int


def _operands() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SIDE, SIDE, generator=generator), torch.randn(SIDE, SIDE, generator=generator)


@contextmanager
def _counted(one_in: int) -> Iterator[list[int]]:
    """A session whose storages have recipes. Afterwards the list has the bytes that were made anew in it, and those of
    ingredients."""
    counts: list[int] = []
    with ebbtide.Session(fast="1GiB"), recipes(one_in):
        before = _torch.counters()
        yield counts
        after = _torch.counters()
    counts += [after["made_anew_bytes"] - before["made_anew_bytes"]]
    counts += [after["ingredient_bytes"] - before["ingredient_bytes"]]


def chain(name: str, one_in: int) -> Chained:
    """Run a case where one in so many of what has recipes is an ingredient."""
    case, _ = CASES[name]
    with mock.patch.object(_torch, "evict", return_value=0):
        plain = case(*_operands())
    with _counted(one_in) as counts:
        found = case(*_operands())
        same = found.numpy().tobytes() == plain.numpy().tobytes()
    return Chained(same, *counts)


@pytest.mark.in_child(ENV | {"EBBTIDE_PIECE": "2MiB"})
@pytest.mark.alike
@pytest.mark.parametrize("name", [name for name, (_, nbytes) in CASES.items() if nbytes > 0])
def test_so_is_what_is_in_pieces(name: str) -> None:
    """The same, in which all that is of the size of its operands, 9 MiB, is in pieces of 2 MiB or more."""
    global SIDE
    SIDE = 1536
    found = chain(name, 1)
    assert found.same
    assert found.ingredient_bytes >= 9 << 20
    assert found.remade_bytes >= 9 << 19  # in bf16


def _in_place_of_sigmoid(kernel: Callable[[Tensor], Tensor]) -> Any:
    """By its place in the sources, PyTorch takes it for one of its own."""
    known = dict[str, Any](torch=torch)
    root = re.search(r"registered at (.*)build/aten", torch._C._dispatch_dump_table("aten::empty.memory_format"))
    assert root is not None
    exec(compile('library = torch.library.Library("aten", "IMPL")', f"{root[1]}torch/csrc/ours.py", "exec"), known)
    library: Any = known["library"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("sigmoid", kernel, "CPU")
    return library


def test_an_ingredient_that_loses_its_recipe_while_it_is_read_is_none() -> None:
    """While an operator reads an ingredient, another thread writes to what that was made of."""
    meanwhile: list[Callable[[], Any]] = []

    def kernel(read: Tensor) -> Tensor:
        made = torch.empty_like(read)
        made.copy_(read)
        if meanwhile:
            at_once(meanwhile.pop(), 1)
        return made

    library = _in_place_of_sigmoid(kernel)
    with _counted(1) as counts:
        one, other = _operands()
        expected = (one * other).sum()
        ingredient = one * other
        meanwhile.append(one.zero_)
        made = torch.sigmoid(ingredient)
        again = torch.sigmoid(one + other)
        del ingredient
        _evict(made, again)
        same = torch.equal(made.sum(), expected) and torch.equal(again, other)
    del library
    found = Chained(same, *counts)
    assert found.same
    assert found.remade_bytes == found.ingredient_bytes > 0  # of the one that was made in peace


def does_not_repeat() -> None:
    """An ingredient is another one when it is made again."""
    calls = []

    def kernel(read: Tensor) -> Tensor:
        calls.append(read.shape)
        made = torch.empty_like(read)
        made.copy_(read)
        return made.add_(len(calls))

    library = _in_place_of_sigmoid(kernel)
    with ebbtide.Session(fast="1GiB"), recipes(1):
        one, _ = _operands()
        made = torch.tanh(torch.sigmoid(one))
        _evict(made)
        made.clone()
    del library


LINKS = 20_000


@pytest.mark.alike
@pytest.mark.parametrize("how", ["operators", "foreign", "nobody's"])
@pytest.mark.parametrize("one_in", [0, 1])
def test_thousands_that_are_made_of_each_other_overflow_no_stack(how: str, one_in: int) -> None:
    """Each is made of the one before. All are away, or none but the last is anybody's."""

    def last(start: Tensor) -> Tensor:
        made = start
        for _ in range(LINKS):
            made = made * 1.0001
        return made

    plain = last(torch.ones(1024)).numpy().tobytes()
    with _counted(one_in) as counts:
        links = [torch.ones(1024)]
        for _ in range(LINKS):
            links.append(links[-1] * 1.0001)
        found = links[-1]
        if how == "nobody's":
            links.clear()
            _evict(found)
        else:
            _evict(*links)
        same = (found.numpy() if how == "foreign" else found.clone().numpy()).tobytes() == plain
        del found, links
    found = Chained(same, *counts)
    assert found.same
    assert found.remade_bytes > 0
    assert (found.ingredient_bytes > 0) == (one_in > 0)


@dataclass(frozen=True, slots=True)
class Planned:
    same: bool
    modes: tuple[str, ...]
    remade: tuple[int, ...]  # bytes, by step
    ingredient_bytes: int


def _convolutions() -> tuple[nn.Module, Tensor]:
    layers = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()] * 16
    return nn.Sequential(*[copy.deepcopy(layer) for layer in layers]), torch.randn(16, 8, 64, 64)


class _Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(256, 256, dtype=torch.bfloat16), nn.Parameter(torch.ones(256))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return F.silu(self.linear((wide * scale * self.weight).bfloat16())) + x


def _norms() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*[_Norm() for _ in range(6)]), torch.randn(2048, 256, dtype=torch.bfloat16)


NETS = {"convolutions": _convolutions, "norms": _norms}


def planned(name: str, fast: str) -> Planned:
    """Train by a plan, in which operators cost less than any copy."""

    def train() -> list[Tensor]:
        torch.manual_seed(0)
        model, batch = NETS[name]()
        optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(batch).float().square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().clone())
        return [*losses, *(value.detach().clone() for value in model.state_dict().values())]

    plain = train()
    with ebbtide.Session(fast=fast) as session:
        ours = train()
        ingredient_bytes = _torch.counters()["ingredient_bytes"]
    steps = session.report().steps
    return Planned(
        all(map(torch.equal, plain, ours)),
        tuple(str(step.mode) for step in steps),
        tuple(step.made_anew_bytes for step in steps),
        ingredient_bytes,
    )


@pytest.mark.alike
@pytest.mark.parametrize("name", CASES)
def test_what_was_made_of_what_has_died_or_changed_is_made_anew(name: str) -> None:
    found = chain(name, 1)
    assert found.same
    _, nbytes = CASES[name]
    assert found.ingredient_bytes >= nbytes if name == "from-another-thread" else found.ingredient_bytes == nbytes
    assert found.remade_bytes > 0 or name == "with-another-number-of-threads"


@pytest.mark.alike
@pytest.mark.parametrize("name", CASES)
def test_some_of_it_may_be_held(name: str) -> None:
    assert chain(name, 2).same


@pytest.mark.here
def test_an_ingredient_that_does_not_repeat_is_an_error_with_its_name() -> None:
    chain = r"making a storage anew by aten::tanh: aten::sigmoid: other bytes come out .*EBBTIDE_REMAKE=0"
    with pytest.raises(child.ChildError, match=chain):
        child.run(does_not_repeat, env=ENV)


@pytest.mark.here
@pytest.mark.parametrize("name", NETS)
def test_a_plan_has_what_has_died_made_for_what_it_makes_anew(name: str, tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(SLOW)
    env = {"EBBTIDE_REMAKE": "check", "EBBTIDE_MACHINE": str(file)}
    found = child.run(planned, name, "25%", env=env)
    assert found.same
    assert set(found.modes[2:]) == {"planned"}
    assert max(found.remade) > 0
    assert found.ingredient_bytes > 0
