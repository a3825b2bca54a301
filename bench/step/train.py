"""Trains one of the benchmark's networks, plainly or by one of the techniques of ``techniques.py``.

    python -m bench.step.train gpt2-bf16 --steps 6 --result result.json
    ebbtide run --fast 25% -m bench.step.train resnet50 --steps 10 --result result.json

An ordinary PyTorch script, which knows nothing of Ebbtide.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
)

from bench.step.measured_loop import train
from bench.step.nets import NETS, VOCABULARY, Gpt, Llama, ResNet, Shape
from bench.step.techniques import TECHNIQUES
from demo.train_gpt import corpus, sample


def gpt_model(shape: Gpt) -> Module:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=shape.seq,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.width // 64,
        attn_pdrop=0.0,  # PyTorch's fused CPU attention takes none
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        loss_type="ForCausalLM",
    )
    return GPT2LMHeadModel(config)


def llama_model(shape: Llama) -> Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // 64,
        num_key_value_heads=shape.width // 64,
        max_position_embeddings=shape.seq,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def text_loss(shape: Gpt | Llama, model: Module, bf16: bool) -> Callable[[], Tensor]:
    text, generator = corpus(), torch.Generator().manual_seed(0)

    def loss() -> Tensor:
        tokens = sample(text, shape.batch, shape.seq, generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return model(tokens, labels=tokens).loss

    return loss


def resnet_loss(shape: ResNet, model: Module) -> Callable[[], Tensor]:
    generator = torch.Generator().manual_seed(0)

    def loss() -> Tensor:
        images = torch.randn(shape.batch, 3, shape.size, shape.size, generator=generator)
        labels = torch.randint(1000, (shape.batch,), generator=generator)
        return cross_entropy(model(images).logits, labels)

    return loss


def build(shape: Shape) -> tuple[Module, Optimizer, Callable[[], Tensor]]:
    """A model, its optimizer, and what computes the next batch's loss."""
    torch.ones(2).exp()  # where two threads make MKL's first call, it may be imprecise (pytorch/pytorch#188792)
    torch.manual_seed(0)
    if isinstance(shape, Gpt):
        model = gpt_model(shape)
        return model, AdamW(model.parameters(), lr=1e-4, fused=True), text_loss(shape, model, shape.bf16)
    if isinstance(shape, Llama):
        model = llama_model(shape)
        return model, AdamW(model.parameters(), lr=1e-4, fused=True), text_loss(shape, model, bf16=True)
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).train()
    return model, SGD(model.parameters(), lr=0.01, momentum=0.9), resnet_loss(shape, model)


def training_step(
    optimizer: Optimizer, loss: Callable[[], Tensor], around: Callable[[], AbstractContextManager[object]]
) -> Tensor:
    optimizer.zero_grad()
    with around():
        value = loss()
    value.backward()
    optimizer.step()
    return value.detach()


def moments(optimizer: Optimizer) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if torch.is_tensor(value))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train one of the benchmark's networks.")
    parser.add_argument("net", choices=NETS)
    parser.add_argument("--technique", choices=TECHNIQUES, default="plain")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--spill", type=Path, default=Path("/var/tmp"), help="where the technique `hooks` puts files")
    parser.add_argument("--result", type=Path, required=True, help="write times, traffic, losses and hashes as JSON")
    args = parser.parse_args()
    model, optimizer, loss = build(NETS[args.net].shape)
    around = TECHNIQUES[args.technique](model, args.spill)
    train(
        lambda: training_step(optimizer, loss, around),
        args.steps,
        args.result,
        weights=lambda: [*model.parameters(), *model.buffers()],
        moments=lambda: moments(optimizer),
    )


if __name__ == "__main__":
    main()
