"""Steps of the networks that the published methods were shown on, from their shapes alone: no framework, no weights.

Every operator reads and writes whole storages; its FLOPs and bytes give its time by a roofline (``Chip``). Saved
tensors live until their backward operator. Shapes are those of the networks' papers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ebbtide.ir.base import Origin
from ebbtide.ir.trace import Access, Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace

R, W = int(Access.READ), int(Access.WRITE)


@dataclass(frozen=True, slots=True)
class Chip:
    """What operators reach: FLOPs and bytes a second."""

    flops_per_s: float
    bytes_per_s: float


XEON = Chip(2.2e12, 105e9)
"""One socket of Cascade Lake, 24 cores: assumed, 60 % of 24 cores x 2.4 GHz x 64 FLOPs; six channels of DDR4."""
GPU = Chip(60e12, 700e9)
"""A GPU in half precision: assumed, about half of an RTX-class board's data sheet."""

GPU_FP32 = Chip(9e12, 500e9)
"""An RTX 2080 Ti, AutoTM's GPU, in fp32: assumed, 70 to 80 % of its data sheet."""


@dataclass
class Builder:
    """Operators in order; a storage lives from its first use to its last, a persistent one for ever."""

    chip: Chip
    ticks: list[Tick] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    kinds: list[StorageKind] = field(default_factory=list)
    uses: list[dict[int, int]] = field(default_factory=list)

    def storage(self, nbytes: float, kind: StorageKind = StorageKind.ACTIVATION) -> int:
        self.sizes.append(max(int(nbytes), 1))
        self.kinds.append(kind)
        self.uses.append({})
        return len(self.sizes) - 1

    def operator(self, name: str, module: str, flops: float, reads: list[int], writes: list[int]) -> None:
        for numbers, mode in ((reads, R), (writes, W)):
            for number in numbers:
                self.uses[number][len(self.ticks)] = self.uses[number].get(len(self.ticks), 0) | mode
        nbytes = sum(self.sizes[number] for number in (*reads, *writes))
        seconds = max(flops / self.chip.flops_per_s, nbytes / self.chip.bytes_per_s)
        self.ticks.append(Tick(max(round(seconds * 1e9), 1), name, module, round(flops), nbytes))

    def trace(self, name: str) -> Trace:
        n_ticks, storages = len(self.ticks), []
        lasting = (StorageKind.PARAMETER, StorageKind.OPTIMIZER_STATE)
        for nbytes, kind, uses in zip(self.sizes, self.kinds, self.uses, strict=True):
            life = (0, n_ticks) if kind in lasting else (min(uses), max(uses) + 1)
            storages.append(Storage(nbytes, kind, *life, persistent=kind in lasting))
        rows = [(number, tick, mode) for number, uses in enumerate(self.uses) for tick, mode in sorted(uses.items())]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        tables = (Ticks.from_rows(self.ticks), Storages.from_rows(storages), Accesses(*columns))
        return Trace(name, Origin.ASSUMED, *tables)


@dataclass(frozen=True, slots=True)
class Operator:
    """A forward operator and what its backward needs: ``saved`` storages, its weights, twice its FLOPs."""

    name: str
    module: str
    flops: float
    reads: tuple[int, ...]
    saved: tuple[int, ...]
    weights: tuple[int, ...]
    output: int


@dataclass(frozen=True, slots=True)
class Optimizer:
    """``states``: the size of each of its storages for a weight, over the weight's."""

    name: str
    states: tuple[int, ...]


SGD = Optimizer("sgd", (1,))
"""With momentum."""
ADAMW_FP32 = Optimizer("adamw", (2, 2, 2))
"""Of weights in half precision: master weights and both moments in fp32."""


