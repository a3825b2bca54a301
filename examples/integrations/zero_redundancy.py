"""DistributedDataParallel with ZeroRedundancyOptimizer: each rank has the optimizer state of a part of the parameters.

    torchrun --standalone --nproc-per-node 2 --no-python \
        ebbtide run --fast 45% examples/integrations/zero_redundancy.py --out out

Nothing here knows of Ebbtide. After its update each rank broadcasts its part, so that the ranks' steps are not alike
in memory: each has a plan of its own. Each rank writes its weights and losses.
"""

import argparse
import json
import random
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=768)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(0)
    torch.manual_seed(0)  # the same weights in every rank
    rows = torch.Generator().manual_seed(rank)  # and rows of its own
    net = nn.Sequential(*[block(args.width) for _ in range(8)])
    model = DistributedDataParallel(net, bucket_cap_mb=4)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    losses = []
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = model(torch.randn(256, args.width, generator=rows)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save({name: value.detach() for name, value in net.named_parameters()}, args.out / f"weights.{rank}.pt")
    (args.out / f"losses.{rank}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
