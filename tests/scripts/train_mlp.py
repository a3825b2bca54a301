"""An ordinary training script for the tests of the command: a big MLP on noise, with nothing of Ebbtide in it."""

import argparse
import hashlib
import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def sha256(tensors: list[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--result", type=Path)
    args = parser.parse_args()

    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(args.width, args.width), nn.GELU()) for _ in range(args.depth)]
    model = nn.Sequential(*layers, nn.Linear(args.width, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    samples = args.rows * args.steps
    data = TensorDataset(torch.randn(samples, args.width), torch.randint(16, (samples,)))
    loader = DataLoader(data, batch_size=args.rows, shuffle=True, num_workers=args.workers)
    losses = []
    for rows, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"loss {losses[-1]:.4f}", flush=True)
    if args.result:
        moments = [value for state in optimizer.state.values() for value in state.values()]
        hashes = {"weights": sha256(list(model.parameters())), "state": sha256(moments)}
        args.result.write_text(json.dumps({"losses": [loss.hex() for loss in losses]} | hashes))
    raise SystemExit(args.exit_code)


if __name__ == "__main__":
    main()
