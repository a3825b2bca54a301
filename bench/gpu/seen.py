"""U0, U7 and U8: what is installed, and which work on the device can be seen from outside.

Left out: graphs, addresses inside descriptors.
"""

import ctypes
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import nets
import torch
from bits import train_once
from common import Device, say, seconds_of
from torch import Tensor


def environment(device: Device) -> None:
    """What is installed; which virtual functions of the allocator's interface this torch has."""
    include = Path(torch.__file__).parent / "include" / "c10"
    virtuals = {}
    for header in ("cuda/CUDACachingAllocator.h", "core/CachingDeviceAllocator.h"):
        text = (include / header).read_text() if (include / header).exists() else ""
        virtuals[header] = sorted({line.strip() for line in text.splitlines() if line.strip().startswith("virtual ")})
    say(
        "environment", python=sys.version.split()[0], torch=torch.__version__, cuda=torch.version.cuda,
        device=torch.cuda.get_device_name() if device.cuda else "cpu", virtuals=virtuals,
    )  # fmt: skip


def compiled(device: Device, small: bool) -> None:
    """Of the Triton kernels of a compiled block, how many announce themselves with their tensors?"""
    from torch._inductor.runtime import triton_heuristics

    launches: list[str] = []
    announced: list[tuple[str, int]] = []
    real_run = triton_heuristics.CachingAutotuner.run
    real_record = torch._C._profiler._RecordFunctionFast

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launches.append(str(self.inductor_meta.get("kernel_name")))
        return real_run(self, *args, **kwargs)

    def record(name: str, *values: Any, **kwargs: Any) -> Any:
        announced.append((name, sum(isinstance(a, Tensor) for a in values[0]) if values else 0))
        return real_record(name, *values, **kwargs)

    shape = nets.TINY if small else nets.GPT_SMALL
    torch.manual_seed(0)
    block = nets.Block(shape).to(device.name)
    x = torch.randn(2, 64, shape.width, device=device.name, requires_grad=True)
    try:
        step = torch.compile(block)
        step(x).sum().backward()
        step(x).sum().backward()
        triton_heuristics.CachingAutotuner.run = run
        torch._C._profiler._RecordFunctionFast = record
        torch.autograd.profiler._is_profiler_enabled = True
        step(x).sum().backward()
        device.wait()
    except Exception as error:  # whatever the compiler meets: it is the answer
        say("compiled", failed=f"{type(error).__name__}: {error}".splitlines()[0])
        return
    finally:
        triton_heuristics.CachingAutotuner.run = real_run
        torch._C._profiler._RecordFunctionFast = real_record
        torch.autograd.profiler._is_profiler_enabled = False
    say("compiled", launches=launches, announced=announced)
    times: dict[bool, list[float]] = {False: [], True: []}
    for flag in [False, True] * 3:
        torch.autograd.profiler._is_profiler_enabled = flag
        times[flag].append(seconds_of(device, lambda: [step(x).sum().backward() for _ in range(2 if small else 200)]))
    torch.autograd.profiler._is_profiler_enabled = False
    say("compiled_overhead", plain_s=times[False], announcing_s=times[True])


def hook(device: Device, small: bool) -> None:
    """Launches a second of many small operators: plain, seen with inputs, with every launch's parameters scanned."""
    library = ctypes.CDLL(os.environ["EBBTIDE_PROBE_HOOK"])
    library.hook_cupti.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]
    count = 20 if small else 10_000
    x = torch.zeros(1 << 10 if small else 1 << 14, device=device.name)
    low, high = x.data_ptr(), x.data_ptr() + x.nbytes
    for round_, mode in itertools.product(range(3), ["plain", "recorded", "subscribed", "scanned", "plain"]):
        library.hook_reset()
        library.hook_record(int(mode == "recorded"))
        listening = library.hook_cupti({"subscribed": 1, "scanned": 2}.get(mode, 0), low, high)
        start = time.perf_counter()
        for _ in range(count):
            x.add_(1)
        host = time.perf_counter() - start
        device.wait()
        whole = time.perf_counter() - start
        seen = {name: getattr(library, f"hook_{name}")() for name in ("operators", "launches", "hits", "unreadable")}
        library.hook_cupti(0, 0, 0)
        library.hook_record(0)
        each = {"host_us_each": host / count * 1e6, "us_each": whole / count * 1e6}
        say("hook", mode=mode, round=round_, calls=count, answer=listening, **each, **seen)


COUNTS = ("operators", "launches", "hits", "announced", "missed", "unknown", "unreadable")


def reach(device: Device, small: bool) -> None:
    """Of the addresses that kernels are launched with, how many lie in storages that an operator under way has named?

    Without a GPU an operator of ours stands for a kernel: it has one operand's address, one result's, and a stranger's.
    """
    library = ctypes.CDLL(os.environ["EBBTIDE_PROBE_HOOK"])
    library.hook_cupti.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]
    library.hook_scan.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint64]

    def counts() -> dict[str, int]:
        return {name: getattr(library, f"hook_{name}")() for name in COUNTS}

    if not device.cuda:
        stranger = torch.zeros(4)

        @torch.library.custom_op("gpu_probe::kernel", mutates_args=())
        def kernel(x: Tensor) -> Tensor:
            result = x.new_empty(x.shape)
            words = (ctypes.c_uint64 * 3)(x.data_ptr() + 8, result.data_ptr(), stranger.data_ptr())
            library.hook_scan(words, 3, 0, 2**63)
            return result

        library.hook_record(2)
        library.hook_reset()
        kernel(torch.zeros(4))
        library.hook_record(0)
        say("reach", net="an operator of ours", **counts())
        return
    for dtype, optimizer in itertools.product(["fp32", "bf16"], ["fused", "foreach"]):
        for net in ("gpt", "conv"):
            train_once(device, net, dtype, optimizer, 2, small)
            segments = torch.cuda.memory_snapshot()
            low = min(s["address"] for s in segments)
            high = max(s["address"] + s["total_size"] for s in segments)
            library.hook_record(2)
            answer = library.hook_cupti(2, low, high)
            library.hook_reset()
            train_once(device, net, dtype, optimizer, 2, small)
            device.wait()
            library.hook_cupti(0, 0, 0)
            library.hook_record(0)
            say("reach", net=net, dtype=dtype, optimizer=optimizer, answer=answer, **counts())