def train(build: Builder, forward: list[Operator], optimizer: Optimizer | None) -> None:
    """Runs the operators, then their backward in reverse, and the optimizer's step at the end.

    The gradient of a storage that several operators read is accumulated in place. Without an optimizer a weight's
    gradient is taken away by the next operator, as an engine does that has its optimizer on the CPU.
    """
    for op in forward:
        build.operator(op.name, op.module, op.flops, [*op.reads, *op.weights], [op.output])
    gradient: dict[int, int] = {}
    weight_gradients: list[tuple[int, int]] = []
    taken: list[int] = []
    for op in reversed(forward):
        incoming = gradient.get(op.output, op.output)
        outgoing = []
        for number in op.reads:
            if build.kinds[number] is StorageKind.ACTIVATION:
                if number not in gradient:
                    gradient[number] = build.storage(build.sizes[number])
                outgoing.append(gradient[number])
        mine = [build.storage(build.sizes[weight], StorageKind.GRADIENT) for weight in op.weights]
        reads = list(dict.fromkeys([incoming, *op.saved, *op.weights]))
        build.operator(f"{op.name}_backward", op.module, 2 * op.flops, [*reads, *taken], [*outgoing, *mine])
        weight_gradients += zip(op.weights, mine, strict=True)
        taken = mine if optimizer is None else []
    if optimizer is None:
        return
    for weight, grad in weight_gradients:
        nbytes = build.sizes[weight]
        state = [build.storage(nbytes * share, StorageKind.OPTIMIZER_STATE) for share in optimizer.states]
        build.operator(optimizer.name, "", nbytes, [grad, weight, *state], [weight, *state])


Layer: TypeAlias = tuple[int, int | tuple[int, int]] | tuple[int, int | tuple[int, int], int]
"""A convolution: channels, kernel, and its stride if it is not 1."""


class Convolutions:
    """Convolutions with batch normalisation and ReLU, in fp32: a chain, or branches that are put side by side."""

    def __init__(self, batch: int, chip: Chip, size: int, channels: int = 3, normalizes: bool = True) -> None:
        self.normalizes = normalizes
        self.build, self.batch, self.size, self.channels = Builder(chip), batch, size, channels
        self.operators: list[Operator] = []
        self.at = self.build.storage(batch * channels * size * size * 4, StorageKind.ACTIVATION)
        self.build.operator("load", "", 0.0, [], [self.at])

    def convolution(
        self, channels: int, kernel: int | tuple[int, int], stride: int = 1, relu: bool = True, norm: bool = True
    ) -> None:
        module = f"conv{len(self.operators)}"
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        self.size //= stride
        elements = self.batch * channels * self.size**2
        flops = 2.0 * elements * self.channels * height * width
        weight = self.build.storage(4 * channels * self.channels * height * width, StorageKind.PARAMETER)
        source, self.at = self.at, self.build.storage(4 * elements)
        self.operators.append(Operator("convolution", module, flops, (source,), (source,), (weight,), self.at))
        self.channels = channels
        if norm and self.normalizes:
            self.norm(module)
        if relu:
            self.relu(module)

    def norm(self, module: str) -> None:
        elements = self.batch * self.channels * self.size**2
        scale = self.build.storage(8 * self.channels, StorageKind.PARAMETER)
        source, self.at = self.at, self.build.storage(4 * elements)
        self.operators.append(Operator("batch_norm", module, 5.0 * elements, (source,), (source,), (scale,), self.at))

    def relu(self, module: str) -> None:
        elements = self.batch * self.channels * self.size**2
        source, self.at = self.at, self.build.storage(4 * elements)
        self.operators.append(Operator("relu", module, elements, (source,), (self.at,), (), self.at))

    def pool(self, stride: int) -> None:
        self.size //= stride
        elements = self.batch * self.channels * self.size**2
        source, self.at = self.at, self.build.storage(4 * elements)
        self.operators.append(Operator("pool", "pool", 9.0 * elements, (source,), (source,), (), self.at))

    def branches(self, *branches: Sequence[Layer | int]) -> None:
        """Run each branch on what is there, and put the results side by side. A number is a pooling by that stride."""
        came, found, channels = (self.at, self.channels, self.size), list[int](), 0
        for branch in branches:
            self.at, self.channels, self.size = came
            for layer in branch:
                if isinstance(layer, int):
                    self.pool(layer)
                else:
                    self.convolution(*layer)
            found.append(self.at)
            channels += self.channels
        self.concatenate(tuple(found), channels)

    def concatenate(self, parts: tuple[int, ...], channels: int) -> None:
        elements = self.batch * channels * self.size**2
        self.channels, self.at = channels, self.build.storage(4 * elements)
        self.operators.append(Operator("cat", "cat", elements, parts, (), (), self.at))

    def add(self, other: int) -> None:
        total = self.build.storage(self.build.sizes[self.at])
        flops = self.build.sizes[self.at] / 4
        self.operators.append(Operator("add_relu", "add", flops, (self.at, other), (total,), (), total))
        self.at = total

    def finish(self, name: str) -> Trace:
        train(self.build, self.operators, SGD)
        return self.build.trace(name)


