"""A script whose tensors lie on a GPU is told that no budget bounds them. PyTorch's answers are made up here."""

import pytest
import torch

from ebbtide.budget import shortfalls
from ebbtide.runtime.adopt import bytes_on_gpus
from ebbtide.units import MIB


def test_bytes_on_all_gpus_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bytes_on_gpus() == 0
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: (64 + device) * MIB)
    assert bytes_on_gpus() == 129 * MIB


def test_the_sentence_says_how_many_bytes_and_what_to_do() -> None:
    told = shortfalls.on_gpus(129 * MIB)
    assert "129 MiB" in told
    assert 'device="cuda"' in told
