"""The device "lagging": compiles it, loads it, and gives PyTorch the module ``torch.lagging`` that it asks for.

``lagging.hpp`` says what it is. It loads into a process once and for good, so its tests have processes of their own.
"""

import atexit
import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

HERE = Path(__file__).parent
BUILT = HERE.parents[1] / "build" / "lagging"
NAME = "lagging_device"
DEVICE = "lagging"


def build() -> Path:
    """The extension, compiled unless that was done from the same sources, for the same torch."""
    sources = sorted(HERE.glob("*.cpp"))
    content = b"".join(path.read_bytes() for path in [*sources, *sorted(HERE.glob("*.hpp")), Path(__file__)])
    key = hashlib.sha256(content + torch.__version__.encode() + sys.version.encode()).hexdigest()[:16]
    folder = BUILT / key
    library = folder / f"{NAME}.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            compile_into(library, sources)
    return library


def compile_into(library: Path, sources: list[Path]) -> None:
    compiler = os.environ.get("CXX", "g++").split()
    torch_folder = Path(torch.__file__).parent
    include = torch_folder / "include"
    headers = [include, include / "torch/csrc/api/include", sysconfig.get_path("include")]
    options = ["-std=c++20", "-O0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
    options += ["--param", "ggc-min-heapsize=8000000"]  # GCC need not collect its garbage: it takes 2 GB
    options += [f"-DTORCH_EXTENSION_NAME={NAME}", *(part for path in headers for part in ("-isystem", str(path)))]
    together = library.with_suffix(".cpp")  # PyTorch's headers are most of what each would take
    together.write_text("".join(f'#include "{source}"\n' for source in sources))
    libraries = [f"-L{torch_folder / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"]
    unfinished = library.with_suffix(".new")
    subprocess.run([*compiler, *options, "-shared", str(together), "-o", str(unfinished), *libraries], check=True)
    unfinished.rename(library)


def load() -> ModuleType:
    """The extension. From here on ``device="lagging"`` is one, and each kernel has one thread, as a stream's have."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    spec = importlib.util.spec_from_file_location(NAME, build())
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    sys.modules[NAME] = native
    torch.set_num_threads(1)
    torch.utils.rename_privateuse1_backend(DEVICE)
    torch._register_device_module(DEVICE, device_module(native))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    atexit.register(native.synchronize)
    return native


def installed(folder: Path) -> dict[str, str]:
    """Variables of a process in which ``import torch`` loads the device, as it does those of installed packages."""
    package = folder / f"{DEVICE}-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DEVICE}\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[torch.backends]\n{DEVICE} = tests.device.lagging:load\n")
    paths = [str(folder), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


@contextmanager
def held(stream: torch.Stream) -> Iterator[None]:
    """The stream does nothing of what it is given in the block until the block has ended: for faults that MUST show."""
    gate = load().Gate(stream)
    try:
        yield
    finally:
        gate.open()


def device_module(native: ModuleType) -> ModuleType:
    """What PyTorch asks of ``torch.lagging``; a device there is ever the only one."""
    generator: torch.Generator = native.default_generator()
    module = ModuleType(f"torch.{DEVICE}")

    def ignore_device(_: object = None) -> AbstractContextManager[None]:
        return nullcontext()

    def manual_seed(seed: int) -> None:
        generator.manual_seed(seed)

    def get_rng_state(_: object = None) -> torch.Tensor:
        return generator.get_state()

    def set_rng_state(state: torch.Tensor, _: object = None) -> None:
        generator.set_state(state)

    def current_stream(_: object = None) -> torch.Stream:
        return torch.accelerator.current_stream()

    def synchronize(_: object = None) -> None:
        native.synchronize()

    def stream(stream: torch.Stream) -> torch.Stream:
        return stream  # a context manager itself

    def made_here(kind: type) -> Any:
        return lambda *args, **options: kind(*args, **{"device": DEVICE, **options})

    module.__dict__.update(
        _initialized=True,
        _is_in_bad_fork=lambda: False,
        _lazy_init=lambda: None,
        Event=made_here(torch.Event),
        Stream=made_here(torch.Stream),
        current_device=lambda: 0,
        current_stream=current_stream,
        default_generators=(generator,),
        device=ignore_device,
        device_count=lambda: 1,
        empty_cache=torch.accelerator.empty_cache,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        get_rng_state=get_rng_state,
        is_available=lambda: True,
        is_initialized=lambda: True,
        manual_seed=manual_seed,
        manual_seed_all=manual_seed,
        max_memory_allocated=torch.accelerator.max_memory_allocated,
        memory_allocated=torch.accelerator.memory_allocated,
        memory_reserved=torch.accelerator.memory_reserved,
        set_device=ignore_device,
        set_rng_state=set_rng_state,
        stream=stream,
        synchronize=synchronize,
    )
    return module
