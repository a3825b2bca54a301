"""Nets of nothing but torch: a GPT, and layers of Llama's shape.

Left out: dropout, padding, key-value caches, position encodings other than learned ones and rotations.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Shape:
    """``hidden``: the inner width of the feed-forward part. ``key_heads``: of keys and values."""

    width: int
    layers: int
    heads: int
    hidden: int
    key_heads: int
    words: int
    llama: bool = False


SHAPES = {
    "tiny": Shape(128, 3, 4, 512, 4, 512),
    "gpt": Shape(1024, 8, 16, 4096, 16, 16384),
    "gpt2": Shape(768, 12, 12, 3072, 12, 50304),
    "gpt2-xl": Shape(1600, 48, 25, 6400, 25, 50304),
    "llama-8b": Shape(4096, 32, 32, 14336, 8, 128256, llama=True),
}


class Block(nn.Module):
    """A transformer's layer: pre-norm, causal attention, then GELU or SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.each = shape.width // shape.heads
        self.keys = self.each * shape.key_heads
        norm = nn.RMSNorm if shape.llama else nn.LayerNorm
        bias = not shape.llama
        self.norm1, self.norm2 = norm(shape.width), norm(shape.width)
        self.qkv = nn.Linear(shape.width, shape.width + 2 * self.keys, bias=bias)
        self.out = nn.Linear(shape.width, shape.width, bias=bias)
        self.up = nn.Linear(shape.width, shape.hidden * (2 if shape.llama else 1), bias=bias)
        self.down = nn.Linear(shape.hidden, shape.width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split([width, self.keys, self.keys], dim=-1)
        q, k, v = (t.view(batch, length, -1, self.each).transpose(1, 2) for t in (q, k, v))
        shared = self.shape.key_heads < self.shape.heads
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        inner = self.up(self.norm2(x))
        if self.shape.llama:
            gate, value = inner.chunk(2, dim=-1)
            inner = F.silu(gate) * value
        else:
            inner = F.gelu(inner, approximate="tanh")
        return x + self.down(inner)


class Transformer(nn.Module):
    """``around`` calls each layer: plainly, or through a checkpoint."""

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.words, shape.width)
        self.places = nn.Embedding(length, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.words, bias=False)
        self.around = lambda block, x: block(x)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = self.around(block, x)
        return F.cross_entropy(self.head(self.norm(x[:, :-1])).flatten(0, 1).float(), words[:, 1:].flatten())
