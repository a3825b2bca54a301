"""Operands that are hard to see, code that names none, what cannot come back: it ends, and is right or says so.

Each compares with what plain PyTorch computes from the same tensors, after those of the session have been away.
"""

import contextlib
import ctypes
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import ebbtide
from ebbtide import _torch
from ebbtide.errors import BudgetError
from ebbtide.units import MIB
from tests.helpers import child
from tests.helpers.command import run
from tests.helpers.paths import ROOT

PAGES = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_POLICY": "demand", "EBBTIDE_PROGRESS": "off"}
pytestmark = pytest.mark.in_child(PAGES)


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_part_of_a_tensor_is_an_operand(layout: str) -> None:
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


def test_a_budget_that_sparse_operands_do_not_fit_is_refused_by_name() -> None:
    with pytest.raises(BudgetError) as refused:
        sparse_gradients("10%")
    said = str(refused.value)
    assert "needs" in said
    assert "The smallest budget that can work with what has run so far is" in said


def test_sparse_operands_larger_than_the_arena_go_over_budget() -> None:
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


def test_a_fused_kernel_of_the_scripts_is_called_once_for_all() -> None:
    lengths, library = list[int](), torch.library.Library("aten", "IMPL")

    def own(parameters: list[torch.Tensor], *_: object, **__: object) -> None:
        lengths.append(len(parameters))

    library.impl("_fused_sgd_", own, "CPU")
    with ebbtide.Session(fast="50%"):
        parameters = [torch.ones(1024, 1024, requires_grad=True) for _ in range(3)]
        optimizer = torch.optim.SGD(parameters, lr=0.1, fused=True)
        sum(parameter.sum() for parameter in parameters).backward()  # type: ignore[union-attr]
        optimizer.step()
    assert lengths == [3]


@pytest.mark.parametrize("short", ["grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"])
def test_lists_of_unequal_length_are_refused_as_plain_pytorch_refuses_them(short: str) -> None:
    """With nothing changed."""
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


def test_a_loop_over_raw_addresses() -> None:
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


def test_a_compiled_update() -> None:
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


@pytest.mark.here
@pytest.mark.parametrize("by", ["an operator", "an access"])
def test_bytes_that_cannot_be_read_back_end_the_process_with_the_reason(by: str) -> None:
    with pytest.raises(child.ChildError) as ended:
        child.run(reads_what_the_disk_lost, by, env=PAGES)
    said = str(ended.value)
    assert "exit code -6" in said  # 134 to a shell
    assert "ebbtide: fatal: reading a storage back from the spill directory /" in said
    assert "it computed" not in said


def test_an_array_of_bytes_that_cannot_be_read_back_is_an_error() -> None:
    reads_what_the_disk_lost("numpy")


FAILS_HALF_WAY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The first change of exactly the 98 pages of the tensor to read-only is made for half of them and then refused. */
int mprotect(void *address, size_t bytes, int protection) {
  static int (*real)(void *, size_t, int);
  static int failed;
  if (!real) real = dlsym(RTLD_NEXT, "mprotect");
  if (protection != PROT_READ || bytes != 98 * 4096 || failed) return real(address, bytes, protection);
  failed = 1;
  real(address, 49 * 4096, protection);
  errno = ENOMEM;
  return -1;
}
"""


@pytest.mark.here
def test_protection_that_fails_half_way_is_put_right(tmp_path: Path) -> None:
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(FAILS_HALF_WAY)
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    script = "from tests.training.test_operands import protection_fails_half_way as look; look()"
    env = {"LD_PRELOAD": str(shim), "PYTHONPATH": f"{ROOT}:{':'.join(sys.path[1:])}"}
    done = run(sys.executable, "-c", script, env=env, status=0)
    assert done.stdout.strip() == "put right"


def test_a_kernel_that_reads_past_the_end_of_a_storage_gets_the_same_bits() -> None:
    """Fused SGD in bfloat16 reads a vector beyond a momentum whose bytes are a multiple of a page."""

    def trained() -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).bfloat16()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9, fused=True)
        for _ in range(6):
            optimizer.zero_grad()
            net(torch.randn(16, 512).bfloat16()).float().square().mean().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in net.parameters()]

    plain = trained()
    with ebbtide.Session(fast="60%") as session:
        ours = trained()
    assert all(map(torch.equal, plain, ours))
    assert sum(step.fetched_bytes.total for step in session.report().steps) > 0
