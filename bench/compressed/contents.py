"""What training's storages hold, class by class, after some steps of AdamW: of a byte-level GPT with dropout and GELU,
trained on this project's own pages, and of a convolutional net with ReLU on patterns."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 16 << 20  # of a class
DROPOUT = 0.1
SEQ, BATCH, WIDTH, LAYERS = 256, 8, 384, 6


class Gpt(nn.Module):
    """Blocks of PyTorch's own encoder layer, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.places = nn.Parameter(torch.randn(SEQ, WIDTH) * 0.02)
        layers = [
            nn.TransformerEncoderLayer(
                WIDTH, WIDTH // 64, 4 * WIDTH, DROPOUT, nn.GELU(), batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        ]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.places
        mask = nn.Transformer.generate_square_subsequent_mask(SEQ)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def conv_net() -> nn.Sequential:
    def stage(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()]

    shapes = ((3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2))
    stages = itertools.chain.from_iterable(stage(*shape) for shape in shapes)
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def texts() -> Tensor:
    pages = b"".join(path.read_bytes() for path in sorted(ROOT.glob("docs/*.md")))
    return torch.frombuffer(bytearray(pages), dtype=torch.uint8).long()


def train_gpt(steps: int) -> tuple[Gpt, torch.optim.AdamW, Tensor]:
    net, text = Gpt(), texts()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-4)
    for _ in range(steps):
        begins = torch.randint(len(text) - SEQ - 1, (BATCH,))
        batch = torch.stack([text[begin : begin + SEQ + 1] for begin in begins])
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
    return net, optimizer, batch[:, :-1]


def train_conv(steps: int) -> tuple[nn.Sequential, Tensor]:
    """Ten patterns under noise."""
    net = conv_net()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    patterns = nn.functional.interpolate(torch.rand(10, 3, 6, 6), size=(64, 64), mode="bilinear")
    for _ in range(steps):
        labels = torch.randint(10, (32,))
        images = patterns[labels] + 0.2 * torch.randn(32, 3, 64, 64)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return net, images


def outputs(net: nn.Module, inputs: Tensor, kind: type[nn.Module]) -> list[Tensor]:
    """Of all modules of a kind, in a forward pass as training makes it."""
    found: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: found.append(output.detach().clone()))
        for module in net.modules()
        if isinstance(module, kind)
    ]
    net(inputs)
    for hook in hooks:
        hook.remove()
    return found


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in tensors])[:MOST_BYTES]


def halves(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.bfloat16() for tensor in tensors]


def contents(steps: int) -> Iterator[tuple[str, Tensor]]:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    kept = 1 - DROPOUT
    mask = torch.rand(MOST_BYTES) < kept
    yield f"dropout mask, bool, p = {DROPOUT}", flat([mask])
    yield "dropout mask, bool, p = 0.5", flat([torch.rand(MOST_BYTES) < 0.5])
    yield f"dropout mask, fp32 as the CPU keeps it, p = {DROPOUT}", flat([mask[: MOST_BYTES // 4] / kept])
    yield f"dropout mask, bf16 likewise, p = {DROPOUT}", flat([(mask[: MOST_BYTES // 2] / kept).bfloat16()])
    conv, images = train_conv(steps)
    relu = outputs(conv, images, nn.ReLU)
    yield "ReLU activations, fp32", flat(relu)
    with torch.autocast("cpu", torch.bfloat16):
        yield "ReLU activations, bf16", flat(outputs(conv, images, nn.ReLU))
    weights = [p for p in Gpt().parameters() if p.dim() == 2]
    yield "weights, fp32, as initialized", flat(weights)
    yield "weights, bf16, as initialized", flat(halves(weights))
    gpt, optimizer, batch = train_gpt(steps)
    yield "GELU activations, fp32", flat(outputs(gpt, batch, nn.GELU))
    with torch.autocast("cpu", torch.bfloat16):
        yield "GELU activations, bf16", flat(outputs(gpt, batch, nn.GELU))
    weights = [p for p in gpt.parameters() if p.dim() == 2]
    yield f"weights, fp32, after {steps} steps", flat(weights)
    yield f"weights, bf16, after {steps} steps", flat(halves(weights))
    gradients = [p.grad for p in weights if p.grad is not None]
    yield f"gradients, fp32, of step {steps}", flat(gradients)
    for moment in ("exp_avg", "exp_avg_sq"):
        yield f"AdamW's `{moment}`, fp32, after {steps} steps", flat([optimizer.state[p][moment] for p in weights])
    yield "zeros", torch.zeros(MOST_BYTES, dtype=torch.uint8)
