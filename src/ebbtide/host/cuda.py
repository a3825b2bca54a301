"""The door to the native module for GPUs: driver and GPU are looked at once, so that a wrong one is one clear error.

The driver is asked by its own interface, which says more than PyTorch's does. Left out: whether the GPU is busy, which
shows when it is used.
"""

import ctypes
import os
from importlib.util import find_spec
from typing import Any

from ebbtide.errors import PlatformError
from ebbtide.host.native import require_native

_OLDEST_CUDA = 12  # whose functions the native module asks the driver for
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_MAPS_HANDLES = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
_COMPUTE_MODE, _PROHIBITED = 20, 2  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
_AGAIN = "install Ebbtide again (pip install --force-reinstall --no-deps --no-cache-dir and what you installed it from)"


def require_cuda(device: int) -> None:
    """Imports torch and ``ebbtide._cuda``; raises PlatformError, with what to do, where that cannot work with this GPU.

    ``device`` is its number as PyTorch has it.
    """
    require_native()
    load_cuda_module()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise PlatformError(
            f"there is no NVIDIA driver here ({error}): use a machine that has one, and give a container its GPUs "
            "(docker run --gpus all)"
        ) from error
    import torch

    if trouble := driver_trouble(driver, device, torch.version.cuda or ""):
        raise PlatformError(trouble)


def load_cuda_module() -> None:
    """Needs no GPU and no driver."""
    import torch

    if torch.version.cuda is None:
        raise PlatformError(
            f"torch {torch.__version__} is not built for CUDA: install a build that is (https://pytorch.org has the "
            f"command), then {_AGAIN}"
        )
    if find_spec("ebbtide._cuda") is None:
        raise PlatformError(
            "Ebbtide was installed without its part for GPUs, most likely since CUDA's headers were not there: pip "
            f"install nvidia-cuda-runtime nvidia-cuda-crt (or name a toolkit in CUDA_HOME), then {_AGAIN}, with "
            "EBBTIDE_BUILD_CUDA=1 in the environment, which says what else is missing"
        )
    try:
        # torch has loaded it for itself; the module may have been built where it was not there to be linked.
        ctypes.CDLL("libc10_cuda.so", mode=os.RTLD_NOLOAD | os.RTLD_GLOBAL)
        import ebbtide._cuda  # noqa: F401
    except (ImportError, OSError) as error:
        raise PlatformError(f"Ebbtide's part for GPUs cannot be loaded ({error}): {_AGAIN}") from error


def driver_trouble(driver: Any, device: int, torch_cuda: str) -> str:
    """Why Ebbtide cannot use that GPU, and what to do; "" if it can. ``driver`` is libcuda, or a stand-in."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = "" if seen is None else f" (CUDA_VISIBLE_DEVICES is {seen!r})"
    error = driver.cuInit(0)
    if error == _NO_DEVICE:
        return f"the NVIDIA driver has no GPU for this process{seen}: nvidia-smi lists those of the machine"
    if error:
        return f"the NVIDIA driver does not start (cuInit: error {error}): see what nvidia-smi says of it"
    version = _asked(driver.cuDriverGetVersion)
    needed = max(_OLDEST_CUDA, int(torch_cuda.partition(".")[0] or 0))
    if version // 1000 < needed:
        return (
            f"the NVIDIA driver is for CUDA {version // 1000}.{version % 1000 // 10}, and Ebbtide and a torch for CUDA "
            f"{torch_cuda} need one for {needed}.0 or newer: update it"
        )
    count = _asked(driver.cuDeviceGetCount)
    if device >= count:
        return f"there is no GPU {device} for this process, which has {count}{seen}: name another"
    handle = _asked(driver.cuDeviceGet, device)
    name = ctypes.create_string_buffer(100)
    driver.cuDeviceGetName(name, len(name), handle)
    called = name.value.decode(errors="replace")
    if "MIG " in called or "MIG-" in (os.environ.get("CUDA_VISIBLE_DEVICES") or ""):
        return f"GPU {device} is a slice ({called}), and Ebbtide wants a whole one: switch MIG off, or use another GPU"
    if _asked(driver.cuDeviceGetAttribute, _COMPUTE_MODE, handle) == _PROHIBITED:
        return f"GPU {device} ({called}) is closed to programs: open it (nvidia-smi --compute-mode=DEFAULT)"
    if not _asked(driver.cuDeviceGetAttribute, _MAPS_HANDLES, handle):
        return (
            f"GPU {device} ({called}) cannot give memory away and keep its address (virtual memory management), which "
            "Ebbtide is built on: use another GPU; a virtual machine's may have it switched off"
        )
    return ""


def _asked(question: Any, *of: int) -> int:
    answer = ctypes.c_int()
    question(ctypes.byref(answer), *of)
    return answer.value
