"""DistributedDataParallel and a checkpoint of torch.distributed's. Nothing here knows of Ebbtide: torchrun starts it.

    torchrun --standalone --nproc-per-node 2 --no-python ebbtide run --fast 45% examples/integrations/ddp.py --out out

With ``--static`` gradients are views of DDP's buckets and its graph is static. Each rank writes its weights and losses.
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
from torch.nn.parallel import DistributedDataParallel


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
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--static", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")  # torchrun's variables say which rank this is
    rank = dist.get_rank()
    random.seed(0)
    torch.manual_seed(0)  # the same weights in every rank
    rows = torch.Generator().manual_seed(rank)  # and rows of its own
    net = nn.Sequential(*[block(args.width) for _ in range(8)])
    # Buckets count against the budget while gloo has them; the default of 25 MB is for large nets.
    model = DistributedDataParallel(net, bucket_cap_mb=4, gradient_as_bucket_view=args.static, static_graph=args.static)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = model(torch.randn(256, args.width, generator=rows)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == args.steps // 2:
            checkpointed(model, optimizer, args.out / "checkpoint")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save({name: value.detach() for name, value in net.named_parameters()}, args.out / f"weights.{rank}.pt")
    (args.out / f"losses.{rank}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
