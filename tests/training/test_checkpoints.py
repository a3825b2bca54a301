"""Checkpoints of a model that is larger than fast memory: what is away goes to files of every kind, and comes back."""

import copy
import ctypes
import errno
import filecmp
import io
import os
import pickle
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch as library
import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import nn

import ebbtide
from ebbtide import _torch
from tests.helpers.command import EBBTIDE, run

PAGES = {"EBBTIDE_MIN_STORAGE": "4096"}
SCRIPT = """
import sys, torch
from safetensors.torch import save_file
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(24)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(4, 256)).square().mean().backward()
    optimizer.step()
    save_file(model.state_dict(), sys.argv[1])
"""
pytestmark = pytest.mark.in_child(PAGES)
WIDTH, LAYERS, STEPS = 256, 24, 4
plain_serialize_file = library.serialize_file


def _train(step: Any = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    optimizer = torch.optim.AdamW(model.parameters())

    def one() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()

    for _ in range(STEPS):
        if step is None:
            one()
        else:
            with step():
                one()
    return model, optimizer


@contextmanager
def larger_than_the_arena() -> Iterator[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], Any]]:
    """The weights after plain steps, the same of a session that may hold a fraction of them, and its model."""
    plain = {name: value.clone() for name, value in _train()[0].state_dict().items()}
    with ebbtide.Session(fast="12%", policy="demand") as session:
        model, optimizer = _train(session.step)
        weights = model.state_dict()
        total = sum(value.nbytes for value in weights.values())
        assert total > 1.5 * _torch.counters()["arena_limit_bytes"]
        _torch.reset_peaks()
        away(weights)
        yield plain, weights, (model, optimizer)
        counters = _torch.counters()
        assert counters["reserved_peak_bytes"] <= counters["arena_limit_bytes"]
        assert sum(counters["fetched_bytes"]) > 0
        assert not session.report().budget_violated


def away(weights: dict[str, torch.Tensor]) -> None:
    managed = [value for value in weights.values() if _torch.is_managed(value)]
    assert len(managed) == LAYERS
    _torch.evict(managed)
    assert not any(_torch.is_resident(value) for value in managed)


def same(plain: dict[str, torch.Tensor], loaded: dict[str, torch.Tensor]) -> bool:
    return plain.keys() == loaded.keys() and all(torch.equal(plain[name], loaded[name]) for name in plain)


def _torch_save(weights: dict[str, torch.Tensor], path: Path, **settings: Any) -> Any:
    torch.save(weights, path, **settings)
    away(weights)
    return torch.load(path, weights_only=True)


def _legacy(weights: dict[str, torch.Tensor], path: Path) -> Any:
    return _torch_save(weights, path, _use_new_zipfile_serialization=False)


def _legacy_unbuffered(weights: dict[str, torch.Tensor], path: Path) -> Any:
    with path.open("wb", buffering=0) as file:
        torch.save(weights, file, _use_new_zipfile_serialization=False)
    with path.open("rb", buffering=0) as file:
        return torch.load(file, weights_only=True)


def _without_checksum(weights: dict[str, torch.Tensor], path: Path) -> Any:
    torch.serialization.set_crc32_options(False)
    return _torch_save(weights, path)


def _storage_files(weights: dict[str, torch.Tensor], path: Path) -> Any:
    """``_write_file`` and ``_set_from_file``, the latter into storages that are away."""
    with path.open("wb", buffering=0) as file:
        for value in weights.values():
            value.untyped_storage()._write_file(file, True, True, value.element_size())
    expected = {name: value.clone() for name, value in weights.items()}
    for value in weights.values():
        value.zero_()
    away(weights)
    with path.open("rb", buffering=0) as file:
        for value in weights.values():
            value.untyped_storage()._set_from_file(file, file.tell(), True, value.element_size())
    assert same(expected, weights)
    return expected


