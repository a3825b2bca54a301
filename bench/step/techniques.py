"""What people do today to train in less memory, each as a few lines around an ordinary training step."""

import functools
import tempfile
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Module
from torch.utils.checkpoint import checkpoint

SMALLEST_SAVED = 2**20  # smaller saved tensors stay in memory: a file each would cost more than it saves

Around = Callable[[], AbstractContextManager[object]]


def plain(model: Module, spill: Path) -> Around:
    return nullcontext


def checkpointing(model: Module, spill: Path) -> Around:
    """Every transformer block or residual layer keeps its input only, and is computed again in the backward pass."""
    for block in _blocks(model):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return nullcontext


def disk_hooks(model: Module, spill: Path) -> Around:
    """Activations to files by ``torch.save``, synchronously: the way PyTorch's documentation of the hooks shows."""
    folder = Path(tempfile.mkdtemp(dir=spill, prefix="saved-tensors-"))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(tensor: Tensor) -> Tensor | Path:
        if tensor.nbytes < SMALLEST_SAVED or tensor.untyped_storage().data_ptr() in weights:
            return tensor
        path = folder / uuid.uuid4().hex
        whole = tensor.nbytes == tensor.untyped_storage().nbytes()
        torch.save(tensor if whole else tensor.clone(), path)  # of a view, torch.save would write the whole storage
        return path

    def unpack(packed: Tensor | Path) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        tensor: Tensor = torch.load(packed)
        packed.unlink()
        return tensor

    return lambda: saved_tensors_hooks(pack, unpack)


def compile_budget(model: Module, spill: Path) -> Around:
    """The compiler recomputes what it judges cheap, until half of the activations are kept."""
    torch._functorch.config.activation_memory_budget = 0.5
    model.compile()
    return nullcontext


_BLOCKS = ("GPT2Block", "LlamaDecoderLayer", "ResNetBottleNeckLayer")


def _blocks(model: Module) -> list[Module]:
    blocks = [m for m in model.modules() if type(m).__name__ in _BLOCKS]
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no blocks that are known here")
    return blocks


TECHNIQUES: dict[str, Callable[[Module, Path], Around]] = {
    "plain": plain,
    "checkpoint": checkpointing,
    "hooks": disk_hooks,
    "compile-0.5": compile_budget,
}
