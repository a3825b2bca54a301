"""Trains a net whose contents shrink: masks of dropout, activations of ReLU.

EBBTIDE_ARENA=450MB ebbtide run -m bench.compressed.train transformer --result without.json
EBBTIDE_ARENA=350MB ebbtide run --tier compressed:100MB -m bench.compressed.train transformer --result with.json
"""

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification

from bench.step.measured_loop import train
from bench.step.train import moments, training_step
from demo.train_gpt import corpus, sample

WIDTH, LAYERS, BATCH, SEQ = 384, 6, 8, 256
CLASSES = 100

Net = tuple[nn.Module, Optimizer, Callable[[], Tensor]]


class Encoder(nn.Module):
    """PyTorch's own encoder with its defaults, which are ReLU and dropout of 0.1."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.places = nn.Parameter(torch.randn(SEQ, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, WIDTH // 64, 4 * WIDTH, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(SEQ)
        return self.head(self.layers(self.embedding(tokens) + self.places, mask=mask, is_causal=True))


def transformer(generator: torch.Generator) -> Net:
    model, text = Encoder(), corpus()

    def loss() -> Tensor:
        tokens = sample(text, BATCH, SEQ + 1, generator)
        return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return model, AdamW(model.parameters(), lr=3e-4, fused=True), loss


def gpt(generator: torch.Generator) -> Net:
    """GPT-2 with its defaults, which are GELU and dropout of 0.1."""
    config = GPT2Config(
        vocab_size=256,
        n_positions=SEQ,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=WIDTH // 64,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        loss_type="ForCausalLM",
        attn_implementation="eager",
    )
    model, text = GPT2LMHeadModel(config).train(), corpus()

    def loss() -> Tensor:
        tokens = sample(text, BATCH, SEQ, generator)
        return model(tokens, labels=tokens).loss

    return model, AdamW(model.parameters(), lr=1e-4, fused=True), loss


def pictures(model: nn.Module, batch: int, size: int, generator: torch.Generator) -> Net:
    """One picture a class, under noise."""
    plain = torch.randn(CLASSES, 3, size, size, generator=generator)

    def loss() -> Tensor:
        labels = torch.randint(CLASSES, (batch,), generator=generator)
        found = model(plain[labels] + torch.randn(batch, 3, size, size, generator=generator))
        return cross_entropy(found if torch.is_tensor(found) else found.logits, labels)

    return model, SGD(model.parameters(), lr=0.01, momentum=0.9), loss


def resnet(generator: torch.Generator) -> Net:
    config = ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=CLASSES,
    )
    return pictures(ResNetForImageClassification(config).train(), 64, 96, generator)


NETS = {"transformer": transformer, "gpt": gpt, "resnet": resnet}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a net whose contents shrink.")
    parser.add_argument("net", choices=NETS)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, optimizer, loss = NETS[args.net](torch.Generator().manual_seed(0))
    train(
        lambda: training_step(optimizer, loss, nullcontext),
        args.steps,
        args.result,
        weights=lambda: [*model.parameters(), *model.buffers()],
        moments=lambda: moments(optimizer),
    )


if __name__ == "__main__":
    main()
