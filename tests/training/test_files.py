"""Files, forks and kills: what the kernel and other processes see of storages whose pages are away."""

import io
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import ebbtide
from ebbtide import _torch
from ebbtide.doors import foreign_views
from ebbtide.host.process import resident_bytes
from ebbtide.units import MIB
from tests.helpers import child, dlpack_table
from tests.helpers.small_disk import small_disk
from tests.helpers.zoo_features import mlp
from tests.training.same_bits import CASES, Run, Snapshot, begin, train, train_plainly

PAGES = {"EBBTIDE_MIN_STORAGE": "4096"}
LARGER_THAN_ARENA = {"EBBTIDE_ARENA": "12MiB", "EBBTIDE_PIECE": "2MiB", "EBBTIDE_POLICY": "demand"}
pytestmark = pytest.mark.in_child
FAST = "50%"
NAME = "weight-averaging"


def _trained_and_evicted() -> tuple[Snapshot, Run]:
    """What a plain run ends with, and the same trained under a session, all of whose tensors were then evicted."""
    plain = train_plainly(CASES[NAME], 3)
    with ebbtide.Session(fast=FAST) as session:
        ours = begin(CASES[NAME])
        train(ours, 3, session)
    evict(ours)
    return plain, ours


def evict(run: Run) -> None:
    managed = [tensor for _, tensor in run.tensors() if _torch.is_managed(tensor)]
    _torch.evict(managed)
    away = [tensor for tensor in managed if not _torch.is_resident(tensor)]
    assert len(away) > 0.9 * len(managed)
    assert len(away) >= 6


@pytest.mark.in_child(PAGES)
def test_torch_save_and_load(tmp_path: Path) -> None:
    """What is saved comes from storages that are away, and what is loaded goes to such."""
    plain, ours = _trained_and_evicted()
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": ours.model.state_dict(), "optimizer": ours.optimizer.state_dict()}, path)
    loaded = torch.load(path, weights_only=True)
    for tensor in ours.model.state_dict().values():
        tensor.zero_()
    evict(ours)
    ours.model.load_state_dict(loaded["model"])
    ours.optimizer.load_state_dict(loaded["optimizer"])
    assert plain.differences(ours) == ()


@pytest.mark.parametrize("how", ["_to_dlpack", "_to_dlpack_versioned", "to_dlpack", "old to_dlpack", "C table"])
def test_memory_that_dlpack_exports_stays(how: str) -> None:
    exports: dict[str, Callable[[torch.Tensor], object]] = {
        "_to_dlpack": lambda tensor: torch._C._to_dlpack(tensor),
        "_to_dlpack_versioned": lambda tensor: torch._C._to_dlpack_versioned(tensor),  # type: ignore[attr-defined]
        "to_dlpack": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
        "old to_dlpack": lambda tensor: torch.to_dlpack(tensor),
        "C table": dlpack_table.keep,
    }
    with ebbtide.Session(fast="1GiB"):
        tensor = torch.ones(1 << 20)
        assert _torch.evict([tensor]) == 4 << 20
        capsule = exports[how](tensor)
        assert _torch.evict([tensor]) == 0
        assert _torch.is_resident(tensor)
        del capsule


@pytest.mark.in_child(PAGES)
def test_kernel_writes_into(tmp_path: Path) -> None:
    """``read()`` into an evicted tensor; what the kernel wrote must then count as written, or eviction loses it."""
    _, ours = _trained_and_evicted()
    weight = ours.model.network[2].weight.detach()
    other = weight + 1.0
    path = tmp_path / "bytes"
    path.write_bytes(other.numpy().tobytes())
    _torch.evict([weight])
    with path.open("rb", buffering=0) as file:
        assert file.readinto(memoryview(weight.numpy()).cast("B")) == weight.nbytes
    assert torch.equal(weight, other)
    _torch.evict([weight])
    assert torch.equal(weight, other)


WIDE = 4096
"""17M weights: with gradients and two moments 286 MB, half of it resident; doubled in a worker it could not hide."""


class Noise(Dataset):
    """Rows that are a function of their index alone, made in the worker."""

    def __len__(self) -> int:
        return 64 * 5

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(256, generator=torch.Generator().manual_seed(index)), index % 64


