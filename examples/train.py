"""An ordinary training script: a small GPT on made-up text. Nothing here knows of Ebbtide.

    python examples/train.py
    ebbtide run --fast 30% --wait-for-plan examples/train.py

Both print the same losses and the same digest of the weights.
"""

import argparse
import hashlib

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        heads = self.qkv(self.before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed_forward(self.between(x))


def gpt(layers: int, width: int, vocabulary: int = 256) -> nn.Sequential:
    blocks = [Block(width, heads=4) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(vocabulary, width), *blocks, nn.LayerNorm(width), nn.Linear(width, vocabulary))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rows", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = gpt(args.layers, args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(args.steps):
        tokens = torch.randint(256, (args.rows, 129))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().reshape(-1).view(torch.uint8).numpy())
    print(f"weights {digest.hexdigest()}")


if __name__ == "__main__":
    main()
