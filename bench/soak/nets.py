"""The networks of the soak: small ones, of every family, whose rows are numbers below 256."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bench.soak.job import Job

VOCABULARY = 256


class Blocks(nn.Module):
    """Embeds, runs its blocks (again in the backward pass where ``recompute``), and scores every place."""

    def __init__(self, width: int, blocks: list[nn.Module], recompute: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, VOCABULARY)
        self.recompute = recompute

    def forward(self, rows: Tensor) -> Tensor:
        x = self.embedding(rows)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


class Residual(nn.Module):
    """Two layers beside their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Attention(nn.Module):
    """A block of a GPT: causal attention, then a residual one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.residual = Residual(width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.residual(x + self.out(attended.transpose(1, 2).flatten(2)))


class Convolutions(nn.Module):
    """Along and across the sequence, with batch normalization and a write in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.norm(self.first(x.unsqueeze(1))), inplace=True)).squeeze(1)


class Recurrent(nn.Module):
    """An LSTM layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Tables(nn.Module):
    """Embeddings in bags, of more rows than are used."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(64 * VOCABULARY, job.width, mode="sum") for _ in range(job.depth))
        self.mlp = nn.Sequential(Residual(job.width), nn.Linear(job.width, VOCABULARY))

    def forward(self, rows: Tensor) -> Tensor:
        bags = [table((rows * (number + 7)) % (64 * VOCABULARY)) for number, table in enumerate(self.tables)]
        return self.mlp(torch.stack(bags).sum(0))[:, None].expand(-1, rows.shape[1], -1)


def network(job: Job) -> nn.Module:
    if job.net == "embedding":
        return Tables(job)
    block = {"mlp": Residual, "convolutions": Convolutions, "gpt": Attention, "lstm": Recurrent}[job.net]
    width = 2 * job.width if job.net == "mlp" else job.width
    return Blocks(width, [block(width) for _ in range(job.depth)], job.recompute)


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    return F.cross_entropy(model(rows)[:, :-1].flatten(0, 1).float(), rows[:, 1:].flatten())