def test_data_loader_workers_give_the_same_bits_and_do_not_double_memory() -> None:
    """Two forked workers feed the session."""
    loader_batch: list[torch.Tensor] = []
    case = replace(CASES["accumulation-and-clipping"], micro_batches=1)
    case = replace(case, model=lambda: mlp(width=WIDE), batch=lambda _: tuple(loader_batch))
    private_bytes = []
    plain_run = begin(case)
    for loader_batch[:] in DataLoader(Noise(), batch_size=64):
        train(plain_run, 1)
    plain = Snapshot.of(plain_run)
    del plain_run
    with ebbtide.Session(fast="65%") as session:
        ours = begin(case)
        for loader_batch[:] in DataLoader(Noise(), batch_size=64, num_workers=2, multiprocessing_context="fork"):
            train(ours, 1, session)
            private_bytes += [_private_bytes(pid) for pid in _child_pids()]
    assert plain.differences(ours) == ()
    report = session.report()
    assert sum(step.fetched_bytes.total for step in report.steps) > 0
    arena_bytes = report.arena_budget_bytes
    assert arena_bytes > 100 * 2**20
    assert max(private_bytes) < arena_bytes / 2


def _child_pids() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _private_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # the worker has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def train_for_ever(spill: str, moving: str) -> None:
    """Evict and fetch until killed; the file ``moving`` appears once bytes were written to the spill directory."""
    with ebbtide.Session(fast=FAST, spill=spill) as session:
        run = begin(CASES[NAME])
        while True:
            train(run, 1, session)
            if session.report().steps[-1].written_bytes.total > 0:
                Path(moving).touch()


class _Evicting(io.FileIO):
    """A file that sends away what it is about to be read into, as somebody else's need for room might."""

    def readinto(self, view: Any) -> int:
        if len(view) >= 2**16:
            _torch.evict([torch.frombuffer(view, dtype=torch.uint8)])
        return super().readinto(view) or 0


def test_a_checkpoint_is_read_into_what_leaves_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    saved = [torch.randn(512, 512) for _ in range(8)]
    expected = [bytes(tensor.numpy()) for tensor in saved]
    torch.save(saved, path)
    with ebbtide.Session(arena_bytes=4 * 2**20, policy="demand", progress="off"), _Evicting(str(path)) as file:
        loaded = torch.load(file, weights_only=True)
        assert sum(_torch.counters()["written_bytes"]) > 0
        found = [bytes(tensor.clone().numpy()) for tensor in loaded]
        assert sum(_torch.counters()["fetched_bytes"]) > 0
        assert found == expected


