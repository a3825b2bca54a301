"""Six small networks that differ in what they hold, each an ordinary script with nothing of Ebbtide in it.

python train_small.py gpt --steps 8
"""

import argparse
import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

Batch = Callable[[], torch.Tensor]  # makes a batch, runs the model on it, returns the loss


def mlp() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(12)], nn.Linear(1024, 16))
    return model, lambda: F.cross_entropy(model(torch.randn(512, 1024)), torch.randint(16, (512,)))


def numpy() -> tuple[nn.Module, Batch]:
    """Wide batches of a small net, made in NumPy: 48 MiB outside PyTorch, each gone within milliseconds."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()) for _ in range(6)])
    generator = np.random.default_rng(0)

    def batch() -> torch.Tensor:
        rows = generator.random((4096, 1024)).astype(np.float32)
        loss: torch.Tensor = model(torch.tensor(rows[:1024])).square().mean()
        return loss

    return model, batch


def conv() -> tuple[nn.Module, Batch]:
    def block(inside: int, outside: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())

    blocks = [block(3, 64), *[block(64, 64) for _ in range(6)], nn.MaxPool2d(4)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 12 * 12, 100))
    return model, lambda: F.cross_entropy(model(torch.randn(16, 3, 48, 48)), torch.randint(100, (16,)))


def gpt() -> tuple[nn.Module, Batch]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, n_head=6, n_embd=384, vocab_size=2048, n_positions=128, use_cache=False)
    model = GPT2LMHeadModel(config)
    model.train()

    def batch() -> torch.Tensor:
        tokens = torch.randint(2048, (8, 128))
        loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        return loss

    return model, batch


def lstm() -> tuple[nn.Module, Batch]:
    model = nn.ModuleList([nn.Embedding(5000, 256), nn.LSTM(256, 512, 2, batch_first=True), nn.Linear(512, 5000)])

    def batch() -> torch.Tensor:
        tokens = torch.randint(5000, (16, 48))
        return F.cross_entropy(model[2](model[1](model[0](tokens))[0]).flatten(0, 1), tokens.flatten())

    return model, batch


def embedding() -> tuple[nn.Module, Batch]:
    tables = nn.ModuleList([nn.EmbeddingBag(20000, 64, mode="sum") for _ in range(10)])
    head = nn.Sequential(nn.Linear(640, 512), nn.ReLU(), nn.Linear(512, 1))

    def batch() -> torch.Tensor:
        bags = [table(torch.randint(20000, (256, 8))) for table in tables]
        return F.binary_cross_entropy_with_logits(head(torch.cat(bags, 1))[:, 0], torch.rand(256))

    return nn.ModuleList([tables, head]), batch


NETS = {"mlp": mlp, "numpy": numpy, "conv": conv, "gpt": gpt, "lstm": lstm, "embedding": embedding}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("net", choices=NETS)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    model, loss_of_batch = NETS[args.net]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = loss_of_batch()
        loss.backward()
        optimizer.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().reshape(-1).view(torch.uint8).numpy())
    print(f"loss {loss.item().hex()} weights {digest.hexdigest()}")


if __name__ == "__main__":
    main()
