"""Data-parallel training on the tests' device, as torchrun starts it: DistributedDataParallel, or FSDP2.

Gradients are not accumulated over several batches: FSDP2 then frees memory that another stream still reads, as a
comment in its own code says of CUDA's allocator, which seldom gives that memory away at once. This device overwrites
what is freed, so plain runs differ from each other there; with that left out they do not.
"""

import argparse
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.device import lagging


def through_host(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.Backend:
    return lagging.load().through(
        dist.ProcessGroupGloo(dist.PrefixStore("host", store), rank, size, timeout), rank, size
    )


def sharded(model: nn.Sequential) -> nn.Module:
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The rank's own part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    dist.Backend.register_backend("through_host", through_host, devices=["lagging"])
    dist.init_process_group("cpu:gloo,lagging:through_host")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = nn.Sequential(*[part for _ in range(6) for part in (nn.Linear(64, 64), nn.GELU())]).to("lagging")
    ranks = sharded(model) if args.fsdp else DistributedDataParallel(model, bucket_cap_mb=0.03)
    optimizer = torch.optim.AdamW(ranks.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    losses = []
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = ranks(torch.randn(128, 64).to("lagging")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    moments = [value for state in optimizer.state.values() for value in state.values()]
    state = [local(tensor.detach()).cpu() for tensor in (*model.parameters(), *moments)]
    torch.save([losses, state], f"{args.out}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
