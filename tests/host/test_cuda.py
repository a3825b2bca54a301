"""What is said where a GPU cannot be used, and that the native module for GPUs loads where torch is built for CUDA."""

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ebbtide.errors import PlatformError
from ebbtide.host import cuda
from ebbtide.host.cuda import driver_trouble, load_cuda_module, require_cuda


class Driver:
    """libcuda with one GPU; ``attributes`` by their number."""

    def __init__(self, *, starts: int = 0, version: int = 13000, count: int = 1, name: str = "NVIDIA H100", **has: int):
        self.cuInit: Callable[[int], int] = lambda _flags: starts
        self._version, self._count, self._name = version, count, name
        self._attributes = {20: has.get("compute_mode", 0), 102: has.get("maps_handles", 1)}

    def cuDriverGetVersion(self, answer: Any) -> None:
        answer._obj.value = self._version

    def cuDeviceGetCount(self, answer: Any) -> None:
        answer._obj.value = self._count

    def cuDeviceGet(self, answer: Any, ordinal: int) -> None:
        answer._obj.value = 7 + ordinal

    def cuDeviceGetName(self, name: Any, length: int, handle: int) -> None:
        assert (handle, length) == (7, len(name))
        name.value = self._name.encode()

    def cuDeviceGetAttribute(self, answer: Any, attribute: int, handle: int) -> None:
        assert handle == 7
        answer._obj.value = self._attributes[attribute]


@pytest.fixture(autouse=True)
def _all_gpus_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_whole_gpu_and_a_driver_of_the_torchs_cuda_will_do() -> None:
    assert driver_trouble(Driver(), 0, "13.0") == ""
    assert driver_trouble(Driver(version=12080), 0, "12.8") == ""
    assert driver_trouble(Driver(version=13000), 0, "12.8") == ""


@pytest.mark.parametrize(
    ("driver", "device", "says"),
    [
        (Driver(starts=100), 0, r"has no GPU for this process: nvidia-smi lists"),
        (Driver(starts=803), 0, r"does not start \(cuInit: error 803\)"),
        (Driver(version=11040), 0, r"is for CUDA 11\.4, and .* CUDA 12\.8 need one for 12\.0 or newer: update it"),
        (Driver(), 2, r"there is no GPU 2 for this process, which has 1: name another"),
        (Driver(name="NVIDIA A100 MIG 1g.5gb"), 0, r"is a slice .*MIG 1g\.5gb.*: switch MIG off"),
        (Driver(compute_mode=2), 0, r"closed to programs: open it"),
        (Driver(maps_handles=0), 0, r"cannot give memory away and keep its address .*use another GPU"),
    ],
)
def test_each_trouble_has_a_sentence_that_says_what_to_do(driver: Driver, device: int, says: str) -> None:
    said = driver_trouble(driver, device, "12.8")
    assert re.search(says, said), said


def test_a_driver_older_than_torchs_cuda_is_to_be_updated() -> None:
    assert "need one for 13.0 or newer: update it" in driver_trouble(Driver(version=12080), 0, "13.0")


def test_what_hides_gpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "(CUDA_VISIBLE_DEVICES is '')" in driver_trouble(Driver(starts=100), 0, "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-4f0c")
    assert "switch MIG off" in driver_trouble(Driver(), 0, "13.0")


def test_a_torch_without_cuda_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(PlatformError, match=r"not built for CUDA: install a build that is .*install Ebbtide again"):
        load_cuda_module()


def test_without_the_module_the_packages_with_the_headers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    with pytest.raises(
        PlatformError, match=r"pip install nvidia-cuda-runtime nvidia-cuda-crt .*CUDA_HOME.*EBBTIDE_BUILD_CUDA=1"
    ):
        load_cuda_module()


def test_a_torch_that_has_not_loaded_its_cuda_library_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cuda, "find_spec", lambda name: object())

    def nothing_is_loaded(name: str, mode: int) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", nothing_is_loaded)
    with pytest.raises(PlatformError, match=r"cannot be loaded \(libc10_cuda\.so: .*install Ebbtide again"):
        load_cuda_module()


def test_without_a_driver_the_first_thing_said_is_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "load_cuda_module", lambda: None)

    def no_driver(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", no_driver)
    with pytest.raises(PlatformError, match=r"no NVIDIA driver here \(libcuda\.so\.1: .*docker run --gpus all"):
        require_cuda(0)


@pytest.mark.starts
@pytest.mark.skipif(torch.version.cuda is None, reason="torch is not built for CUDA")
def test_where_torch_is_built_for_cuda_the_module_loads_beside_its_library_without_a_gpu() -> None:
    """In a process of its own, as a run has it: torch's libc10_cuda.so and no stand-in."""
    program = (
        "from ebbtide.errors import PlatformError\n"
        "from ebbtide.host.cuda import load_cuda_module, require_cuda\n"
        "load_cuda_module()\n"
        "from ebbtide import _cuda\n"
        "print(_cuda.face())\n"
        "try:\n    _cuda.stats()\nexcept RuntimeError as error:\n    print(error)\n"
        "try:\n    require_cuda(0)\nexcept PlatformError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    print(said.stdout)
    assert '"ebbtide.cuda_face"' in said.stdout
    assert "nothing stands in front" in said.stdout
    if not torch.cuda.is_available():
        assert "driver" in said.stdout.splitlines()[-1]
