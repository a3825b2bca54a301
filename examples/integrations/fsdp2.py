"""FSDP2: ``fully_shard``, clipping, and a checkpoint of torch.distributed's.

    torchrun --standalone --nproc-per-node 2 --no-python ebbtide run --fast 45% examples/integrations/fsdp2.py --out out

A rank's parameters, gradients and optimizer state are its shards (DTensors), and those are what moves; each block's
gathered weights live for that block only. Each rank writes the full weights, gathered, and its losses.
"""

import random

import torch
import torch.distributed as dist
from checkpoints import checkpointed
from common import arguments, budget, leave
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU())


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--width", type=int, default=1024)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(0)
    torch.manual_seed(0)  # the same weights in every rank, before they are sharded
    rows = torch.Generator().manual_seed(rank)  # and rows of its own
    model = nn.Sequential(*[block(args.width) for _ in range(8)])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    with budget(args.fast):
        for step in range(args.steps):
            optimizer.zero_grad()
            loss = model(torch.randn(256, args.width, generator=rows)).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            if step == args.steps // 2:
                checkpointed(model, optimizer, args.out / "checkpoint")
    weights = {name: value.full_tensor() for name, value in model.named_parameters()}
    leave(args.out, weights, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
