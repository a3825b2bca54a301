"""Data-parallel training on the tests' device, as torchrun starts it, with DistributedDataParallel."""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class ThroughHost(dist.ProcessGroup):
    """Collectives of a device's tensors, by gloo on copies in host memory. What DistributedDataParallel asks for."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(dist.PrefixStore("through host", store), rank, size, timeout)

    def getBackendName(self) -> str:
        return "through host"

    def allreduce(self, tensors: list[Tensor], _: Any = None) -> dist.Work:
        copies = [tensor.cpu() for tensor in tensors]
        self._gloo.allreduce(copies).wait()
        return ended(tensors, copies)

    def broadcast(self, tensors: list[Tensor], options: Any) -> dist.Work:
        copies = [tensor.cpu() for tensor in tensors]
        self._gloo.broadcast(copies, options).wait()
        return ended(tensors, copies)

    def allgather(self, gathered: list[list[Tensor]], tensors: list[Tensor], _: Any = None) -> dist.Work:
        copies = [[tensor.cpu() for tensor in each] for each in gathered]
        self._gloo.allgather(copies, [tensor.cpu() for tensor in tensors]).wait()
        return ended([t for each in gathered for t in each], [c for each in copies for c in each])


def ended(tensors: list[Tensor], copies: list[Tensor]) -> dist.Work:
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.copy_(copy)
    future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
    future.set_result(tensors)
    return torch._C._distributed_c10d._create_work_from_future(future)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    dist.Backend.register_backend("through_host", ThroughHost, devices=["lagging"])
    dist.init_process_group("cpu:gloo,lagging:through_host")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = nn.Sequential(*[part for _ in range(6) for part in (nn.Linear(64, 64), nn.GELU())]).to("lagging")
    ranks = DistributedDataParallel(model, bucket_cap_mb=0.03)
    optimizer = torch.optim.AdamW(ranks.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    losses = []
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = ranks(torch.randn(128, 64).to("lagging")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    moments = [value.cpu() for state in optimizer.state.values() for value in state.values()]
    torch.save([losses, [weight.cpu() for weight in model.parameters()], moments], f"{args.out}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
