"""What the probe's PyTorch phases share: JSON lines, a device that may be the CPU, medians, and a hash of tensors."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

MIB = 1 << 20


def say(what: str, **fields: object) -> None:
    print(json.dumps({"what": what, **fields}), flush=True)


class Device:
    """What the phases ask of a device, with answers for the CPU too."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cuda = name != "cpu"

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def forget_peak(self) -> None:
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> dict[str, float]:
        if not self.cuda:
            return {}
        return {
            "peak_allocated": torch.cuda.max_memory_allocated(),
            "peak_reserved": torch.cuda.max_memory_reserved(),
        }


def seconds_of(device: Device, body: Callable[[], object]) -> float:
    device.wait()
    start = time.perf_counter()
    body()
    device.wait()
    return time.perf_counter() - start


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def digest(tensors: Iterator[Tensor]) -> str:
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:16]
