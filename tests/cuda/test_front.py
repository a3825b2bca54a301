"""The allocator in front of PyTorch's for CUDA, without CUDA.

It is compiled against the headers that every torch brings, over a stand-in for ``libc10_cuda.so`` (stub.cpp).
front_tests.cpp has the tests of what it does; here they are compiled and run, under the thread sanitizer. Left out:
what only a GPU can show.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import setuptools
import torch

from tests.helpers.paths import ROOT

pytestmark = [pytest.mark.starts, pytest.mark.slow]

NATIVE = ROOT / "native" / "cuda"
HERE = ROOT / "tests" / "cuda"
TORCH = Path(torch.__file__).parent
COMPILER = os.environ.get("CXX", "g++").split()
# As setup.py compiles the module; CPU builds of torch lack one generated header.
OPTIONS = ["-std=c++20", "-O1", "-g1", "-fPIC", "-pthread", "-Wall", "-Wextra", "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE"]
RACES = ["-fsanitize=thread"]
LIBRARIES = [f"-L{TORCH / 'lib'}", "-lc10", f"-Wl,-rpath,{TORCH / 'lib'}"]


@pytest.fixture(scope="module")
def headers() -> Path:
    """CUDA's, as setup.py finds them."""
    given, setuptools.setup = setuptools.setup, lambda **_: None
    try:
        spec = importlib.util.spec_from_file_location("setup_for_cuda", ROOT / "setup.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        setuptools.setup = given
    found = module.cuda_headers(*module.OF_PYTORCH)
    if found is None or shutil.which(COMPILER[0]) is None:
        pytest.skip("needs a C++ compiler and CUDA's headers: pip install nvidia-cuda-runtime nvidia-cuda-crt")
    assert isinstance(found, Path)
    return found


def run(command: list[str], **more: str) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | more)
    assert answer.returncode == 0, answer.stdout[-2000:] + answer.stderr[-4000:]
    return answer.stdout


def compile_all(headers: Path, folder: Path, sources: list[Path], *options: str) -> list[str]:
    system = [TORCH / "include", headers, Path(sysconfig.get_path("include"))]
    includes = [f"-I{ROOT / 'native'}", *(f"-isystem{place}" for place in system)]

    def one(source: Path) -> str:
        run([*COMPILER, *OPTIONS, *options, *includes, "-c", str(source), "-o", str(folder / f"{source.stem}.o")])
        return str(folder / f"{source.stem}.o")

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, sources))


def link(objects: list[str], to: Path, *options: str) -> Path:
    run([*COMPILER, *objects, "-pthread", *options, *LIBRARIES, "-o", str(to)])
    return to


def test_every_virtual_function_of_the_headers_is_forwarded() -> None:
    """One that is not pure and is forgotten compiles, and does nothing, or fails in the middle of a training."""
    classes = {
        "cuda/CUDACachingAllocator.h": "class CUDAAllocator",
        "core/CachingDeviceAllocator.h": "DeviceAllocator : public",
        "core/Allocator.h": "struct C10_API Allocator {",
    }
    text = ""
    for header, begins in classes.items():
        text += (TORCH / "include/c10" / header).read_text().split(begins, 1)[1].split("\n};")[0]
    names = set(re.findall(r"\bvirtual\s[^;{~]*?(\w+)\s*\(", text))
    assert len(names) > 45
    forwarding = (NATIVE / "forwarding.hpp").read_text()
    assert sorted(name for name in names if not re.search(rf"\b{name}\([^;{{]*override", forwarding)) == []
    called = (HERE / "front_tests.cpp").read_text()
    assert sorted(name for name in names if not re.search(rf"[.]{name}\(", called)) == []


