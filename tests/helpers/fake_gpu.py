"""A GPU without a GPU: what a child's session needs to have its tensors on the fake one of ``bench/gpu/fake_cuda.cpp``.

``make fake-gpu-test`` says TESTS_ON_FAKE_GPU=1: then every child's session is there.
"""

import os

from tests.helpers.paths import ROOT

LIBRARY = ROOT / "build/fake/libfake_cuda.so"
"""``make build/fake/libfake_cuda.so``; ``make python-test`` has it made."""
EVERYWHERE = os.environ.get("TESTS_ON_FAKE_GPU") == "1"

# Memory in small pages, so that small tensors are managed there as on the CPU; accesses that meet the mappings.
_DRIVER = {"FAKE_CUDA_GRANULE": "4096", "FAKE_CUDA_PROTECTS": "1", "FAKE_CUDA_BYTES": str(16 << 30)}


def variables(host: str = "0") -> dict[str, str]:
    """``host`` is the memory below it; else what leaves goes to the spill file, as on the CPU."""
    return _DRIVER | {"EBBTIDE_FAKE_CUDA": str(LIBRARY), "EBBTIDE_HOST": host}


def everywhere() -> dict[str, str]:
    return variables() if EVERYWHERE else {}
