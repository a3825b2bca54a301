"""What the tests of training on a fake GPU run in child processes."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import ebbtide
from ebbtide import _torch

N = 64 * 1024  # elements of a tensor
LARGEST = 4 * N  # bytes of one: a group of lists has one of each


def _lists(dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(N, generator=generator).to(dtype) for _ in range(9)] for _ in range(3)]


def _unlike() -> list[list[Tensor]]:
    """Another type, another order of elements, and more of them."""
    first, second, third = _lists()
    first[2] = first[2].to(torch.bfloat16)
    second[4] = second[4].reshape(256, 256).t()
    first[4] = first[4].reshape(256, 256)
    third[4] = third[4].reshape(256, 256)
    return [first, second, third]


OVER_LISTS: dict[str, Callable[[list[Tensor], list[Tensor], list[Tensor]], Any]] = {
    "results": lambda a, b, c: torch._foreach_mul(a, b),
    "in place": lambda a, b, c: torch._foreach_addcmul_(a, b, c, value=0.5),
    "a number for each": lambda a, b, c: torch._foreach_add_(a, [float(i) for i in range(len(a))]),
    "a number for each of three": lambda a, b, c: torch._foreach_addcdiv_(a, b, c, [0.1 * i for i in range(len(a))]),
    "a tensor for all": lambda a, b, c: torch._foreach_mul_(a, torch.tensor(0.3)),
    "norms": lambda a, b, c: torch._foreach_norm(a, 2),
    "maxima": lambda a, b, c: torch._foreach_maximum(a, b),
    "copies": lambda a, b, c: torch._foreach_copy_(a, b),
    "zeros": lambda a, b, c: torch._foreach_zero_(a),
}


def over_lists(name: str, are_unlike: bool) -> tuple[bool, int, int]:
    """Whether the lists and the results are those of plain PyTorch, where each tensor had left; bytes that came back;
    the most that one operator needed."""
    make, work = _unlike if are_unlike else _lists, OVER_LISTS[name]
    lists = make()
    made = work(*lists)
    expected = [tensor.clone() for each in [*lists, made or []] for tensor in each]
    with ebbtide.Session(fast="1GiB", policy="demand", min_storage_bytes=8192):
        lists = [[tensor.clone() for tensor in each] for each in make()]
        assert _torch.evict([tensor for each in lists for tensor in each]) > 0
        _torch.reset_needs()
        before = sum(_torch.counters()["fetched_bytes"])
        made = work(*lists)
        fetched = sum(_torch.counters()["fetched_bytes"]) - before
        most = _torch.counters()["largest_operator_bytes"]
        _torch.evict([tensor for each in [*lists, made or []] for tensor in each])
        ours = [tensor for each in [*lists, made or []] for tensor in each]
        same = len(ours) == len(expected) and all(map(torch.equal, ours, expected))
    return same, fetched, most


def touched_between_operators() -> bool:
    """What Python reads, or an address that is written to, is brought, and what was written stays."""
    with ebbtide.Session(fast="1GiB", policy="demand"):
        tensor = torch.arange(float(N)) + 0
        assert _torch.evict([tensor]) > 0
        read = tensor.tolist() == list(map(float, range(N)))
        address = tensor.data_ptr()
        assert _torch.evict([tensor]) > 0
        ctypes.c_float.from_address(address).value = 7.0
        assert _torch.evict([tensor]) > 0
        return read and tensor[0].item() == 7.0 and tensor[1].item() == 1.0


def touched_by_an_operator_that_does_not_name_it() -> None:
    """Dies."""
    with ebbtide.Session(fast="1GiB", policy="demand"):
        tensor = torch.arange(float(N)) + 0
        address = tensor.data_ptr()

        @torch.library.custom_op("ebbtide_tests::stray", mutates_args=())
        def stray(x: Tensor) -> Tensor:
            ctypes.c_float.from_address(address).value = 7.0
            return x + 1

        assert _torch.evict([tensor]) > 0
        stray(torch.zeros(N))
