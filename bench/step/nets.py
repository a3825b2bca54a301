"""The benchmark's networks as plain data: names, shapes and how much memory they take. Imports no torch."""

from dataclasses import dataclass

VOCABULARY = 256  # bytes
ADAMW_BYTES = 16  # a parameter in fp32, with its gradient and AdamW's two moments


@dataclass(frozen=True, slots=True)
class Gpt:
    """A byte-level GPT-2, fp32 weights, fused AdamW; ``bf16`` means autocast. Heads are 64 wide."""

    layers: int
    width: int
    batch: int
    seq: int
    bf16: bool

    @property
    def parameters(self) -> int:
        """GPT-2's count with tied embeddings: 12 w^2 + 13 w a block, the embeddings, the last norm."""
        blocks = self.layers * (12 * self.width**2 + 13 * self.width)
        return blocks + (VOCABULARY + self.seq + 2) * self.width

    @property
    def state_bytes(self) -> int:
        return ADAMW_BYTES * self.parameters

    def describe(self) -> str:
        kind = "bf16" if self.bf16 else "fp32"
        millions = f"{self.parameters / 1e6:.0f}M"
        return f"GPT-2, {self.layers} layers of {self.width} ({millions}), {self.batch} x {self.seq}, {kind}, AdamW"


@dataclass(frozen=True, slots=True)
class ResNet:
    """A ResNet-50 in fp32 on noise, SGD with momentum."""

    batch: int
    size: int

    @property
    def state_bytes(self) -> int:
        return 3 * 4 * 25_557_032  # torchvision's count for 1,000 classes: weights, gradients, momentum

    def describe(self) -> str:
        return f"ResNet-50, {self.batch} x {self.size} x {self.size}, fp32, SGD with momentum"


@dataclass(frozen=True, slots=True)
class Llama:
    """A byte-level llama, fp32 weights under bf16 autocast, fused AdamW. Heads are 64 wide."""

    layers: int
    width: int
    batch: int
    seq: int

    @property
    def inner(self) -> int:
        """The width inside a layer's MLP."""
        return self.width * 8 // 3 // 64 * 64

    @property
    def parameters(self) -> int:
        """Attention, MLP and two norms a layer; two embeddings and the last norm."""
        layer = 4 * self.width**2 + 3 * self.width * self.inner + 2 * self.width
        return self.layers * layer + 2 * VOCABULARY * self.width + self.width

    @property
    def state_bytes(self) -> int:
        return ADAMW_BYTES * self.parameters

    def describe(self) -> str:
        millions = f"{self.parameters / 1e6:.0f}M"
        return f"llama, {self.layers} layers of {self.width} ({millions}), {self.batch} x {self.seq}, bf16, AdamW"


Shape = Gpt | ResNet | Llama


@dataclass(frozen=True, slots=True)
class Net:
    """``peak_bytes`` is about what plain PyTorch's process peaks at: a run that cannot fit is not begun.

    ``more_steps``: where steps are short, runs go on until all plans are made that steps lead to.
    """

    name: str
    shape: Shape
    peak_bytes: int
    more_steps: int = 0


_MANY = 40
_ALL = (
    Net("gpt2-bf16", Gpt(12, 768, 8, 512, bf16=True), 5_500_000_000),
    Net("gpt2-fp32", Gpt(12, 768, 8, 512, bf16=False), 6_500_000_000),
    Net("resnet50", ResNet(24, 224), 4_000_000_000),
    Net("resnet50-96px", ResNet(12, 96), 1_200_000_000, _MANY),  # of 440 MiB at its peak, two thirds are state
    Net("resnet50-96px-20", ResNet(20, 96), 1_500_000_000, _MANY),  # most of 562 MiB are activations
    Net("llama", Llama(10, 640, 8, 512), 3_500_000_000),
    Net("llama-1024", Llama(10, 1024, 2, 128), 3_600_000_000),
    Net("gpt-210M", Gpt(12, 1216, 2, 128, bf16=False), 4_700_000_000),
    Net("gpt-400M", Gpt(20, 1280, 2, 128, bf16=False), 7_800_000_000),
    Net("gpt-1B", Gpt(20, 2048, 2, 128, bf16=False), 17_800_000_000),
    Net("gpt2-xl", Gpt(48, 1600, 1, 512, bf16=True), 29_000_000_000),
    # Seconds instead of minutes, to try the benchmark itself.
    Net("gpt-small", Gpt(4, 256, 4, 128, bf16=True), 900_000_000, _MANY),
    Net("resnet-small", ResNet(4, 96), 1_000_000_000, _MANY),
)
NETS = {net.name: net for net in _ALL}
