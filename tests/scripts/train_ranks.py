"""Data-parallel training over gloo, as torchrun starts it: DistributedDataParallel, buckets and all."""

import argparse
import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def sha256(tensors: list[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def train_here(steps: int, result: Path, session: Any = None) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    network = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)])
    model = DistributedDataParallel(network, bucket_cap_mb=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(steps):
        with session.step() if session is not None else contextlib.nullcontext():
            optimizer.zero_grad()
            loss = model(torch.randn(256, 512, generator=generator)).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    moments = [value for state in optimizer.state.values() for value in state.values()]
    for moment in moments:
        dist.all_reduce(moment)
    hashes = {"weights": sha256(list(model.parameters())), "moments": sha256(moments)}
    result.with_suffix(f".{rank}").write_text(json.dumps({"losses": [loss.hex() for loss in losses]} | hashes))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    assert "RANK" in os.environ
    train_here(args.steps, args.result)