def test_records_of_odd_sizes_are_read() -> None:
    """A view with larger elements leaves out the last bytes of its memory."""
    raw = torch.arange((2 << 20) + 3).to(torch.uint8)
    view = raw[: len(raw) // 4 * 4].view(torch.float32)
    with tempfile.NamedTemporaryFile(suffix=".pt") as file, ebbtide.Session(fast="1GiB"):
        torch.save(view, file.name)
        loaded = torch.load(file.name)
        assert _torch.is_managed(loaded)
        assert torch.equal(loaded.view(torch.uint8), view.view(torch.uint8))


@pytest.mark.in_child({"EBBTIDE_ARENA": "32MiB", "EBBTIDE_PIECE": "2MiB", "EBBTIDE_POLICY": "demand"})
def test_numbers_in_an_archive_are_read_into_what_leaves_meanwhile() -> None:
    """A record as numbers, as torch.export reads it."""
    numbers = torch.arange(12 << 20, dtype=torch.float32)  # 48 MiB
    with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
        writer = torch._C.PyTorchFileWriter(file.name)
        writer.write_record("weights/weight_0", numbers.numpy().tobytes(), numbers.nbytes)
        writer.write_end_of_file()
        with ebbtide.Session(fast="1GiB"):
            reader = torch._C.PyTorchFileReader(file.name)
            raw = reader.get_storage_from_record("weights/weight_0", len(numbers), torch.float32)
            read = torch.empty(0).set_(raw.untyped_storage(), 0, (len(numbers),), (1,))
            same = all(torch.equal(*parts) for parts in zip(read.chunk(64), numbers.chunk(64), strict=True))
            assert same
            assert sum(_torch.counters()["evicted_bytes"]) > 0


@pytest.mark.in_child(LARGER_THAN_ARENA)
def test_a_tensor_larger_than_the_arena_is_saved(tmp_path: Path) -> None:
    with ebbtide.Session(fast="1GiB"):
        table = torch.arange(12 << 20, dtype=torch.float32)  # 48 MiB
        torch.save({"table": table, "part": table[5:7]}, str(tmp_path / "saved.pt"))
        counters = _torch.counters()
        assert not counters["over_budget"], counters["message"]
        assert sum(counters["evicted_bytes"]) > table.nbytes // 2
    found = torch.load(str(tmp_path / "saved.pt"), mmap=True)
    assert found["part"].tolist() == [5.0, 6.0]
    assert found["part"].untyped_storage().data_ptr() == found["table"].untyped_storage().data_ptr()
    numbers = torch.arange(1 << 20, dtype=torch.float32)
    assert all(torch.equal(part, numbers + (at << 20)) for at, part in enumerate(found["table"].split(1 << 20)))


@pytest.mark.in_child(LARGER_THAN_ARENA)
def test_a_spill_directory_may_go_since_its_file_has_no_name(tmp_path: Path) -> None:
    """Large tensors are saved, and another session begins."""
    spill = Path(tempfile.mkdtemp(dir="/var/tmp"))
    with ebbtide.Session(fast="1GiB", spill=spill):
        spill.rmdir()
        table = torch.arange(12 << 20, dtype=torch.float32)  # 48 MiB
        torch.save(table, tmp_path / "saved.pt")
        assert sum(_torch.counters()["evicted_bytes"]) > table.nbytes // 2
    with ebbtide.Session(fast="1GiB", policy="ebbtide"):
        assert torch.equal(torch.load(tmp_path / "saved.pt", mmap=True), table)


@pytest.mark.in_child({"EBBTIDE_POLICY": "demand"})
def test_a_tensor_larger_than_half_of_the_arena_is_saved_within_a_size(tmp_path: Path) -> None:
    """It is written by way of a mapped file, whose pages the kernel can take back."""
    if os.major(os.stat("/var/tmp").st_dev) == 0:
        pytest.skip("the spill directory lies on no block device, which tells its files from memory")
    with ebbtide.Session(fast=resident_bytes() + 360 * MIB) as session:
        table, other = torch.nn.Embedding(280 * 1024, 256, sparse=True), torch.zeros(120 << 18)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            table(torch.arange(64 * step, 64 * step + 64)).square().mean().backward()
            optimizer.step()
            other += 1
            if step % 2:
                torch.save(table.weight, tmp_path / "table.pt")
                assert _torch.counters()["arena_limit_bytes"] < 2 * table.weight.nbytes  # else it is written as it lies
        assert other.eq(6).all()
        assert sum(_torch.counters()["fetched_bytes"]) > 0
    assert not session.report().budget_violated, (session.report().process_peak_bytes, session.report().fast_bytes)
    assert torch.equal(torch.load(tmp_path / "table.pt", mmap=True), table.weight)


@pytest.mark.here
def test_a_tensor_larger_than_the_arena_is_not_saved_by_way_of_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path, 16) as full:
        child.run(_saved_by_way_of, spill=full, path=tmp_path / "saved.pt", env=LARGER_THAN_ARENA)


def _saved_by_way_of(spill: Path, path: Path) -> None:
    with ebbtide.Session(fast="1GiB"):
        table = torch.arange(12 << 20, dtype=torch.float32)  # 48 MiB
        sizes = foreign_views._least_managed, foreign_views._least_in_pieces
        before = foreign_views._spill
        foreign_views.sizes(*sizes, spill)
        with pytest.raises(torch.OutOfMemoryError, match=f"spill directory {spill}, which has no room"):
            torch.save(table, str(path))
        foreign_views.sizes(*sizes, before)
        torch.save(table, str(path))
        assert sum(_torch.counters()["evicted_bytes"]) > table.nbytes // 2
    assert torch.load(str(path), mmap=True)[-2:].tolist() == [(12 << 20) - 2.0, (12 << 20) - 1.0]


@pytest.mark.here
@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "exit code -9"), (signal.SIGTERM, "exit code -15"), (signal.SIGINT, "KeyboardInterrupt")],
)
def test_nothing_is_left_behind_by_a_run_that_is_stopped(number: signal.Signals, said: str, tmp_path: Path) -> None:
    """The spill file never has a name, so the kernel frees it with its last descriptor."""
    moving = tmp_path / "moving"
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as spill,
        child.Child(train_for_ever, (spill, str(moving)), PAGES) as trainer,
    ):
        trainer.wait_for(moving.exists)
        links = [os.readlink(link) for link in Path(f"/proc/{trainer.pid}/fd").iterdir()]
        assert any(link.startswith(spill) for link in links)
        assert os.listdir(spill) == []
        os.kill(trainer.pid, number)
        with pytest.raises(child.ChildError, match=said):
            trainer.result()
        assert os.listdir(spill) == []