def resnet(blocks: tuple[int, int, int, int], batch: int, chip: Chip, size: int = 224) -> Trace:
    """Bottleneck ResNets: (3, 4, 6, 3) is ResNet-50, (3, 24, 36, 3) ResNet-200. Left out: pooling, the classifier."""
    net = Convolutions(batch, chip, size)
    net.convolution(64, 7, stride=2)
    net.convolution(64, 1, stride=2)  # in place of the pooling
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            came, channels, extent = net.at, net.channels, net.size
            net.convolution(width, 1, stride)
            net.convolution(width, 3)
            net.convolution(4 * width, 1, relu=False)
            if block == 0:
                main, net.at, net.channels, net.size = net.at, came, channels, extent
                net.convolution(4 * width, 1, stride, relu=False)
                came, net.at = net.at, main
            net.add(came)
    return net.finish(f"ResNet-{3 * sum(blocks) + 2} b{batch}")


def vgg(depths: tuple[int, int, int, int, int], batch: int, chip: Chip, size: int = 224) -> Trace:
    """VGG with so many 3 x 3 convolutions a stage; (2, 2, 4, 4, 4) is VGG-19 without its classifier."""
    net = Convolutions(batch, chip, size)
    for stage, (depth, width) in enumerate(zip(depths, (64, 128, 256, 512, 512), strict=True)):
        for layer in range(depth):
            net.convolution(width, 3, stride=2 if stage and not layer else 1, norm=False)
    return net.finish(f"VGG-{sum(depths) + 3} b{batch}")


def inception_v4(batch: int, chip: Chip) -> Trace:
    """299 x 299, without dropout and classifier. Its 3 x 3 convolutions without padding lose two pixels. Two
    convolutions of 256 channels side by side are one of 512. Without batch normalisation, as AutoTM's 659 GB say: with
    it the step has 1022."""
    net, row, column = Convolutions(batch, chip, 299, normalizes=False), (1, 7), (7, 1)
    net.convolution(32, 3, 2)
    net.size -= 2
    net.convolution(32, 3)
    net.convolution(64, 3)
    net.branches([2], [(96, 3, 2)])
    net.size -= 2
    net.branches([(64, 1), (96, 3)], [(64, 1), (64, row), (64, column), (96, 3)])
    net.branches([(192, 3, 2)], [2])
    for _ in range(4):
        net.branches([1, (96, 1)], [(96, 1)], [(64, 1), (96, 3)], [(64, 1), (96, 3), (96, 3)])
    net.branches([2], [(384, 3, 2)], [(192, 1), (224, 3), (256, 3, 2)])
    for _ in range(7):
        long: list[Layer | int] = [(192, 1), (192, row), (224, column), (224, row), (256, column)]
        net.branches([1, (128, 1)], [(384, 1)], [(192, 1), (224, row), (256, column)], long)
    net.branches([2], [(192, 1), (192, 3, 2)], [(256, 1), (256, row), (320, column), (320, 3, 2)])
    for _ in range(3):
        wide: list[Layer | int] = [(384, 1), (448, (1, 3)), (512, (3, 1)), (512, (1, 3))]
        net.branches([1, (256, 1)], [(256, 1)], [(384, 1), (512, (1, 3))], wide)
    return net.finish(f"Inception-v4 b{batch}")


