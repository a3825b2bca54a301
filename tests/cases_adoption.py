"""What the tests of adoption run in child processes: storages that PyTorch's allocator never handed out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from same_bits import CASES, Verdict, begin, train, train_plainly, verdict
from torch import nn
from transformers import GPT2LMHeadModel

import ebbtide
from ebbtide import _torch

STEPS = 5
FAST = "50%"


def _fine_tune(model: Any, *, before: bool) -> Verdict:
    """Fine-tune what ``model()`` loads, plainly and under a session; loaded ``before`` the session or inside it."""
    case = replace(CASES["gpt2-adamw-fused"], model=model)
    plain = train_plainly(case, STEPS)
    ours = begin(case) if before else None
    with ebbtide.Session(fast="35%") as session:
        ours = ours or begin(case)
        train(ours, STEPS, session)
    return verdict(plain, ours, session)


def from_pretrained(folder: str, before: bool) -> tuple[Verdict, int]:
    """A checkpoint saved as safetensors, then opened by ``from_pretrained`` (a private mapping of the file)."""
    torch.manual_seed(7)
    model = CASES["gpt2-adamw-fused"].model()
    model.save_pretrained(folder)
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    del model
    return _fine_tune(lambda: GPT2LMHeadModel.from_pretrained(folder), before=before), nbytes


def load_mmap(folder: str) -> tuple[Verdict, int]:
    """A checkpoint saved by ``torch.save``, then mapped by ``torch.load(mmap=True)`` and assigned to the model."""
    path = Path(folder) / "model.pt"
    torch.manual_seed(7)
    torch.save(CASES["gpt2-adamw-fused"].model().state_dict(), path)

    def load() -> nn.Module:
        with torch.device("meta"):
            model = CASES["gpt2-adamw-fused"].model()
        model.load_state_dict(torch.load(path, mmap=True, weights_only=True), assign=True)
        model.tie_weights()
        return model

    return _fine_tune(load, before=True), path.stat().st_size


def views_follow() -> None:
    """Views taken before the session still alias the parameter after its storage was adopted."""
    run = begin(CASES["weight-averaging"])
    weight = run.model.network[0].weight
    row, flat = weight.detach()[1], weight.detach().view(-1)
    with ebbtide.Session(fast=FAST) as session:
        train(run, 3, session)
    assert _torch.is_managed(weight)
    assert flat.data_ptr() == weight.data_ptr()
    assert torch.equal(flat.view_as(weight), weight)
    assert torch.equal(row, weight[1])


def _from_numpy(weight: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    array = weight.numpy().copy()
    return torch.from_numpy(array), array


def _from_dlpack(weight: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    array = weight.numpy().copy()
    return torch.from_dlpack(array), array


def _shared_memory(weight: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    shared = weight.clone().share_memory_()
    return shared, shared.numpy()


def _numpy_view(weight: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    return weight, weight.numpy()


HOLDERS = {
    "from-numpy": _from_numpy,
    "from-dlpack": _from_dlpack,
    "shared-memory": _shared_memory,
    "numpy-view": _numpy_view,
}


def outside_holder(holder: str) -> str:
    """A parameter whose memory someone else holds stays where it is, and both sides go on seeing the same bytes."""
    plain = train_plainly(CASES["weight-averaging"], 4)
    ours = begin(CASES["weight-averaging"])
    weight = ours.model.network[0].weight
    weight.data, array = HOLDERS[holder](weight.detach())
    with ebbtide.Session(fast=FAST) as session:
        train(ours, 4, session)
        summary = session.summary()
    assert plain.differences(ours) == ()
    assert weight.data_ptr() == array.ctypes.data
    assert not _torch.is_managed(weight)
    assert np.array_equal(array, weight.detach().numpy())
    return summary
