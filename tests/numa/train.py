"""A small training, whose last line tells the bits of what it came to.

What lies on which node of the memory that prefers one, as the kernel says, is looked up in each step, before and after
the optimizer's work, and written to the file that NUMA_SAMPLES names, where it names one.
"""

import hashlib
import json
import os
import re
from pathlib import Path

import torch
from torch import nn

PAGE_BYTES = 4096
samples: list[dict[str, int]] = []


def look() -> None:
    found: dict[str, int] = {}
    for line in Path("/proc/self/numa_maps").read_text().splitlines():
        if " prefer:" in line:
            for node, pages in re.findall(r" N(\d+)=(\d+)", line):
                found[node] = found.get(node, 0) + int(pages) * PAGE_BYTES
    samples.append(found)


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