def densenet(blocks: tuple[int, int, int, int], batch: int, chip: Chip, size: int = 224) -> Trace:
    """With a growth of 32; (6, 12, 64, 48) is DenseNet-264. Each layer reads all that came before side by side."""
    net = Convolutions(batch, chip, size)
    net.convolution(64, 7, 2)
    net.pool(2)
    for stage, count in enumerate(blocks):
        for layer in range(count):
            came, channels, module = net.at, net.channels, f"dense{stage}.{layer}"
            net.norm(module)
            net.relu(module)
            net.convolution(128, 1)
            net.convolution(32, 3, relu=False, norm=False)
            net.concatenate((came, net.at), channels + 32)
        net.norm(f"transition{stage}")
        net.relu(f"transition{stage}")
        if stage < 3:
            net.convolution(net.channels // 2, 1, relu=False, norm=False)
            net.pool(2)
    return net.finish(f"DenseNet-{2 * sum(blocks) + 4} b{batch}")


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder-only transformer: ``kv`` is the width of keys and of values."""

    name: str
    layers: int
    hidden: int
    kv: int
    feed_forward: int
    vocabulary: int


OPT_6_7B = Shape("OPT-6.7B", 32, 4096, 4096, 16384, 50272)
OPT_13B = Shape("OPT-13B", 40, 5120, 5120, 20480, 50272)
BLOOM_7B = Shape("Bloom-7B", 30, 4096, 4096, 16384, 250880)
BERT_LARGE = Shape("BERT-large", 24, 1024, 1024, 4096, 30522)
FALCON_7B = Shape("Falcon-7B", 32, 4544, 64, 18176, 65024)
LLAMA_70B = Shape("Llama-70B", 80, 8192, 1024, 43008, 128256)
"""Its gated feed-forward of three matrices of 28,672 is taken for one of two that are half as wide again."""


def transformer(shape: Shape, batch: int, length: int, chip: Chip, optimizer: Optimizer | None = None) -> Trace:
    """Forward and backward in half precision, a sequence classifier on top; without an ``optimizer`` that is elsewhere.

    Every weight and every bias is a tensor of its own, 16 a layer, as 10Cache's table has them for OPT.
    """
    build, tokens, d = Builder(chip), batch * length, shape.hidden
    operators: list[Operator] = []

    def weights(*counts: int) -> tuple[int, ...]:
        return tuple(build.storage(2 * count, StorageKind.PARAMETER) for count in counts)

    def operator(
        name: str, module: str, flops: float, reads: tuple[int, ...], owns: tuple[int, ...], width: int
    ) -> int:
        output = build.storage(2 * tokens * width)
        operators.append(Operator(name, module, flops, reads, reads, owns, output))
        return output

    def linear(module: str, source: int, into: int, out: int) -> int:
        return operator("linear", module, 2.0 * tokens * into * out, (source,), weights(into * out, out), out)

    ids = build.storage(8 * tokens)
    build.operator("load", "", 0.0, [], [ids])
    at = operator("embedding", "embedding", tokens * d, (ids,), weights(shape.vocabulary * d, 2050 * d), d)
    for layer in range(shape.layers):
        name = f"layer{layer}"
        normed = operator("layer_norm", f"{name}.norm1", 8.0 * tokens * d, (at,), weights(d, d), d)
        q = linear(f"{name}.q", normed, d, d)
        k, v = linear(f"{name}.k", normed, d, shape.kv), linear(f"{name}.v", normed, d, shape.kv)
        mixed = operator("attention", f"{name}.attention", 4.0 * tokens * length * d, (q, k, v), (), d)
        projected = linear(f"{name}.out", mixed, d, d)
        at = operator("add", f"{name}.add1", tokens * d, (at, projected), (), d)
        normed = operator("layer_norm", f"{name}.norm2", 8.0 * tokens * d, (at,), weights(d, d), d)
        wide = linear(f"{name}.fc1", normed, d, shape.feed_forward)
        active = operator("relu", f"{name}.relu", tokens * shape.feed_forward, (wide,), (), shape.feed_forward)
        narrow = linear(f"{name}.fc2", active, shape.feed_forward, d)
        at = operator("add", f"{name}.add2", tokens * d, (at, narrow), (), d)
    normed = operator("layer_norm", "norm", 8.0 * tokens * d, (at,), weights(d, d), d)
    operator("linear", "score", 4.0 * tokens * d, (normed,), weights(2 * d), 2)
    train(build, operators, optimizer)
    return build.trace(f"{shape.name} b{batch}")
