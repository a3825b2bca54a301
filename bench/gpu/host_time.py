"""What a storage's move costs the training's thread: the host's time, whatever the device does meanwhile.

    python -m bench.gpu.host_time --on cuda

Prints microseconds, medians over rounds: for a copy out, for one back, for the first operator on what has come back,
and for an operator on what stayed, in a session and without one.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

import ebbtide
from ebbtide import _torch

NUMBERS = 1 << 18  # a tensor of 1 MiB
TENSORS, ROUNDS = 128, 20


def us_each(work: Callable[[], object]) -> float:
    """For one of the tensors."""
    torch.accelerator.synchronize()
    began = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - began) / 1e3 / TENSORS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="cuda", metavar="DEVICE")
    device = parser.parse_args().on
    tensors = [torch.zeros(NUMBERS, device=device) for _ in range(TENSORS)]

    def use() -> None:
        for tensor in tensors:
            tensor.add_(1)

    without = [us_each(use) for _ in range(ROUNDS)]
    times: dict[str, list[float]] = {"out": [], "back": [], "first use": [], "operator in a session": []}
    with ebbtide.Session("1TiB", device=device, policy="demand", host_bytes="1GiB", progress="off") as session:
        for _ in range(ROUNDS):
            with session.step():
                times["operator in a session"].append(us_each(use))
                times["out"].append(us_each(lambda: _torch.evict(tensors)))
                times["back"].append(us_each(lambda: _torch.prefetch(tensors)))
                times["first use"].append(us_each(use))
    assert all(bool((tensor == 3 * ROUNDS).all()) for tensor in tensors)
    times["operator without one"] = without
    print(", ".join(f"{what} {median(found):.1f} us" for what, found in times.items()))


if __name__ == "__main__":
    main()
