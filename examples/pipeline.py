"""A step that is recorded once, then planned and simulated under several budgets: nothing trains within them.

    python examples/pipeline.py --machine dram-cxl

The machine need not be here: `ebbtide machines` lists documented ones, and a file that `ebbtide probe` wrote is one,
too. The search for a plan takes seconds for each budget, and longer for more layers.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import ebbtide


def train(width: int) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(2)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(256, width)).square().mean().backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--machine", default="dram-cxl")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--trace", type=Path, default=Path("step.trace"))
    parser.add_argument("--budgets", nargs="+", default=["100%", "60%"])
    args = parser.parse_args()
    with ebbtide.record(args.trace):
        train(args.width)
    step = ebbtide.load(args.trace)
    print(f"{len(step.ticks)} ticks, {len(step.storages)} storages")
    print(f"{'budget':>8} {'step, ms':>10} {'waits, ms':>10} {'demand fetches':>15}")
    for budget in args.budgets:
        plan = ebbtide.plan(step, budget, machine=args.machine)
        outcome = ebbtide.simulate(step, plan, machine=args.machine)
        waits_ns = sum(outcome.stalls.values())
        print(
            f"{budget:>8} {outcome.step_ns / 1e6:>10.3f} {waits_ns / 1e6:>10.3f} {outcome.demand_fetches:>15}",
            flush=True,
        )


if __name__ == "__main__":
    main()
