"""Small training jobs whose results a session must not change: six model families, each with its optimizer.

Models come from ``transformers`` configurations with random weights, so nothing is downloaded. Sizes are chosen so that
a step takes a few tenths of a second and has storages in every class that the arena treats apart: under 4 KiB (left to
the previous allocator), small pages, and over 2 MiB (huge pages).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adafactor, AdamW, Optimizer
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

Batch = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One training job. ``batch`` draws only from the generator it is given, so two runs see the same data.

    A step is ``micro_batches`` forward and backward passes, a clip of the gradients' norm where ``clip`` is set, and
    the optimizer's step. ``keep_gradients`` zeroes gradients in place instead of freeing them.

    ``tight`` is a budget under which bytes of every kind must leave: a quarter, or little more than the largest
    operation needs, which in the smallest models is up to half of a step's peak.
    """

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    autocast: bool = False
    micro_batches: int = 1
    clip: float | None = None
    keep_gradients: bool = False
    tight: str = "25%"


def tokens(vocabulary: int, batch: int, seq: int) -> Callable[[torch.Generator], Batch]:
    return lambda generator: (torch.randint(vocabulary, (batch, seq), generator=generator),)


def labelled(shape: tuple[int, ...], classes: int) -> Callable[[torch.Generator], Batch]:
    """Normal noise of ``shape`` (first dimension: batch) with random labels."""

    def draw(generator: torch.Generator) -> Batch:
        return torch.randn(shape, generator=generator), torch.randint(classes, shape[:1], generator=generator)

    return draw


def language_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch[0], labels=batch[0]).loss


def image_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).logits, batch[1])


def sgd_momentum(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.01, momentum=0.9)


def adamw_loop(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return AdamW(parameters, lr=1e-3, foreach=False)


def adamw_foreach(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return AdamW(parameters, lr=1e-3, foreach=True)


def adamw_fused(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return AdamW(parameters, lr=1e-3, fused=True)


def adafactor(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return Adafactor(parameters, lr=1e-2)


def gpt2() -> nn.Module:
    sizes = {"vocab_size": 1536, "n_positions": 64, "n_embd": 384, "n_layer": 2, "n_head": 6}
    return GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0))


def llama() -> nn.Module:
    sizes = {"vocab_size": 1536, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, use_cache=False, bos_token_id=0, eos_token_id=0))


def vit() -> nn.Module:
    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 2, "num_attention_heads": 6}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=64, patch_size=8, num_labels=100))


def resnet() -> nn.Module:
    sizes = {"embedding_size": 32, "hidden_sizes": [64, 128, 256, 512], "depths": [1, 1, 1, 2]}
    return ResNetForImageClassification(ResNetConfig(**sizes, layer_type="basic", num_labels=100))


def convnext() -> nn.Module:
    sizes = {"hidden_sizes": [64, 128, 256, 512], "depths": [1, 1, 2, 2]}
    return ConvNextForImageClassification(ConvNextConfig(**sizes, image_size=64, num_labels=100))


class LSTMLanguageModel(nn.Module):
    """Embedding, four LSTM layers with dropout between them, and a projection back to the vocabulary."""

    def __init__(self, vocabulary: int = 1536, width: int = 384) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=4, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, indices: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(indices))[0])


def next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch[0][:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten())


FAMILIES = (
    Case("gpt2-adamw-fused", gpt2, tokens(1536, 8, 64), language_loss, adamw_fused),
    Case("llama-adamw-foreach", llama, tokens(1536, 8, 64), language_loss, adamw_foreach),
    Case("vit-adamw-loop", vit, labelled((8, 3, 64, 64), 100), image_loss, adamw_loop),
    Case("resnet-sgd-momentum", resnet, labelled((8, 3, 96, 96), 100), image_loss, sgd_momentum),
    Case("convnext-adafactor", convnext, labelled((8, 3, 64, 64), 100), image_loss, adafactor, tight="35%"),
    Case("lstm-sgd-momentum", LSTMLanguageModel, tokens(1536, 16, 33), next_token_loss, sgd_momentum, tight="31%"),
)