def _buffer(weights: dict[str, torch.Tensor], path: Path) -> Any:
    buffer = io.BytesIO()
    torch.save(weights, buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def _pickle(weights: dict[str, torch.Tensor], path: Path) -> Any:
    with path.open("wb") as file:
        pickle.dump(weights, file)
    return pickle.loads(path.read_bytes())


def _deepcopy(weights: dict[str, torch.Tensor], path: Path) -> Any:
    return copy.deepcopy(weights)


def _distributed(weights: dict[str, torch.Tensor], path: Path) -> Any:
    dcp.save(weights, checkpoint_id=path)
    loaded = {name: torch.zeros_like(value) for name, value in weights.items()}
    dcp.load(loaded, checkpoint_id=path)
    return loaded


def _arrays(write: Callable[[np.ndarray, Any], object]) -> Callable[[dict[str, torch.Tensor], Path], Any]:
    def through(weights: dict[str, torch.Tensor], path: Path) -> Any:
        loaded = {}
        for name, value in weights.items():
            with path.open("wb", buffering=0) as file:
                write(value.numpy(), file)
            content = path.read_bytes()[-value.nbytes :]
            loaded[name] = torch.frombuffer(bytearray(content), dtype=value.dtype).view(value.shape)
        return loaded

    return through


def _safetensors(weights: dict[str, torch.Tensor], path: Path) -> Any:
    library.save_file(weights, path)
    away(weights)
    return library.load_file(path)


def _safetensors_bytes(weights: dict[str, torch.Tensor], path: Path) -> Any:
    return library.load(library.save(weights))


KINDS = {
    "torch-save": _torch_save,
    "torch-save-without-checksum": _without_checksum,
    "legacy": _legacy,
    "legacy-unbuffered": _legacy_unbuffered,
    "legacy-to-memory": _buffer,
    "storage-files": _storage_files,
    "pickle": _pickle,
    "deepcopy": _deepcopy,
    "distributed-checkpoint": _distributed,
    "numpy-save": _arrays(lambda array, file: np.save(file, array)),
    "tofile": _arrays(lambda array, file: array.tofile(file)),
    "memoryview": _arrays(lambda array, file: file.write(memoryview(array).cast("B"))),
    "safetensors": _safetensors,
    "safetensors-bytes": _safetensors_bytes,
}


@pytest.mark.alike
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_larger_than_the_arena_goes_to_a_file(kind: str, tmp_path: Path) -> None:
    with larger_than_the_arena() as (plain, weights, _):
        assert same(plain, KINDS[kind](weights, tmp_path / "file"))


def test_load_model(tmp_path: Path) -> None:
    """``save_model`` and ``load_model`` with tied weights, while the training state is away."""
    with larger_than_the_arena() as (plain, _, (model, _)):
        model[1].weight = model[0].weight
        path = tmp_path / "file"
        library.save_model(model, path)
        with torch.no_grad():
            for value in model.parameters():
                value.zero_()
        library.load_model(model, path)
        assert all(torch.equal(plain[name], value) for name, value in model.state_dict().items() if name != "1.weight")


def _content(path: Path, seed: int) -> dict[str, torch.Tensor]:
    """Tensors of every dtype that safetensors knows, some of them managed, and awkward names."""
    torch.manual_seed(seed)
    raw = torch.randint(0, 256, (16384,), dtype=torch.uint8)
    content = {
        f"of {dtype}": raw.clone().view(dtype).view(2, -1) for dtype in library._SIZE if dtype not in (None, torch.bool)
    }
    content["bool"] = raw > 100
    content["a scalar"], content["empty"] = torch.tensor(1.5), torch.empty(0, 4)
    content['"quoted"\\ \n\x01\x7f\u00e9\u2028\U0001f30a/'] = torch.ones(3, dtype=torch.bfloat16)
    content["a view"] = torch.randn(4, 4096)[1:3]
    return content


def test_same_bytes(tmp_path: Path) -> None:
    """The file is byte for byte, and by its mode, what safetensors writes."""
    ours, plainly = tmp_path / "ours", tmp_path / "plain"
    with ebbtide.Session(fast="50%") as session:
        content = _content(ours, 5)
        with session.step():
            content["a view"] + 1
        for metadata in (None, {}, {"format": "pt"}, {"quoted": '"\n\u00e9'}):
            assert library.serialize_file is not plain_serialize_file
            _torch.evict(list(content.values()))
            assert not _torch.is_resident(content["of torch.float32"])
            library.save_file(content, ours, metadata=metadata)
            patched, library.serialize_file = library.serialize_file, plain_serialize_file
            library.save_file({name: value.clone() for name, value in content.items()}, plainly, metadata=metadata)
            library.serialize_file = patched
            assert ours.read_bytes() == plainly.read_bytes()
            assert ours.stat().st_mode == plainly.stat().st_mode
        library.save_file(content, ours, metadata={"one": "1", "two": "2"})  # in whatever order safetensors has today
        assert len(ours.read_bytes()) % 8 == len(plainly.read_bytes()) % 8
        os.chdir(tmp_path)
        library.save_file(content, "relative")
        assert {path.name for path in tmp_path.iterdir()} == {"ours", "plain", "relative"}


def _refusal(call: Callable[[], object]) -> tuple[type, str]:
    try:
        call()
    except Exception as error:
        return type(error), str(error).split(" at path")[0]
    raise AssertionError("it was not refused")


def test_same_refusals(tmp_path: Path) -> None:
    """What safetensors refuses is refused in its words, and leaves what was there."""
    base = tmp_path
    good = {"x": torch.randn(8192)}
    shared = torch.randn(8192)
    calls: list[Callable[[], object]] = [
        lambda: library.save_file({"x": torch.randn(128, 128).T}, base / "file"),
        lambda: library.save_file({"x": shared, "y": shared[:]}, base / "file"),
        lambda: library.save_file({"x": torch.eye(128).to_sparse()}, base / "file"),
        lambda: library.save_file({"x": torch.zeros(4, dtype=torch.complex128)}, base / "file"),
        lambda: library.save_file(good, base / "missing" / "file"),
        lambda: library.save_file(good, base),
        lambda: library.save_file(good, base / "file", metadata={"a": 1}),  # type: ignore[dict-item]
        lambda: library.save_file([], base / "file"),  # type: ignore[arg-type]
    ]
    library.save_file(good, base / "file")
    content = (base / "file").read_bytes()
    plain = [_refusal(call) for call in calls]
    with ebbtide.Session(fast="50%"):
        assert library.serialize_file is not plain_serialize_file
        assert [_refusal(call) for call in calls] == plain
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, resource.RLIM_INFINITY))
        kind, text = _refusal(lambda: library.save_file({"x": torch.randn(65536)}, base / "file"))
        assert kind is SafetensorError
        assert "I/O error: File too large (os error 27)" in text
    assert (base / "file").read_bytes() == content
    assert [path.name for path in base.iterdir()] == ["file"]


