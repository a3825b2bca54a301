"""A session around a loop of your own: steps, validation that is no step, and what the report says in the end.

    python examples/session.py --fast 40%

It waits for the plan, since its few short steps would be over first. With EBBTIDE_DISABLE=1 the same program trains on
plain PyTorch.
"""

import argparse
import hashlib

import torch
from torch import nn

import ebbtide


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", default="40%", help="8GiB for the process, or 40%% of what a step takes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(args.width, args.width), nn.GELU()) for _ in range(8)]
    model = nn.Sequential(*layers, nn.Linear(args.width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()
    with ebbtide.Session(fast=args.fast, wait_for_plan=True) as session:
        for epoch in range(args.epochs):
            for _ in range(4):
                with session.step():
                    images, labels = torch.randn(256, args.width), torch.randint(10, (256,))
                    optimizer.zero_grad()
                    loss_of(model(images), labels).backward()
                    optimizer.step()
            with session.evaluating(), torch.no_grad():
                loss = loss_of(model(torch.randn(64, args.width)), torch.randint(10, (64,)))
            print(f"epoch {epoch} loss {loss.item():.6f}")
        print(session.summary())
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().reshape(-1).view(torch.uint8).numpy())
    print(f"weights {digest.hexdigest()}")


if __name__ == "__main__":
    main()
