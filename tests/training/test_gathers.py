"""Gathers of rows from a table that comes by faults are those of PyTorch, to the last bit, warning and error.

Each gather is made by plain PyTorch first, of a table in PyTorch's memory, and then of one that is larger than the
arena: the same bits, shapes, strides, flags and gradients; the same warnings and errors; the same operators.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import ebbtide
from ebbtide import _torch
from ebbtide.units import MIB

ARENA = 24 * MIB
ROWS, COLUMNS = 40_960, 256  # 40 MiB
N = 24
VIEWS = {"aten::as_strided", "aten::reshape", "aten::view", "aten::select"}  # they touch nothing, and are no ticks


def table() -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))


def index(seed: int = 0, below: int = ROWS) -> Tensor:
    return torch.randint(below, (N,), generator=torch.Generator().manual_seed(seed))


def _mask(dtype: torch.dtype) -> Tensor:
    return torch.zeros(ROWS, dtype=dtype).index_fill_(0, index(), 1)


def _index_op(t: Tensor, *indices: Tensor | None) -> Tensor:
    return torch.ops.aten.index(t, list(indices))


def _out(t: Tensor) -> Tensor:
    return torch.index_select(t, 0, index(), out=torch.empty(N, COLUMNS))


def _sparse_gradient(t: Tensor) -> list[Tensor]:
    weight = t.detach().requires_grad_()
    rows = F.embedding(index().view(2, -1), weight, sparse=True, padding_idx=3)
    rows.square().sum().backward()
    assert weight.grad is not None
    return [rows.detach(), weight.grad.coalesce().indices(), weight.grad.coalesce().values()]


def _deterministic(t: Tensor) -> Tensor:
    torch.use_deterministic_algorithms(True)
    try:
        return t[index()]
    finally:
        torch.use_deterministic_algorithms(False)


GATHERS: dict[str, Callable[[Tensor], Any]] = {
    "rows": lambda t: t[index()],
    "from the end": lambda t: t[index() - ROWS],
    "from both ends": lambda t: t[index() - ROWS // 2],
    "one row": lambda t: t[torch.tensor([7])],
    "one row, no dimension": lambda t: _index_op(t, torch.tensor(7)),
    "no rows": lambda t: [t[torch.tensor([], dtype=torch.long)], t.index_select(0, torch.tensor([], dtype=torch.long))],
    "a list": lambda t: t[[3, 1, 2]],
    "int32": lambda t: [t[index().int()], t.index_select(0, index().int())],
    "a matrix of rows": lambda t: t[index().view(4, -1)],
    "a matrix of one column": lambda t: t[index().view(-1, 1)],
    "a transposed index": lambda t: t[index().view(4, -1).t()],
    "an index with gaps": lambda t: [t[index()[::2]], t.index_select(0, index()[::2])],
    "an expanded index": lambda t: t[torch.tensor([5]).expand(4)],
    "a mask": lambda t: t[_mask(torch.bool)],
    "a mask of bytes": lambda t: t[_mask(torch.uint8)],
    "two indices": lambda t: t[index(), index(1, COLUMNS)],
    "a trailing None": lambda t: _index_op(t, index(), None),
    "columns": lambda t: t.index_select(1, torch.tensor([3, 0, 3])),
    "columns by an index": lambda t: t[:, torch.tensor([3, 0, 3])],
    "a transposed table": lambda t: t.t()[torch.tensor([9, 3])],
    "a part of the table": lambda t: [t[5:][index(0, ROWS - 5)], t[5:].index_select(0, index(0, ROWS - 5))],
    "every other row": lambda t: t[::2][index(0, ROWS // 2)],
    "blocks": lambda t: t.view(ROWS, 16, 16)[index()],
    "blocks with a dimension of one": lambda t: [
        t.unsqueeze(1)[index()],
        t.unsqueeze(2)[index()],
        t.unsqueeze(1)[index().view(-1, 1)],
    ],
    "a strange stride where there is one": lambda t: t.as_strided((ROWS, 1, COLUMNS), (COLUMNS, 7, 1))[index()],
    "numbers": lambda t: [t.view(-1)[index() * COLUMNS], t.view(-1).index_select(0, index() * COLUMNS)],
    "another type": lambda t: [t.view(dtype)[index()] for dtype in (torch.int64, torch.uint8, torch.bfloat16)],
    "index_select": lambda t: [t.index_select(0, index()), t.index_select(-2, index())],
    "out": _out,
    "take": lambda t: t.take(index()),
    "complex": lambda t: torch.view_as_complex(t.view(ROWS, -1, 2))[index()],
    "a conjugate": lambda t: torch.view_as_complex(t.view(ROWS, -1, 2)).conj()[index()],
    "a negative view": lambda t: torch._neg_view(t)[index()],
    "an embedding": lambda t: F.embedding(index().view(2, -1), t),
    "a sparse gradient": _sparse_gradient,
    "an embedding bag": lambda t: F.embedding_bag(index().view(2, -1), t, mode="sum"),
    "vmap": lambda t: torch.vmap(lambda i: t[i])(index().view(4, -1)),
    "deterministic": _deterministic,
    "beyond the end": lambda t: t[torch.tensor([0, ROWS])],
    "an embedding beyond the end": lambda t: F.embedding(torch.tensor([[0, 3], [0, 10 * ROWS]]), t),
    "before the beginning": lambda t: t[torch.tensor([0, -ROWS - 1])],
    "index_select beyond the end": lambda t: t.index_select(0, torch.tensor([0, ROWS])),
    "index_select from the end": lambda t: t.index_select(0, torch.tensor([0, -1])),
    "index_select of a matrix": lambda t: t.index_select(0, index().view(4, -1)),
    "index_select of no such dimension": lambda t: t.index_select(2, index()),
    "fractions": lambda t: [t[torch.tensor([0.5])]],
    "index_select of fractions": lambda t: t.index_select(0, torch.tensor([0.5])),
    "a mask that is too short": lambda t: t[torch.tensor([True])],
    "too many indices": lambda t: _index_op(t, index(), index(), index()),
}
ROW_BY_ROW = {"rows", "from the end", "int32", "index_select", "an embedding", "an embedding beyond the end"}
"""These need no more of the table at once than there is room for."""


def _told(gather: Callable[[Tensor], Any], t: Tensor) -> list[Any]:
    """All that can be told of a gather: its results, or its error, its warnings and its operators."""
    with warnings.catch_warnings(record=True) as warned, torch.profiler.profile() as profile:
        warnings.simplefilter("always")
        try:
            results = gather(t)
        except (IndexError, RuntimeError) as error:
            results = f"{type(error).__name__}: {error}"
    told: list[Any] = [str(warning.message) for warning in warned]
    told.append(
        [event.name for event in profile.events() if event.name.startswith("aten::") and event.name not in VIEWS]
    )
    if isinstance(results, str):
        return [*told, results]
    for result in results if isinstance(results, list) else [results]:
        told.append(
            (result.shape, result.stride(), result.dtype, result.is_conj(), result.is_neg(), result.storage_offset())
        )
        told.append((result.requires_grad, result.untyped_storage().nbytes(), result.untyped_storage().resizable()))
        told.append(bytes(result.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).tolist()))
    return told


@pytest.mark.in_child({"EBBTIDE_PIECE": "2MiB", "EBBTIDE_PROGRESS": "off"})
@pytest.mark.parametrize("part", range(4))
def test_gathers_from_a_table_larger_than_the_arena_are_pytorchs(part: int) -> None:
    plain = table()
    expected = {name: _told(GATHERS[name], plain) for name in list(GATHERS)[part::4]}
    del plain
    with ebbtide.Session(arena_bytes=ARENA, policy="demand", progress="off"):
        ours = table()
        assert _torch.is_managed(ours)
        assert not _torch.is_resident(ours)
        found = {n: _told(GATHERS[n], ours) for n in list(GATHERS)[part::4] if n in ROW_BY_ROW}
        counters = _torch.counters()
        assert counters["reserved_peak_bytes"] <= ARENA
        assert not counters["over_budget"], counters["message"]
        found |= {n: _told(GATHERS[n], ours) for n in list(GATHERS)[part::4] if n not in ROW_BY_ROW}
        different = [(n, told) for n, told in found.items() if told != expected[n]]
        assert not different, [
            (n, *((a, b) for a, b in zip(told, expected[n], strict=False) if a != b)) for n, told in different
        ]
        assert sum(_torch.counters()["fetched_bytes"]) > 0


@pytest.mark.in_child({"EBBTIDE_PROGRESS": "off"})
def test_a_kernel_that_the_script_registered_before_stays() -> None:
    calls: list[str] = []

    def counting(name: str) -> Callable[..., Tensor]:
        def kernel(t: Tensor, *rest: Any) -> Tensor:
            calls.append(name)
            return torch.zeros(1)

        return kernel

    t = torch.ones(8, 8)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("index_select", counting("index_select"), "CPU")
        library.impl("index.Tensor", counting("index"), "CPU")
        with ebbtide.Session(fast="1GiB"):
            torch.index_select(t, 0, torch.tensor([1]))
            t[torch.tensor([1])]
    assert {name: name in calls for name in ("index_select", "index")} == {"index_select": True, "index": True}
