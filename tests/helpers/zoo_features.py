"""One small training job per PyTorch feature that could betray a moved storage."""

import itertools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch.utils.checkpoint import checkpoint

from tests.helpers.zoo import (
    Batch,
    Case,
    adamw_foreach,
    adamw_fused,
    adamw_loop,
    labelled,
    next_token_loss,
    sgd_momentum,
    tokens,
)

WIDTH = 256
CLASSES = 64
ROWS = labelled((512, WIDTH), CLASSES)
IMAGES = labelled((16, 3, 32, 32), CLASSES)


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def mlp(activation: Callable[[], nn.Module] = nn.GELU, width: int = 1024) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, CLASSES)
    )


class DropoutTransformer(nn.Module):
    """Dropout in attention, in the residual stream and in the MLP: every mask is drawn from the global generator."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(512, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, dim_feedforward=1024, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 512)

    def forward(self, indices: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(indices)))


class InPlaceNet(nn.Module):
    """Everything that autograd allows to be overwritten is: activations, residual sums, BatchNorm's buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.Conv2d(64, 64, 3, padding=1)) for _ in range(3)
        )
        self.head = nn.Linear(64 * 64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).relu_()
        for block in self.blocks:
            x = block(x).add_(x).mul_(0.5)
        return self.head(F.adaptive_avg_pool2d(x, 8).flatten(1).clamp_(min=0.0))


class ViewNet(nn.Module):
    """Chunks, transposes, strided reads, expanded rows, and writes through views into a shared base."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.05)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        query, key, value = self.project(rows).chunk(3, dim=-1)
        base = torch.zeros(rows.shape[0], 2 * WIDTH)
        base[:, ::2] = query @ self.mix.t()
        base.narrow(1, 0, WIDTH).add_(key)
        base.view(-1, 2, WIDTH)[:, 1].mul_(torch.tanh(value))
        base.unflatten(0, (-1, 8))[:, 0] += self.mix[0].expand(rows.shape[0] // 8, WIDTH).repeat(1, 2)
        return self.head(base.as_strided((rows.shape[0], WIDTH), (2 * WIDTH, 2)))


class TiedModel(nn.Module):
    """Embedding and output projection are one storage, under two names and in two gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1536, WIDTH)
        self.hidden = mlp()[:2]
        self.down = nn.Linear(1024, WIDTH)
        self.head = nn.Linear(WIDTH, 1536, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, indices: Tensor) -> Tensor:
        return self.head(self.down(self.hidden(self.embedding(indices))))


class CheckpointedModel(nn.Module):
    """Residual blocks whose activations are recomputed in the backward pass, dropout and all."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, WIDTH)) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        x = rows.requires_grad_() if self.reentrant else rows
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class ScaledSquare(torch.autograd.Function):
    """y = scale * x^2: saves an input and an output, and keeps a tensor on the context that autograd does not see."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, scale: Tensor) -> Tensor:
        square = x * x
        ctx.save_for_backward(x, scale)
        ctx.square = square
        return square * scale

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return 2.0 * x * scale * gradient, (gradient * ctx.square).sum(0)


class NegateInPlace(torch.autograd.Function):
    """Overwrites its input and says so (mark_dirty)."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.neg_()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        return gradient.neg()


class CustomFunctionNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 1024)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 1024))
        self.down = nn.Linear(1024, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        return self.down(NegateInPlace.apply(ScaledSquare.apply(self.up(rows), self.scale)))


class AveragedModel(nn.Module):
    """Keeps a moving average of its weights in tensors that are neither parameters nor optimizer state."""

    def __init__(self) -> None:
        super().__init__()
        self.network = mlp()
        for name, parameter in self.network.named_parameters():
            self.register_buffer(name.replace(".", "_"), parameter.detach().clone())

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                self.get_buffer(name.replace(".", "_")).lerp_(parameter, 0.1)
        return self.network(rows)


def gradient_penalty_loss(model: nn.Module, batch: Batch) -> Tensor:
    """A loss that contains its own gradient, so that backward runs through backward."""
    rows = batch[0].requires_grad_()
    loss = F.cross_entropy(model(rows), batch[1])
    (gradient,) = torch.autograd.grad(loss, rows, create_graph=True)
    return loss + gradient.square().sum()


class Fold(torch.autograd.Function):
    """Whole numbers to whole numbers from -3 to 3, and their gradients, too."""

    @staticmethod
    def forward(ctx: FunctionCtx, numbers: Tensor) -> Tensor:
        return numbers.remainder(7) - 3

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        return gradient.remainder(7) - 3


class WholeNumberNet(nn.Module):
    """Every sum is of whole numbers and below 2**24, so it is exact in any order: what differs is a lost byte."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (WIDTH, 1024, 1024, CLASSES)
        self.layers = nn.ModuleList(nn.Linear(n_in, n_out) for n_in, n_out in itertools.pairwise(sizes))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-3, 4, parameter.shape))

    def forward(self, rows: Tensor) -> Tensor:
        for layer in self.layers:
            rows = Fold.apply(layer(F.relu(rows)))
        return rows


def whole_rows(generator: torch.Generator) -> Batch:
    def draw(width: int) -> Tensor:
        return torch.randint(-3, 4, (512, width), generator=generator).float()

    return draw(WIDTH), draw(CLASSES)


def whole_loss(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]) * batch[1]).sum()


def whole_sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Its steps are whole numbers, and fold the weights."""
    optimizer = SGD(parameters, lr=1.0, momentum=1.0)

    @torch.no_grad()
    def fold(optimizer: Optimizer, *_: object) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.remainder_(7).sub_(3)

    optimizer.register_step_post_hook(fold)
    return optimizer


TEXT = tokens(512, 16, 33)
FEATURES = (
    Case("dropout", DropoutTransformer, TEXT, next_token_loss, adamw_fused),
    Case("bf16-autocast", DropoutTransformer, TEXT, next_token_loss, adamw_fused, autocast=True),
    Case("in-place", InPlaceNet, IMAGES, classification_loss, sgd_momentum, tight="50%"),
    Case("views", ViewNet, ROWS, classification_loss, adamw_loop, tight="32%"),
    Case("tied-weights", TiedModel, tokens(1536, 8, 65), next_token_loss, adamw_fused, tight="38%"),
    Case("checkpointing", lambda: CheckpointedModel(reentrant=False), ROWS, classification_loss, adamw_foreach),
    Case("checkpointing-reentrant", lambda: CheckpointedModel(reentrant=True), ROWS, classification_loss, adamw_fused),
    Case(
        "accumulation-and-clipping",
        mlp,
        ROWS,
        classification_loss,
        adamw_foreach,
        micro_batches=3,
        clip=0.5,
        tight="38%",
    ),
    Case("gradients-zeroed-in-place", mlp, ROWS, classification_loss, adamw_loop, keep_gradients=True, tight="38%"),
    Case("custom-functions", CustomFunctionNet, ROWS, classification_loss, adamw_fused, tight="44%"),
    Case("weight-averaging", AveragedModel, ROWS, classification_loss, adamw_loop, tight="37%"),
    Case("double-backward", lambda: mlp(nn.Tanh), ROWS, gradient_penalty_loss, sgd_momentum, tight="37%"),
    Case("whole-numbers", WholeNumberNet, whole_rows, whole_loss, whole_sgd, tight="42%"),
)
