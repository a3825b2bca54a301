"""Large storages that are resized, sliced, shared, saved, loaded, forked and updated, in pieces: the same bits.

What happens is described by a function of a tensor of 40 MiB, which is run plainly and then within an arena of 24 MiB.
"""

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import ebbtide
from ebbtide import _torch
from ebbtide.units import MIB

SMALL = {"EBBTIDE_PIECE": "2MiB", "EBBTIDE_PROGRESS": "off"}
pytestmark = pytest.mark.in_child(SMALL)
CHAOS = {"EBBTIDE_CHAOS_RATE": "0.3", "EBBTIDE_CHECKSUM": "1", "EBBTIDE_REMAKE": "check"}
ROWS, COLUMNS = 40_960, 256
BYTES = ROWS * COLUMNS * 4


def features() -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))


def bits(tensor: Tensor) -> list[bytes]:
    """Read part by part."""
    return [part.contiguous().numpy().tobytes() for part in tensor.detach().flatten().split(MIB)]


def _resized(t: Tensor, _: str) -> Any:
    t.untyped_storage().resize_(BYTES + 8 * MIB)
    grown = torch.empty(0).set_(t.untyped_storage(), 0, (ROWS + 1000, COLUMNS))
    grown[ROWS:] = 1
    t.resize_(ROWS + 2000, COLUMNS)[ROWS + 1000 :] = 2
    t.untyped_storage().resize_(BYTES // 2)
    return bits(t.resize_(ROWS // 2, COLUMNS))


def _overlapping(t: Tensor, _: str) -> Any:
    try:
        t[1:].copy_(t[:-1])
    except RuntimeError as error:
        return str(error)
    return bits(t)


def _onto_itself(t: Tensor, _: str) -> Any:
    t.copy_(t)
    t[: ROWS // 2].copy_(t[ROWS // 2 :])
    t.add_(t)
    torch.mul(t, 3, out=t)
    return bits(t)


def _set_and_swapped(t: Tensor, _: str) -> Any:
    part = torch.empty(0).set_(t.untyped_storage(), 3 * COLUMNS, (ROWS - 3, COLUMNS))
    assert torch.empty(0).set_(t).shape == t.shape
    other = torch.zeros(10)
    torch.utils.swap_tensors(t, other)
    other.data = part[5:]
    return bits(other), t.shape, other.untyped_storage().nbytes()


def _slices_of_storage(t: Tensor, _: str) -> Any:
    storage = t.untyped_storage()
    found = []
    for begin, end in ((0, 6 * MIB), (5 * MIB + 4, 25 * MIB), (39 * MIB, 40 * MIB)):
        part = torch.empty(0).set_(storage[begin:end])
        part.mul_(2)
        found.append(part[:1000].sum().item())
    return found, bits(t), storage[20 * MIB], storage.nbytes()


def _shared(t: Tensor, _: str) -> Any:
    t.share_memory_()
    t[0] = 1
    return bits(t), t.is_shared()


def _saved(t: Tensor, folder: str) -> Any:
    for first in range(0, ROWS, ROWS // 4):
        torch.save(t[first : first + ROWS // 4].clone(), Path(folder, "part.pt"))
        assert torch.equal(torch.load(Path(folder, "part.pt")), t[first : first + ROWS // 4])
    stream = io.BytesIO()
    torch.save({"part": t[:5000].clone()}, stream)
    stream.seek(0)
    loaded = torch.load(stream)["part"]
    storage = loaded.untyped_storage()
    return bits(loaded), storage.nbytes(), storage.resizable(), loaded.shape, loaded.stride()


def _loaded(t: Tensor, folder: str) -> Any:
    if not Path(folder, "whole.pt").exists():
        torch.save({"t": t, "view": t[7:9]}, Path(folder, "whole.pt"))
    found = torch.load(Path(folder, "whole.pt"))
    mapped = torch.load(Path(folder, "whole.pt"), mmap=True)
    found["view"].zero_()
    same = found["view"].untyped_storage().data_ptr() == found["t"].untyped_storage().data_ptr()
    return bits(found["t"]), bits(mapped["t"]), same, found["t"].untyped_storage().resizable()


def _from_file(t: Tensor, folder: str) -> Any:
    path = Path(folder, "raw")
    path.write_bytes(b"".join(bits(t)))
    ours = torch.from_file(str(path), size=ROWS * COLUMNS).view(ROWS, COLUMNS)
    ours[3:] += 1
    return bits(ours)


def _through_workers(t: Tensor, _: str) -> Any:
    t[: ROWS // 2].add_(1)  # what is here and what is away
    rows = DataLoader(TensorDataset(t), 1024, num_workers=2, multiprocessing_context="fork")
    return [batch.sum().item() for (batch,) in rows]


def _by_threads(t: Tensor, _: str) -> Any:
    def work(number: int) -> None:
        for first in range(number * 1024, ROWS, 4096):
            t[first : first + 1024].mul_(number + 2).sub_(1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return bits(t)


def _filled_at_random(t: Tensor, _: str) -> Any:
    generator = torch.Generator().manual_seed(3)
    made = [
        torch.randn(ROWS, COLUMNS, generator=generator),
        t.normal_(generator=generator),
        t.uniform_(generator=generator),
    ]
    return bits(made[0]), bits(t.bernoulli_(0.3, generator=generator)), torch.rand(3, generator=generator).tolist()


def _empty_of_a_worker(t: Tensor, _: str) -> Any:
    """A child reads what nobody has touched, and writes there; its parent sees nothing of that."""
    empty = torch.empty_like(t)
    empty[:10] = 1

    class Empty(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, number: int) -> Tensor:
            empty[20_000 + number] = number
            return empty[20_000 + number] + empty[number]

    sums = [row.sum().item() for row in DataLoader(Empty(), 1, num_workers=1, multiprocessing_context="fork")]
    empty[20_000:20_002] = 5
    return sums, bits(empty[20_000:20_002])


CASES: dict[str, Callable[[Tensor, str], Any]] = {
    "resized": _resized,
    "overlapping": _overlapping,
    "onto itself": _onto_itself,
    "set and swapped": _set_and_swapped,
    "slices of a storage": _slices_of_storage,
    "shared": _shared,
    "saved": _saved,
    "loaded": _loaded,
    "from a file": _from_file,
    "through workers": _through_workers,
    "by threads": _by_threads,
    "filled at random": _filled_at_random,
    "empty in a worker": _empty_of_a_worker,
}


def large_storages_are_used_as_ever(name: str, folder: str) -> None:
    expected = CASES[name](features(), folder)
    with ebbtide.Session(arena_bytes=24 * MIB, policy="demand", progress="off"):
        ours = features()
        assert _torch.is_managed(ours)
        assert not _torch.is_resident(ours)
        assert CASES[name](ours, folder) == expected
        counters = _torch.counters()
        assert sum(counters["fetched_bytes"]) > 0
        assert not counters["over_budget"], counters["message"]


@pytest.mark.alike
@pytest.mark.parametrize("order", ["in-backward", "deferred"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_parameters_in_pieces_are_updated_in_other_orders(optimizer: str, order: str) -> None:
    def train(step: Callable[[], Any] | None) -> list[bytes]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024))
        made = getattr(torch.optim, optimizer)(net.parameters(), lr=0.01)
        for seed in range(6):
            with step() if step is not None else torch.enable_grad():
                made.zero_grad()
                net(torch.randn(64, 1024, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
                made.step()
        return [part for parameter in net.parameters() for part in bits(parameter)]

    plain = train(None)
    with ebbtide.Session(fast="60%", optimizer=order, wait_for_plan=True, progress="off") as session:
        assert train(session.step) == plain
        report = session.report()
    assert sum(step.fetched_bytes.total for step in report.steps) > 0


@pytest.mark.parametrize("name", CASES)
def test_a_storage_larger_than_the_arena_is_used_as_ever(name: str, tmp_path: Path) -> None:
    large_storages_are_used_as_ever(name, tmp_path)


@pytest.mark.in_child(SMALL | CHAOS)
@pytest.mark.alike
@pytest.mark.parametrize("name", ["onto itself", "by threads", "resized", "through workers"])
def test_a_storage_in_pieces_that_come_and_go_at_random_is_used_as_ever(name: str, tmp_path: Path) -> None:
    large_storages_are_used_as_ever(name, tmp_path)
