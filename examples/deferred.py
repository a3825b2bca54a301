"""The deferred order of updates: `optimizer.step()` takes note, and each parameter is updated just before its next use.

    python examples/deferred.py

It pays for nets that are mostly weights and optimizer state, as this one is: wide layers, few rows. The bits are those
of the order as written, clipping included.
"""

import argparse
import hashlib

import torch
from torch import nn

import ebbtide


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", default="50%")
    parser.add_argument("--order", default="deferred", choices=["as-written", "deferred"])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=768)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(args.width, args.width), nn.GELU()) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ebbtide.Session(fast=args.fast, optimizer=args.order, wait_for_plan=True) as session:
        for _ in range(args.steps):  # the session follows the optimizer: a step is an iteration
            optimizer.zero_grad()
            model(torch.randn(16, args.width)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(session.summary())
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().reshape(-1).view(torch.uint8).numpy())
    print(f"weights {digest.hexdigest()}")


if __name__ == "__main__":
    main()
