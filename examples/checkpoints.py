"""Training that stops and goes on: a checkpoint is written and read within the budget.

    python examples/checkpoints.py --steps 6             # stops after the sixth step
    python examples/checkpoints.py --steps 12            # goes on with the seventh

Both ends have the bits of a run of twelve steps without a stop, with Ebbtide or without.
"""

import argparse
import hashlib
from pathlib import Path

import torch
from torch import nn

import ebbtide


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", default="40%")
    parser.add_argument("--steps", type=int, default=12, help="at which to stop, counted from the very first")
    parser.add_argument("--every", type=int, default=3, help="steps between checkpoints")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--file", type=Path, default=Path("checkpoint.pt"))
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(args.width, args.width), nn.Tanh()) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    with ebbtide.Session(fast=args.fast, wait_for_plan=True) as session:
        if args.file.exists():
            with session.evaluating():
                saved = torch.load(args.file)
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                torch.set_rng_state(saved["generator"])
                first = saved["step"] + 1
                del saved
        print(f"begins with step {first}")
        for step in range(first, args.steps):
            with session.step():
                optimizer.zero_grad()
                model(torch.randn(256, args.width)).square().mean().backward()
                optimizer.step()
            if (step + 1) % args.every == 0 or step + 1 == args.steps:
                with session.evaluating():  # no part of a step
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state | {"generator": torch.get_rng_state(), "step": step}, args.file)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().reshape(-1).view(torch.uint8).numpy())
    print(f"weights {digest.hexdigest()}")


if __name__ == "__main__":
    main()
