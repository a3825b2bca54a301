"""Frameworks train on the tests' device with their own loops: a session finds the steps; the bits are the same."""

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import ebbtide
from tests.device import lagging
from tests.training.device_jobs import KEPT

STEPS = 10
State = Mapping[str, Tensor]


def trainer() -> State:
    """Transformers' Trainer: Accelerate takes the device from the environment."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = "lagging"
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    net = GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=128, n_positions=64))
    rows = torch.randint(128, (4 * STEPS, 32))
    with tempfile.TemporaryDirectory() as out:
        wishes = TrainingArguments(
            out, per_device_train_batch_size=4, max_steps=STEPS, report_to=[], save_strategy="no", disable_tqdm=True
        )
        Trainer(net, wishes, train_dataset=[{"input_ids": row, "labels": row} for row in rows]).train()
    assert net.lm_head.weight.device.type == "lagging"
    return net.state_dict()


def lightning() -> State:
    import lightning.pytorch as pl
    from lightning.pytorch.accelerators import CPUAccelerator
    from lightning.pytorch.strategies import SingleDeviceStrategy

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(64, 64), nn.GELU())))

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            assert batch[0].device.type == "lagging"
            return F.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> optim.Optimizer:
            return optim.AdamW(self.parameters())

    class Accelerator(CPUAccelerator):
        def setup_device(self, _: torch.device) -> None:
            """The CPU's refuses other devices."""

    net, rows = Net(), torch.randn(16 * STEPS, 64)
    strategy = SingleDeviceStrategy(device=torch.device("lagging", 0), accelerator=Accelerator())
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    pl.Trainer(max_steps=STEPS, strategy=strategy, **quiet).fit(net, DataLoader(TensorDataset(rows, -rows), 16))
    return net.state_dict()


TRAININGS: dict[str, Callable[[], State]] = {"trainer": trainer, "lightning": lightning}


@pytest.mark.nightly
@pytest.mark.in_child({"OMP_NUM_THREADS": "1"}, lagging.load)
@pytest.mark.parametrize("name", ["trainer", "lightning"])
def test_a_framework_trains_on_a_device_with_the_same_bits(name: str) -> None:
    def train() -> State:
        torch.manual_seed(1)
        return {key: value.cpu() for key, value in TRAININGS[name]().items()}

    plain, again = train(), train()
    assert all(torch.equal(again[key], plain[key]) for key in plain)
    with ebbtide.Session("60%", **KEPT) as session:
        ours = train()
    report = session.report()
    assert all(torch.equal(ours[key], plain[key]) for key in plain)
    assert [step.mode for step in report.steps] == ["recorded"] * 2 + ["planned"] * 8
    assert sum(step.evicted_bytes.total for step in report.steps) > 0
    assert report.trouble == ""
