"""Train one of seven model families on noise: what ``bench/papers/pinpointing.py`` records.

    python -m bench.papers.train_family FAMILY [--batch N] [--extent N] [--steps 3]

Plain PyTorch, random weights, nothing is downloaded. A step has some hundreds of megabytes and takes a second or two.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

VOCABULARY = 8192


@dataclass(frozen=True, slots=True)
class Family:
    """``inputs`` draws a batch of so many, each of an extent (pixels a side, tokens, numbers), and its labels; the
    model's output, or its ``logits``, are [..., classes]."""

    model: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator, int, int], tuple[Tensor, Tensor]]
    batch: int
    extent: int
    adam: bool = False


def images(generator: torch.Generator, batch: int, side: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, side, side, generator=generator), torch.randint(100, (batch,), generator=generator)


def texts(generator: torch.Generator, batch: int, length: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCABULARY, (batch, length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def vectors(generator: torch.Generator, batch: int, width: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, width, generator=generator), torch.randint(100, (batch,), generator=generator)


def mlp() -> nn.Module:
    layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(2048, 100))


def vgg() -> nn.Module:
    """The plan of VGG-11 with batch norm: convolutions without shortcuts."""
    layers: list[nn.Module] = []
    channels = 3
    for width, pooled in ((64, 1), (128, 1), (256, 0), (256, 1), (512, 0), (512, 1), (512, 0), (512, 1)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] * pooled
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 3 * 3, 1024), nn.ReLU(), nn.Linear(1024, 100))


def resnet() -> nn.Module:
    return ResNetForImageClassification(ResNetConfig(num_labels=100))


def bert() -> nn.Module:
    sizes = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 2048}
    return BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, **sizes))


def gpt() -> nn.Module:
    sizes = {"n_embd": 512, "n_layer": 8, "n_head": 8, "n_positions": 256}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes, use_cache=False, bos_token_id=0, eos_token_id=0))


def vit() -> nn.Module:
    sizes = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=224, patch_size=16, num_labels=100))


class Recurrent(nn.Module):
    """Embedding, three LSTM layers, a projection back to the vocabulary."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=3, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


FAMILIES = {
    "mlp": Family(mlp, vectors, 1024, 2048),
    "vgg": Family(vgg, images, 16, 96),
    "resnet": Family(resnet, images, 8, 160),
    "bert": Family(bert, texts, 8, 128, adam=True),
    "gpt": Family(gpt, texts, 4, 256, adam=True),
    "vit": Family(vit, images, 8, 224, adam=True),
    "lstm": Family(Recurrent, texts, 32, 48),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train one model family on noise.")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--extent", type=int)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    family = FAMILIES[args.family]
    model = family.model().train()
    parameters = model.parameters()
    optimizer = AdamW(parameters, lr=1e-4) if family.adam else SGD(parameters, lr=0.01, momentum=0.9)
    for step in range(args.steps):
        started = time.perf_counter()
        inputs, labels = family.inputs(generator, args.batch or family.batch, args.extent or family.extent)
        optimizer.zero_grad()
        output = model(inputs)
        logits = output if isinstance(output, Tensor) else output.logits
        loss = cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.4f}  {time.perf_counter() - started:.2f} s", flush=True)


if __name__ == "__main__":
    main()
