"""Nets of pictures, of nothing but torch: ResNets, and a UNet of Stable Diffusion's shape.

The UNet has the widths, blocks, heads and text of Stable Diffusion 1.5's (860 million parameters). It is trained like
that: to tell the noise from the noisy latents, the time and the text. Left out: the encoders of pictures and of text,
and the schedule of noise.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RESNETS = {"resnet50": (3, 4, 6, 3), "resnet152": (3, 8, 36, 3)}  # blocks
WIDTHS, HEADS, TEXT, TEXT_WIDTH, LATENT = (320, 640, 1280, 1280), 8, 77, 768, 4


class Bottleneck(nn.Module):
    def __init__(self, width: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.inner = nn.Sequential(
            *(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True)),
            *(nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True)),
            *(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        is_like = stride == 1 and width == out
        beside = (nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.beside = nn.Identity() if is_like else nn.Sequential(*beside)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.inner(x) + self.beside(x), inplace=True)


class ResNet(nn.Module):
    """He et al., CVPR 2016, on pictures and their classes."""

    def __init__(self, blocks: tuple[int, ...], classes: int = 1000) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        parts, width = [*stem, nn.MaxPool2d(3, 2, 1)], 64
        for stage, count in enumerate(blocks):
            for block in range(count):
                parts.append(Bottleneck(width, 64 << stage, 2 if block == 0 and stage > 0 else 1))
                width = 256 << stage
        self.parts = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))

    def forward(self, pictures: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(self.parts(pictures).float(), classes)


class Residual(nn.Module):
    def __init__(self, width: int, out: int, time: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, out, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, out))
        self.after = nn.Sequential(nn.GroupNorm(32, out), nn.SiLU(), nn.Conv2d(out, out, 3, padding=1))
        self.beside = nn.Identity() if width == out else nn.Conv2d(width, out, 1)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        return self.beside(x) + self.after(self.before(x) + self.time(time)[:, :, None, None])


class Attention(nn.Module):
    def __init__(self, width: int, of: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(of, width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, of: Tensor) -> Tensor:
        parts = (self.query(x), self.key(of), self.value(of))
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class Attending(nn.Module):
    """A block of a transformer over the latents' places: each sees the others, then the text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.enter, self.leave = (nn.Conv2d(width, width, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.texts = Attention(width, width), Attention(width, TEXT_WIDTH)
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, image: Tensor, time: Tensor, text: Tensor) -> Tensor:
        x = self.enter(self.norm(image)).flatten(2).transpose(1, 2)
        seen = self.norms[0](x)
        x = x + self.own(seen, seen)
        x = x + self.texts(self.norms[1](x), text)
        value, gate = self.wide(self.norms[2](x)).chunk(2, dim=-1)
        x = x + self.narrow(value * F.gelu(gate))
        return image + self.leave(x.transpose(1, 2).unflatten(2, image.shape[2:]))


class Upsample(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0))


class UNet(nn.Module):
    """After Rombach et al., CVPR 2022. Blocks are called with the latents, the time and the text."""

    def __init__(self, widths: tuple[int, ...] = WIDTHS) -> None:
        super().__init__()
        self.first = widths[0]
        time, last = 4 * self.first, len(widths) - 1
        self.time = nn.Sequential(nn.Linear(self.first, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(LATENT, self.first, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        held, width = [self.first], self.first
        for level, out in enumerate(widths):
            for _ in range(2):
                self.down.append(self._stage(width, out, time, attends=level < last))
                width = out
                held.append(width)
            if level < last:
                self.down.append(nn.Conv2d(width, width, 3, 2, 1))
                held.append(width)
        self.middle = nn.ModuleList([Residual(width, width, time), Attending(width), Residual(width, width, time)])
        for level, out in reversed(list(enumerate(widths))):
            for block in range(3):
                self.up.append(self._stage(width + held.pop(), out, time, attends=level < last))
                width = out
                if block == 2 and level > 0:
                    self.up.append(Upsample(width))
        self.leave = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, LATENT, 3, padding=1))

    @staticmethod
    def _stage(width: int, out: int, time: int, attends: bool) -> nn.ModuleList:
        return nn.ModuleList([Residual(width, out, time), *([Attending(out)] if attends else [])])

    def forward(self, latents: Tensor, when: Tensor, text: Tensor, noise: Tensor) -> Tensor:
        half = self.first // 2
        rates = torch.exp(torch.arange(half, device=when.device) * (-math.log(10_000.0) / half))
        waves = when[:, None] * rates
        time = self.time(torch.cat([waves.cos(), waves.sin()], dim=-1).to(text.dtype))
        x = self.enter(latents)
        held = [x]
        for part in self.down:
            x = self._through(part, x, time, text)
            held.append(x)
        x = self._through(self.middle, x, time, text)
        for part in self.up:
            if isinstance(part, nn.ModuleList):
                x = torch.cat([x, held.pop()], dim=1)
            x = self._through(part, x, time, text)
        return F.mse_loss(self.leave(x).float(), noise.float())

    def _through(self, part: nn.Module, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        if not isinstance(part, nn.ModuleList):
            result: Tensor = part(x)
            return result
        for block in part:
            x = block(x, time, text)
        return x


def unet_batch(batch: int, length: int) -> tuple[Tensor, ...]:
    """Pictures of ``length`` points a side, an eighth of it as latents."""
    side = length // 8
    noisy, noise = torch.randn(2, batch, LATENT, side, side)
    return noisy, torch.randint(0, 1000, (batch,)).float(), torch.randn(batch, TEXT, TEXT_WIDTH), noise


def pictures(batch: int, length: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3, length, length), torch.randint(0, 1000, (batch,))