def test_it_does_what_it_promises_and_threads_do_not_race(headers: Path, tmp_path: Path) -> None:
    sources = [path for path in sorted(NATIVE.glob("*.cpp")) if path.name != "module.cpp"]
    sources += [HERE / "stub.cpp", HERE / "front_tests.cpp"]
    program = link(compile_all(headers, tmp_path, sources, *RACES), tmp_path / "front_tests", *RACES)
    # The sanitizer of older compilers cannot place its shadow under much address randomisation.
    still = ["setarch", "-R"]
    if subprocess.run([*still, "true"], check=False, capture_output=True).returncode:
        still = []
    ran = run([*still, str(program)], TSAN_OPTIONS="halt_on_error=1").split()
    assert ran == re.findall(r"^TEST\((\w+)\)", (HERE / "front_tests.cpp").read_text(), re.MULTILINE)


PROGRAM = """
import ctypes, importlib.util, sys, torch
stub = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
spec = importlib.util.spec_from_file_location("_cuda", sys.argv[2])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
capsule = ctypes.pythonapi.PyCapsule_New
capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
stub.stub_arena_face.restype = ctypes.c_void_p
name = ctypes.create_string_buffer(b"ebbtide.arena_face")
face = capsule(stub.stub_arena_face(), ctypes.cast(name, ctypes.c_char_p), None)
def said(call, *arguments, **named):
    try:
        print(call(*arguments, **named))
    except (RuntimeError, ValueError) as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def libraries(headers: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The stand-in and the module itself, which leaves the stand-in's symbols to whoever loads it."""
    folder = tmp_path_factory.mktemp("cuda")
    objects = compile_all(headers, folder, sorted(NATIVE.glob("*.cpp")), "-fvisibility=hidden")
    stub = compile_all(headers, folder, [HERE / "stub.cpp"])
    module = link(objects, folder / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}", "-shared")
    return link(stub, folder / "libc10_cuda.so", "-shared"), module


def in_python(libraries: tuple[Path, Path], program: str, **environment: str) -> list[str]:
    return run([sys.executable, "-c", PROGRAM + program, *map(str, libraries)], **environment).splitlines()


def test_the_module_stands_in_front_and_its_face_is_a_capsule(libraries: tuple[Path, Path]) -> None:
    said = in_python(
        libraries,
        """
print(sorted(name for name in dir(module) if not name.startswith("_")))
print(module.face())
said(module.set_on, True)
said(module.install, module.face(), 0, 1 << 22)
said(module.install, face, device=0, min_bytes=1 << 22)
said(module.install, face, 0, 1 << 22)
said(module.set_on, True)
said(module.set_largest_block, 5)
said(module.stats)
""",
    )
    typed = re.findall(r"^def (\w+)", (ROOT / "src/ebbtide/_cuda.pyi").read_text(), re.MULTILINE)
    assert said[0] == str(sorted(typed))
    assert 'capsule object "ebbtide.cuda_face"' in said[1]
    assert said[2:] == [
        "RuntimeError nothing stands in front of PyTorch's CUDA allocator yet",
        "ValueError this is no face of an arena",
        "None",
        "RuntimeError Ebbtide stands in front of PyTorch's CUDA allocator already",
        "None",
        "None",
        "{'served': 0, 'left_alone': 0, 'outside_bytes': 0}",
    ]


def test_another_backend_is_refused_with_what_to_do(libraries: tuple[Path, Path]) -> None:
    (said,) = in_python(
        libraries, "said(module.install, face, 0, 1)", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"
    )
    assert re.match(r'RuntimeError PyTorch\'s CUDA allocator here is "cudaMallocAsync", .*take backend: out of', said)


def test_a_budget_above_what_the_script_allows_itself_is_refused(libraries: tuple[Path, Path]) -> None:
    said = in_python(
        libraries,
        "module.install(face, 0, 1)\nsaid(module.set_budget, 60 << 30)\nsaid(module.set_budget, 40 << 30)\n",
        STUB_FRACTION="0.5",
    )
    assert said == [
        "RuntimeError ebbtide: the budget is 60.00 GiB, and this process may have 40.00 GiB of its GPU "
        "(torch.cuda.set_per_process_memory_fraction with 0.5). Use a budget within that, or set a fraction of 0.75 or "
        "more before the session begins",
        "None",
    ]
