"""What a script may do on the tests' device to a storage that is to be made anew, or to what that is made of."""

import ctypes
import time
from unittest import mock

import pytest
import torch
from torch import Tensor

from ebbtide import _torch
from tests.device import lagging
from tests.device.lagging import held
from tests.helpers import child
from tests.training import looks_at_what_is_made_anew as on_any_device
from tests.training.cases_device_memory import is_all, numbers, session
from tests.training.device_jobs import DEVICE
from tests.training.looks_at_what_is_made_anew import Doubles, looks_of, made_of_two, recipes

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
pytestmark = pytest.mark.in_child(ONE_THREAD, lagging.load)


def _made() -> tuple[Tensor, Tensor, Tensor]:
    return made_of_two(64, DEVICE)


def _operator(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return made + 1


def _its_address(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    assert made.data_ptr()
    return made


def _storage(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return torch.tensor([made.untyped_storage()[at] for at in range(64)])


def _operand_written(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    one.zero_()
    _torch.evict([made])  # it has no recipe any more
    return made + one


def _slice_of_an_operand_written(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    one[-10:].zero_()
    other.view(-1)[:3].fill_(1)
    return made + one


def _address_of_an_operand(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    assert other.data_ptr()
    lagging.load().fill(other, 0)
    return made + other


def _operand_written_by_no_operator(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    lagging.load().fill(other, 0)
    return made + other


def _operand_read_before_that(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    """The first time PyTorch calls for an operator that reads."""
    first = other + one
    lagging.load().fill(other, 0)
    return made + first


def _operand_in_an_operator_of_others(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    """Its schema does not say that it writes there."""
    with torch.library._scoped_library("tests_of_ebbtide", "DEF") as library:
        library.define("zeroes(Tensor x) -> Tensor")
        library.impl("zeroes", _zeroes, "PrivateUse1")
        torch.ops.tests_of_ebbtide.zeroes(one)
    return made + one


def _zeroes(x: Tensor) -> Tensor:
    lagging.load().fill(x, 0)
    return x.clone()


def _changed_by_no_operator(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    before = made + 1
    lagging.load().fill(made, 0)
    _torch.evict([made])
    return made + before


def _cast_and_product(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    half = made.to(torch.bfloat16)
    product = half @ half
    _torch.evict([half, product, made])
    return (product + half).float()


def _autocast(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16):
        product = made @ made
    _torch.evict([product])
    return product.float()


def _in_a_mode(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    with Doubles():
        doubled = one * other
    _torch.evict([doubled])
    return doubled + made


def _a_setting_changes(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = not before
    torch.backends.cuda.matmul.allow_tf32 = before
    return made.clone()


LOOKS = looks_of(vars(on_any_device) | globals())


@pytest.mark.parametrize("look", LOOKS)
def test_what_is_made_anew_is_made_before_somebody_sees_it_or_changes_what_it_is_made_of(look: str) -> None:
    with mock.patch.object(_torch, "evict", return_value=0):
        plain = LOOKS[look](*_made()).cpu()
    with session(remake="check"), recipes():
        one, other, made = _made()
        assert _torch.recipes() >= 1
        assert _torch.evict([made]) > 0
        assert not _torch.is_resident(made)
        before = _torch.counters()
        found = LOOKS[look](one, other, made).cpu()
        after = _torch.counters()
    assert found.tolist() == plain.tolist()
    assert after["made_anew_bytes"] - before["made_anew_bytes"] > 0


def copied(tensor: Tensor) -> int:
    """Have it leave, and return the bytes that are copied for that."""
    before = _torch.counters()["tier_written_bytes"][0]
    assert _torch.evict([tensor]) > 0
    return _torch.counters()["tier_written_bytes"][0] - before


def test_what_is_random_or_may_differ_moves() -> None:
    """What is random or not in the table for accelerators moves; so does what a script made on two streams."""
    with session(), recipes():
        one, other, made = _made()
        assert copied(made) == 0
        assert copied(torch.rand(64, 64, device=DEVICE)) > 0
        assert copied(torch.nn.functional.dropout(one)) > 0
        assert copied(torch.cumsum(one, 0)) > 0
        assert copied(torch.sort(one)[0]) > 0
        assert copied(torch.zeros(64, 64, device=DEVICE).index_add_(0, torch.arange(64, device=DEVICE), one)) > 0
        assert copied(one.clone().scatter_add_(0, torch.zeros(64, 64, dtype=torch.long, device=DEVICE), other)) > 0


def test_what_was_struck_moves() -> None:
    with session(remake="-aten::mul"), recipes():
        one, other, made = _made()
        assert copied(made) > 0
        assert copied(one + other) == 0


def test_leaves_again() -> None:
    """A plan has it made anew once; who leaves after that is copied."""
    with session():
        _torch.want_all_recipes(True, one_in=0)
        made = numbers(3) * 2
        assert copied(made) == 0
        _torch.want_all_recipes(False)
        assert is_all(made, 6)
        assert copied(made) > 0
        assert is_all(made, 6)


def test_before_another_stream() -> None:
    """An operator of another stream waits until the storage's own has made it."""
    ours, other = torch.accelerator.current_stream(), torch.Stream(device=DEVICE)
    with session(), recipes(0):
        made = numbers(3) * 2
        assert copied(made) == 0
        other.wait_stream(ours)
        result = numbers(0)
        ours.synchronize()
        with held(ours):
            with other:
                result.copy_(made)
            for _ in range(100):  # as long as it might take
                time.sleep(0.005)
                assert not other.query()
        other.synchronize()
        assert is_all(result, 6)


def test_of_what_two_streams_read() -> None:
    """It is not kept for a recipe: who gives it back waits for what he knows of."""
    ours, other = torch.accelerator.current_stream(), torch.Stream(device=DEVICE)
    with session(), recipes():
        read = numbers(3)
        other.wait_stream(ours)
        with other:
            kept = read + 1
        ours.wait_stream(other)
        assert copied(read * 2) > 0
        assert is_all(kept, 4)


def test_out_of_memory() -> None:
    """Who uses it gets an error, and what follows goes well."""
    with session(), recipes(0):
        one = numbers(3)
        made = one * 2
        assert copied(made) == 0
        for limit in (1, 1 << 30):  # what they had goes back to PyTorch
            _torch.set_device_limit(limit)
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        lagging.load().set_capacity(torch.accelerator.memory_reserved())
        for uses in (made.mul, one.add, made.add_):
            with pytest.raises(RuntimeError, match="out of memory"):
                uses(1)
        lagging.load().set_capacity(1 << 30)
        assert is_all(made, 6)
        assert is_all(one, 3)


def other_bytes(remake: str) -> None:
    """Nobody sees it when memory is written to by its address later than the step in which somebody asked for that."""
    with session(remake=remake), recipes(0):
        one = numbers(3)
        address = one.data_ptr()
        _torch.unpin_on_device(one)
        made = one * 2
        torch.accelerator.synchronize()
        ctypes.memset(address, 0, 4)
        assert copied(made) == 0
        assert not is_all(made, 6)


@pytest.mark.here
def test_what_is_made_of_other_bytes_is_told_where_that_is_asked_for() -> None:
    child.run(other_bytes, "1", env=ONE_THREAD, first=[lagging.load])
    with pytest.raises(child.ChildError, match=r"aten::mul.*other bytes come out than the first time"):
        child.run(other_bytes, "check", env=ONE_THREAD, first=[lagging.load])
