"""Data-parallel training over gloo. Nothing here knows of Ebbtide: the launcher starts it in each rank.

    torchrun --standalone --nproc-per-node 2 --no-python ebbtide run --fast 50% --wait-for-plan examples/ranks.py

Each rank keeps a budget of its own: with bytes, N ranks hold N budgets. Without a launcher it trains as one rank.
"""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()
    for name, alone in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, alone)
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same weights in every rank
    net = nn.Sequential(*[nn.Sequential(nn.Linear(args.width, args.width), nn.GELU()) for _ in range(8)])
    model = DistributedDataParallel(net, bucket_cap_mb=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = torch.Generator().manual_seed(dist.get_rank())  # and rows of its own
    for _ in range(args.steps):
        optimizer.zero_grad()
        model(torch.randn(256, args.width, generator=rows)).square().mean().backward()
        optimizer.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().reshape(-1).view(torch.uint8).numpy())
    if dist.get_rank() == 0:
        print(f"weights {digest.hexdigest()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
