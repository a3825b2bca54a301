"""How fast this machine is, in a moment: what the demo chooses its type by, and foretells its time from.

The demo runs this as a child of its own, since that loads PyTorch as each of its runs does, and reads what it prints.
A CPU without bf16 units multiplies bf16 at a hundredth of fp32's rate, and no list of CPU flags says what the library
at hand does with them: so both are timed, on one thread, where other programs disturb least.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ebbtide.errors import EbbtideError
from ebbtide.host.spill import choose_spill_directories
from ebbtide.probe.quick import probe_quick
from ebbtide.settings import Settings

_SMALL, _LARGE = 256, 1024
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Speed:
    """Rates of matrix products, in FLOP a second: on one thread, to compare the types, and on all.

    ``spill_bytes_per_s`` is the spill directory's slower direction; ``start_s`` is what a process takes before its
    first step.
    """

    fp32_one_thread: float
    bf16_one_thread: float
    fp32: float
    bf16: float
    spill_bytes_per_s: float
    start_s: float

    @property
    def faster_dtype(self) -> str:
        return "bf16" if self.bf16_one_thread > self.fp32_one_thread else "fp32"

    def flops(self, dtype: str) -> float:
        return self.bf16 if dtype == "bf16" else self.fp32


class NotMeasured(Exception):
    """The child that measures failed; it has said why."""


def measured_speed() -> Speed:
    """Raises NotMeasured."""
    started = time.monotonic()
    command = [sys.executable, "-m", "demo.calibrate"]
    child = subprocess.run(command, cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, text=True)
    if child.returncode != 0:
        raise NotMeasured(f"this machine could not be measured (exit code {child.returncode})")
    found = json.loads(child.stdout)
    return Speed(**found | {"start_s": time.monotonic() - started - found["start_s"]})


def _measure() -> Speed:
    """In the child; ``start_s`` is what measuring took, which is no part of a run's start."""
    import torch
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401 (a part of the start)

    def flops(dtype: torch.dtype, size: int) -> float:
        left, right = (torch.ones(size, size, dtype=dtype) for _ in range(2))
        left @ right  # the first prepares
        best_s = float("inf")
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            left @ right
            best_s = min(best_s, time.perf_counter() - began)
        return 2 * size**3 / best_s

    started = time.monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    fp32_one, bf16_one = flops(torch.float32, _SMALL), flops(torch.bfloat16, _SMALL)
    torch.set_num_threads(threads)
    fp32 = flops(torch.float32, _LARGE)
    # At a hundredth of the rate the large product would take seconds.
    bf16 = flops(torch.bfloat16, _LARGE) if bf16_one > fp32_one else bf16_one * threads
    machine = probe_quick(choose_spill_directories(Settings.from_environment().spill))  # which the runs need, too
    spill = min(link.bytes_per_s for link in machine.links)
    return Speed(fp32_one, bf16_one, fp32, bf16, spill, time.monotonic() - started)


if __name__ == "__main__":
    try:
        json.dump(asdict(_measure()), sys.stdout)
    except EbbtideError as error:
        sys.exit(f"error: {error}")
