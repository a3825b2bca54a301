"""Training steps with what the kernel counts of each, in the process that trains.

Times are seconds, sizes bytes. Disk traffic is ``/proc/self/io``'s (pages written to the page cache count when they
are made dirty, O_DIRECT counts at once) and swap traffic ``/proc/vmstat``'s, so the whole machine's.
"""

import json
import os
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from demo.train_gpt import peak_bytes, sha256

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Counts:
    """All of them only grow. ``cpu_s`` is of all threads; ``at_s`` is the system's monotonic clock."""

    at_s: float
    cpu_s: float
    minor_faults: int
    read_bytes: int
    written_bytes: int
    swapped_in_bytes: int
    swapped_out_bytes: int

    @staticmethod
    def now() -> "Counts":
        io = _pairs(Path("/proc/self/io"))
        swap = _pairs(Path("/proc/vmstat"))
        return Counts(
            time.monotonic(),
            time.process_time(),
            resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
            io["read_bytes"],
            io["write_bytes"],
            swap["pswpin"] * PAGE_BYTES,
            swap["pswpout"] * PAGE_BYTES,
        )


def _pairs(path: Path) -> dict[str, int]:
    words = path.read_text().replace(":", "").split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def train(
    step: Callable[[], Tensor],
    steps: int,
    result: Path,
    weights: Callable[[], Iterable[Tensor]],
    moments: Callable[[], Iterable[Tensor]],
) -> None:
    """Runs ``steps`` of ``step`` and writes what came of them; ``step`` returns its loss."""
    losses: list[str] = []
    counts = [Counts.now()]
    for number in range(steps):
        loss = step()
        counts.append(Counts.now())
        losses.append(loss.item().hex())
        print(f"step {number}  loss {loss.item():.4f}  {counts[-1].at_s - counts[-2].at_s:.2f} s", flush=True)
    peak = peak_bytes()
    columns = {
        "wall" if field.name == "at_s" else field.name.removesuffix("_s"): [
            getattr(after, field.name) - getattr(before, field.name) for before, after in pairwise(counts)
        ]
        for field in fields(Counts)
    }
    written = {
        "ended_at": [count.at_s for count in counts],
        "losses": losses,
        "peak_bytes": peak,
        "weights_sha256": sha256(weights()),
        "optimizer_sha256": sha256(moments()),
        "threads": torch.get_num_threads(),
        "steps": columns,
    }
    result.write_text(json.dumps(written) + "\n")
