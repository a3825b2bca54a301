"""What test_operands.py runs in child processes: operands that are hard to see, and code that names none.

Each compares with what plain PyTorch computes from the same tensors, after those of the session have been away.
"""

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import ebbtide
from ebbtide import _torch
from ebbtide.errors import BudgetError
from ebbtide.units import MIB


def _coo() -> torch.Tensor:
    where = torch.arange(300_000).reshape(1, -1) * 3
    return torch.sparse_coo_tensor(where, torch.randn(300_000), (900_000,), check_invariants=False)


def _dense() -> torch.Tensor:
    return torch.where(torch.rand(512, 512) < 0.5, torch.randn(512, 512), torch.zeros(()))


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "coo": _coo,
    "csr": lambda: _dense().to_sparse_csr(),
    "csc": lambda: _dense().to_sparse_csc(),
    "bsr": lambda: _dense().to_sparse_bsr((4, 4)),
    "bsc": lambda: _dense().to_sparse_bsc((4, 4)),
    "nested": lambda: torch.nested.nested_tensor([torch.randn(n, 512) for n in (100, 300, 700)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(1024, 1024), 0.1, 0, torch.qint8),
}


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that it is made of."""
    if tensor.is_quantized:
        return [tensor.int_repr()]
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def _bytes(tensor: torch.Tensor) -> list[bytes]:
    return [part.contiguous().numpy().tobytes() for part in parts(tensor)]


def every_part_is_an_operand(layout: str) -> None:
    """It leaves as a whole, an operator brings it back as a whole without a fault, and counts it in its need."""
    torch.manual_seed(0)
    original = LAYOUTS[layout]()
    plain = _bytes(original.clone())
    with ebbtide.Session(fast="50%"):
        ours = original.clone()
        managed = [part for part in parts(ours) if _torch.is_managed(part)]
        assert layout == "quantized" or managed
        left = _torch.evict([ours])
        assert left >= sum(part.nbytes for part in managed)
        _torch.start(_settings())
        before = _torch.counters()
        again = ours.clone()
        after = _torch.counters()
        assert sum(after["fetched_bytes"]) - sum(before["fetched_bytes"]) >= left
        assert after["faults"] == before["faults"]
        assert after["largest_operator_bytes"] >= left
        assert _bytes(again) == plain


def _settings() -> _torch.ArenaSettings:
    """Of a session that begins anew: it forgets the largest operator."""
    asked = _torch.ArenaSettings()
    asked.spill_dirs = ["/var/tmp"]
    asked.min_bytes = 4096
    return asked


def sparse_gradients(fast: str) -> None:
    """Embedding with SparseAdam in a small budget: refused with the sentence, or trained."""
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(20_000, 128, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    with ebbtide.Session(fast=fast) as session:
        for _ in range(5):
            with session.step():
                optimizer.zero_grad()
                embedding(torch.randint(0, 20_000, (64, 128))).square().mean().backward()
                optimizer.step()


def refused_for_sparse_operands() -> str:
    with pytest.raises(BudgetError) as refused:
        sparse_gradients("10%")
    return str(refused.value)


def sparse_operands_larger_than_the_arena() -> None:
    """CSR times CSR in an arena of 1 MiB ends, over budget and with its need known."""
    torch.manual_seed(0)
    rows = _dense().to_sparse_csr()
    plain = _bytes(rows * rows)
    with ebbtide.Session(fast="50%"):
        ours = rows.clone()
        assert _torch.evict([ours]) > MIB
        _torch.set_limits(arena_bytes=1 * MIB, process_bytes=0)
        assert _bytes(ours * ours) == plain
        counters = _torch.counters()
    assert counters["over_budget"]
    assert counters["largest_operator_bytes"] > 2 * MIB


def a_fused_kernel_of_the_scripts() -> list[int]:
    """Return how many parameters each call of it gets."""
    lengths, library = list[int](), torch.library.Library("aten", "IMPL")

    def own(parameters: list[torch.Tensor], *_: object, **__: object) -> None:
        lengths.append(len(parameters))

    library.impl("_fused_sgd_", own, "CPU")
    with ebbtide.Session(fast="50%"):
        parameters = [torch.ones(1024, 1024, requires_grad=True) for _ in range(3)]
        optimizer = torch.optim.SGD(parameters, lr=0.1, fused=True)
        sum(parameter.sum() for parameter in parameters).backward()  # type: ignore[union-attr]
        optimizer.step()
    return lengths


# ---- lists ---------------------------------------------------------------------------------------------------------


def lists_of_unequal_length(short: str) -> None:
    """Refused as plain PyTorch refuses them, with nothing changed."""
    names = ["self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"]

    def lists(length: int) -> list[list[torch.Tensor]]:
        torch.manual_seed(0)
        made = []
        for name in names:
            count = {"max_exp_avg_sqs": 0}.get(name, 6)
            count = length if name == short else count
            made.append([torch.ones(()) if name == "state_steps" else torch.rand(200, 200) for _ in range(count)])
        return made

    def update(made: list[list[torch.Tensor]]) -> None:
        settings = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
        torch._fused_adamw_(*made, **settings, amsgrad=False, maximize=False)

    def values(made: list[list[torch.Tensor]]) -> list[bytes]:
        return [tensor.numpy().tobytes() for tensors in made for tensor in tensors]

    for length in (1, 0, 5) if short != "max_exp_avg_sqs" else (1, 6):
        outcomes = []
        for session in (contextlib.nullcontext(), ebbtide.Session(fast="50%")):
            with session:
                made = lists(length)
                if not isinstance(session, contextlib.nullcontext):
                    assert _torch.evict([tensor for tensors in made for tensor in tensors]) > 0
                said = ""
                try:
                    update(made)
                except RuntimeError as error:
                    said = str(error)
                outcomes.append((said, values(made)))
        assert outcomes[0] == outcomes[1], length
        assert outcomes[0][0] or short == "max_exp_avg_sqs"


# ---- code that names no operands -----------------------------------------------------------------------------------


def _tensors(count: int) -> list[torch.Tensor]:
    return [torch.full((512, 512), float(i)) for i in range(count)]


@contextlib.contextmanager
def arena_of(nbytes: int) -> Iterator[None]:
    with ebbtide.Session(fast="50%"):
        _torch.set_limits(arena_bytes=nbytes, process_bytes=0)
        yield
        torch.ones(8).add_(1)  # what was going round has ended
        counters = _torch.counters()
    assert counters["over_budget"]
    assert "cycles through more storages than the budget holds" in counters["message"]
    assert "compiled kernel" in counters["largest_operator"]
    assert counters["largest_operator_bytes"] >= 24 * MIB


def a_loop_over_raw_addresses() -> None:
    with arena_of(16 * MIB):
        tensors = _tensors(24)
        addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        for at in range(0, tensors[0].nbytes, 4096):
            for address in addresses:
                ctypes.c_float.from_address(address + at).value += 1
        faults = _torch.counters()["faults"]
        for number, tensor in enumerate(tensors):
            assert float(tensor.double().sum()) == number * 512 * 512 + 256
    assert faults < 24 * 6


def a_compiled_update() -> None:
    """Inductor makes one loop of it, over all tensors at once."""

    @torch.compile
    def update(weights: list[torch.Tensor], gradients: list[torch.Tensor], momenta: list[torch.Tensor]) -> None:
        torch._foreach_mul_(momenta, 0.9)
        torch._foreach_add_(momenta, gradients)
        torch._foreach_add_(weights, momenta, alpha=-0.1)

    def train() -> list[bytes]:
        lists = _tensors(12), _tensors(12), _tensors(12)
        for _ in range(3):
            update(*lists)
        return [tensor.numpy().tobytes() for tensors in lists for tensor in tensors]

    plain = train()
    with arena_of(16 * MIB):
        assert train() == plain


# ---- a disk that cannot be read, and protection that is not what it should be --------------------------------------


def _lose_the_spill_file() -> None:
    """What was written is gone, as on a disk that died: reading meets the end of the file."""
    for link in Path("/proc/self/fd").iterdir():
        file = os.stat(link) if link.exists() else None
        if file is not None and stat.S_ISREG(file.st_mode) and file.st_nlink == 0 and file.st_size > 0:
            os.truncate(link, 0)


def reads_what_the_disk_lost(by: str) -> None:
    with ebbtide.Session(fast="50%"):
        tensor = torch.arange(1 << 20, dtype=torch.float32)
        assert _torch.evict([tensor]) > 0
        _lose_the_spill_file()
        if by == "numpy":
            with pytest.raises(RuntimeError, match="cannot be read back from the spill directory"):
                tensor.numpy()
            assert not _torch.is_resident(tensor)
        else:
            print("it computed", float(tensor.sum()) if by == "an operator" else struct.pack("f", tensor[5]))


def protection_fails_half_way() -> None:
    """Run with a library in front of ``mprotect`` that fails once, half way."""
    with ebbtide.Session(fast="2GiB", policy="demand", progress="off"):
        tensor = torch.zeros(100_000)
        assert _torch.evict([tensor]) == 0  # the kernel refused
        tensor.add_(1)
        assert float(tensor.sum()) == 100_000
        assert _torch.evict([tensor]) > 0
        assert float(tensor.sum()) == 100_000
    print("put right")
