"""Random traces of format ``tiertrace/1``, and the format's own judge where it is at hand."""

import importlib.util
import sys
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import strategies as st

from ebbtide.units import MIB
from tests.helpers.paths import G10

FOLDER = G10
needs_g10 = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"the G10 traces and their judge are not in {FOLDER}")


def judge() -> ModuleType:
    """``check.py``."""
    spec = importlib.util.spec_from_file_location("g10_check", FOLDER / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.get("g10_check") or importlib.util.module_from_spec(spec)
    sys.modules["g10_check"] = module
    spec.loader.exec_module(module)
    return module


def machine(gpu_bytes: int, host_bytes: int, host_rate: int = 10**10, ssd_rate: int = 3 * 10**9) -> dict[str, Any]:
    """GPU, host and SSD; full duplex; the SSD goes first on the GPU's port."""
    ends = (("host", "gpu"), ("gpu", "host"), ("ssd", "gpu"), ("gpu", "ssd"))
    return {
        "tiers": [
            {"name": "gpu", "capacity_bytes": gpu_bytes},
            {"name": "host", "capacity_bytes": host_bytes},
            {"name": "ssd", "capacity_bytes": None},
        ],
        "links": [
            {"name": f"{source}_to_{target}", "src": source, "dst": target, "latency_ns": 0}
            | {"bytes_per_s": ssd_rate if "ssd" in (source, target) else host_rate}
            for source, target in ends
        ],
        "ports": [
            {"name": "gpu_in", "links": ["ssd_to_gpu", "host_to_gpu"], "bytes_per_s": host_rate},
            {"name": "gpu_out", "links": ["gpu_to_ssd", "gpu_to_host"], "bytes_per_s": host_rate},
        ],
    }


def random_tiertrace(random: Random, most_kernels: int = 12, most_tensors: int = 8) -> dict[str, Any]:
    """Tensors of 1 to 48 MiB, whose copies take about as long as a kernel; the GPU holds some of them."""
    n_kernels, n_tensors = random.randint(2, most_kernels), random.randint(1, most_tensors)
    tensors = [
        {"id": 10 + at, "nbytes": random.randint(1, 48) * MIB, "kind": random.choice(["local", "global"])}
        for at in range(n_tensors)
    ]
    kernels: list[dict[str, Any]] = [
        {"index": at, "name": f"k{at}", "layer": "", "duration_ns": random.randint(10**4, 8 * 10**6)}
        | {"reads": [], "writes": [], "workspace_bytes": random.choice([0, 0, 3 * MIB])}
        for at in range(n_kernels)
    ]
    for tensor in tensors:
        uses = sorted(random.sample(range(n_kernels), random.randint(1, min(4, n_kernels))))
        for place, at in enumerate(uses):
            first_of_local = tensor["kind"] == "local" and place == 0
            kernels[at]["writes" if first_of_local or random.random() < 0.5 else "reads"].append(tensor["id"])
    size = {tensor["id"]: tensor["nbytes"] for tensor in tensors}
    least = max(
        sum(size[used] for used in {*kernel["reads"], *kernel["writes"]}) + kernel["workspace_bytes"]
        for kernel in kernels
    )
    gpu_bytes = least + random.randint(0, 3) * sum(size.values()) // 4
    return {
        "format": "tiertrace/1",
        "workload": "random",
        "initial": {"global": "ssd", "local": "absent"},
        "machine": machine(max(gpu_bytes, MIB), random.choice([1000, 40]) * MIB),
        "tensors": tensors,
        "kernels": kernels,
    }


tiertraces = st.randoms().map(random_tiertrace)
