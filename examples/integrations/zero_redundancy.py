"""DistributedDataParallel with ZeroRedundancyOptimizer: each rank has the optimizer state of a part of the parameters.

    torchrun --standalone --nproc-per-node 2 --no-python \
        ebbtide run --fast 45% examples/integrations/zero_redundancy.py --out out

After its update each rank broadcasts its part, so that the ranks' steps are not alike in memory: each has a plan of its
own. Each rank writes its weights and losses.
"""

import random

import torch
import torch.distributed as dist
from common import arguments, budget, leave
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU())


def main() -> None:
    parser = arguments(__doc__)
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
    with budget(args.fast):
        for _ in range(args.steps):
            optimizer.zero_grad()
            loss = model(torch.randn(256, args.width, generator=rows)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    leave(args.out, dict(net.named_parameters()), losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
