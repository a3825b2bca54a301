"""Trains a small GPT whose parameters change their type before training: `train_cast.py (before|after) HOW`.

An optimizer is built before or after they do. HOW is to, half, double, cpu or assign.
"""

import sys

import torch
from torch import nn

order, how = sys.argv[1:]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + seen.transpose(1, 2).flatten(2) * self.scale
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, width)
        self.places = nn.Parameter(torch.zeros(64, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 1000, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = GPT()
if order == "before":
    optimizer = torch.optim.AdamW(model.parameters())
if how == "to":
    model.to(torch.bfloat16)
elif how == "half":
    model.half()
elif how == "double":
    model.double()
elif how == "cpu":
    model.to("cpu", torch.bfloat16)
elif how == "assign":
    model.load_state_dict({name: value.double() for name, value in model.state_dict().items()}, assign=True)
if order == "after":
    optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    words = torch.randint(0, 1000, (2, 64))
    nn.functional.cross_entropy(model(words).flatten(0, 1).float(), words.flatten()).backward()
    optimizer.step()
