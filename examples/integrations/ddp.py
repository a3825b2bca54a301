"""DistributedDataParallel and a checkpoint of torch.distributed's. torchrun starts it.

    torchrun --standalone --nproc-per-node 2 --no-python ebbtide run --fast 45% examples/integrations/ddp.py --out out

With ``--static`` gradients are views of DDP's buckets and its graph is static. Each rank writes its weights and losses.
"""

import random

import torch
import torch.distributed as dist
from checkpoints import checkpointed
from common import arguments, budget, leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU())


def main() -> None:
    parser = arguments(__doc__)
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
    with budget(args.fast):
        for step in range(args.steps):
            optimizer.zero_grad()
            loss = model(torch.randn(256, args.width, generator=rows)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step == args.steps // 2:
                checkpointed(model, optimizer, args.out / "checkpoint")
    leave(args.out, dict(net.named_parameters()), losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
