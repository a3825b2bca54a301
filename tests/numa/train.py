"""A small training, whose last line tells the bits of what it came to.

Under Ebbtide it looks in each step, before and after the optimizer's work, how many bytes of the process the kernel has
on node 1, beside what the arena says lies in its tier there, and writes both to the file that NUMA_SAMPLES names. Moves
that are under way make them differ for a moment, so it looks until two readings of the arena agree with the kernel's.
"""

import hashlib
import json
import os
import re
import time
from pathlib import Path

import torch
from torch import nn

PAGE_BYTES = 4096
LOOKS = 200
samples: list[tuple[int, int]] = []


def on_node_1() -> int:
    lines = Path("/proc/self/numa_maps").read_text().splitlines()
    found = [re.search(r" N1=(\d+)", line) for line in lines if " anon=" in line]
    return sum(int(match[1]) for match in found if match) * PAGE_BYTES


def in_tier() -> int:
    from ebbtide import _torch

    return int(_torch.counters()["tier_bytes"][0])


def look() -> None:
    if "NUMA_SAMPLES" not in os.environ:
        return
    for _ in range(LOOKS):
        before, found = in_tier(), on_node_1()
        if before == found == in_tier():
            break
        time.sleep(0.01)
    samples.append((in_tier(), found))


torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(6):
    loss = model(torch.randn(256, 512)).square().mean()
    loss.backward()
    look()
    optimizer.step()
    look()
    optimizer.zero_grad()
bits = hashlib.sha256()
for parameter in model.parameters():
    bits.update(parameter.detach().numpy().tobytes())
if "NUMA_SAMPLES" in os.environ:
    Path(os.environ["NUMA_SAMPLES"]).write_text(json.dumps(samples))
print(f"loss {loss.item():.9f}, parameters {bits.hexdigest()}")
