"""FSDP2: ``fully_shard``, clipping, and a checkpoint of torch.distributed's. Nothing here knows of Ebbtide.

    torchrun --standalone --nproc-per-node 2 --no-python ebbtide run --fast 45% examples/integrations/fsdp2.py --out out

A rank's parameters, gradients and optimizer state are its shards (DTensors), and those are what moves; each block's
gathered weights live for that block only. Each rank writes the full weights, gathered, and its losses.
"""

import argparse
import json
import random
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU())


def checkpointed(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Saves the training state, spoils it, and loads it: training goes on as if nothing had happened."""
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
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
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = model(torch.randn(256, args.width, generator=rows)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step == args.steps // 2:
            checkpointed(model, optimizer, args.out / "checkpoint")
    weights = {name: value.full_tensor().detach() for name, value in model.named_parameters()}
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(weights, args.out / f"weights.{rank}.pt")
    (args.out / f"losses.{rank}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