def test_each_tensor_comes_back_once_for_safetensors(tmp_path: Path) -> None:
    with larger_than_the_arena() as (_, weights, _):
        before = sum(_torch.counters()["fetched_bytes"])
        library.save_file(weights, tmp_path / "file")
        came = sum(_torch.counters()["fetched_bytes"]) - before
        assert round(100 * came / sum(value.nbytes for value in weights.values() if _torch.is_managed(value))) == 100


def test_a_storage_whose_address_was_asked_for_is_the_last_to_leave() -> None:
    """Who asks for the addresses of what fits, one after the other, finds all of it there."""
    with ebbtide.Session(fast="50%", policy="demand") as session:
        weights = [torch.randn(WIDTH, WIDTH) for _ in range(LAYERS)]
        for _ in range(2):
            with session.step():
                for weight in weights:
                    weight.add_(1)
        fitting = weights[: LAYERS // 3]
        _torch.evict(weights)
        for other in weights[LAYERS // 3 :]:
            other.sum()
        for weight in fitting:
            weight.data_ptr()
        assert all(_torch.is_resident(weight) for weight in fitting)


def test_compiled_functions_go_through_the_wrappers() -> None:
    """Dynamo does not trace into them."""

    def through(value: torch.Tensor) -> torch.Tensor:
        array = (value * 2).numpy()
        there = value.data_ptr() != 0
        exported = torch.from_dlpack(value)
        return torch.from_numpy(array) + exported.sum() + int(there)

    def unbound(value: torch.Tensor) -> torch.Tensor:
        return value + float(torch.Tensor.numpy(value).sum()) + (torch.Tensor.data_ptr(value) != 0)

    value = torch.randint(-3, 4, (WIDTH, WIDTH)).float()  # whose sums are exact in any order
    expected = through(value), unbound(value)
    with ebbtide.Session(fast="50%") as session:
        weight = value.clone()
        for function, wanted in zip((through, unbound), expected, strict=True):
            fast = torch.compile(function, backend="eager")
            for _ in range(2):
                with session.step():
                    _torch.evict([weight])
                    assert torch.equal(fast(weight), wanted)
                    assert torch.equal(function(weight), wanted)
        for wrapper in torch.Tensor.numpy, torch.Tensor.data_ptr, torch.Tensor.__dlpack__:
            for called in type(wrapper).__call__, wrapper._call:  # type: ignore[attr-defined]
                assert torch._C._dynamo.eval_frame._debug_get_cache_entry_list(called.__code__) == []


def test_a_raw_address_works_in_a_system_call_at_once(tmp_path: Path) -> None:
    """As often as there are storages."""
    write = ctypes.CDLL(None, use_errno=True).write
    write.argtypes, write.restype = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_ssize_t
    with larger_than_the_arena() as (plain, weights, _), (tmp_path / "file").open("wb") as file:
        for value in weights.values():
            assert write(file.fileno(), value.data_ptr(), value.nbytes) == value.nbytes
    content = (tmp_path / "file").read_bytes()
    assert content == b"".join(value.numpy().tobytes() for value in plain.values())


def test_closing_fails(tmp_path: Path) -> None:
    """A disk may tell only at the end that it is full: the target keeps what it had, and nothing else is left."""

    class Failing:
        def __init__(self, file: int) -> None:
            self.file = file

        def __enter__(self) -> None:
            pass

        def __exit__(self, *raised: object) -> None:
            os.close(self.file)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = tmp_path / "weights.safetensors"
    target.write_bytes(b"before")
    with ebbtide.Session(fast="50%", policy="demand"):
        weights = {"weight": torch.ones(64)}
    fdopen = os.fdopen
    os.fdopen = lambda file, *how, **more: Failing(file)
    refused = ""
    try:
        library.save_file(weights, target)
    except SafetensorError as error:
        refused = str(error)
    finally:
        os.fdopen = fdopen
    assert "os error 28" in refused, refused
    assert os.listdir(tmp_path) == [target.name]
    assert target.read_bytes() == b"before"


@pytest.mark.here
def test_a_script_whose_model_is_larger_than_the_arena_saves_every_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    for command in (["train.py", "plain"], [EBBTIDE, "run", "--fast", "20%", "train.py", "ours"]):
        run(*command, cwd=tmp_path, env=PAGES, status=0)
    assert filecmp.cmp(tmp_path / "ours", tmp_path / "plain", shallow=False)
