"""What trainers log has Ebbtide's metrics, and their steps are known in advance."""

from pathlib import Path

import pytest

from tests.helpers.command import run

pytestmark = [pytest.mark.starts, pytest.mark.slow]

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
    def forward(self, x, labels=None):
        return {"loss": self.layers(x).square().mean()}
"""
TRANSFORMERS = """
from transformers import Trainer, TrainerCallback, TrainingArguments
from ebbtide.integrations.transformers import EbbtideCallback
class Reporter(TrainerCallback):
    seen = []
    def on_log(self, args, state, control, logs=None, **_):
        self.seen.append(dict(logs))
ours = EbbtideCallback(fast="40%", progress="off")
arguments = TrainingArguments(output_dir="out", max_steps=8, per_device_train_batch_size=64, logging_steps=1,
                              save_strategy="no", use_cpu=True, report_to=[], disable_tqdm=True)
rows = [{"x": torch.randn(512), "labels": 0} for _ in range(64)]
trainer = Trainer(model=Net(), args=arguments, train_dataset=rows, callbacks=[ours])
trainer.callback_handler.callbacks.insert(0, Reporter())  # where TensorBoard's and W&B's stand
trainer.train()
last = [logs for logs in Reporter.seen if "loss" in logs][-1]
print(ours.session.total_steps, last["ebbtide/out_bytes"] > 0, last["ebbtide/budget_bytes"] > 0, "loss" in last)
print(sum(type(each).__name__ == "_Metrics" for each in trainer.callback_handler.callbacks))
trainer.train()
print(sum(type(each).__name__ == "_Metrics" for each in trainer.callback_handler.callbacks))
# A search for hyperparameters adds up what this returns.
print([name for name in trainer.evaluate(rows) if not name.startswith("eval_") and name != "epoch"])
"""
LIGHTNING = """
import csv, lightning
from lightning.pytorch.loggers import CSVLogger
from ebbtide.integrations.lightning import EbbtideCallback
class Learner(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = Net()
    def training_step(self, batch, at):
        return self.net(batch)["loss"]
    def validation_step(self, batch, at):
        self.log("validation", self.net(batch)["loss"])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
torch.manual_seed(1)
batches = torch.utils.data.DataLoader(torch.randn(512, 512), batch_size=32)
def trained(logger, *callbacks):  # a step takes two batches, and each fourth step is followed by a validation
    learner = Learner()
    trainer = lightning.Trainer(accelerator="cpu", max_steps=8, logger=logger, log_every_n_steps=2,
                                callbacks=list(callbacks), accumulate_grad_batches=2, val_check_interval=8,
                                limit_val_batches=1, num_sanity_val_steps=0, enable_progress_bar=False,
                                enable_model_summary=False, enable_checkpointing=False)
    trainer.fit(learner, batches, torch.utils.data.DataLoader(torch.ones(32, 512), batch_size=32))
    return list(learner.parameters())
plain = trained(False)
ours = EbbtideCallback(fast="40%", progress="off")
logger = CSVLogger("logs")
print(all(map(torch.equal, plain, trained(logger, ours))), *(step.mode for step in ours.session.report().steps))
rows = [row for row in csv.DictReader(open(logger.log_dir + "/metrics.csv")) if row["ebbtide/out_bytes"]]
print(ours.session.total_steps, float(rows[-1]["ebbtide/out_bytes"]) > 0, float(rows[-1]["ebbtide/budget_bytes"]) > 0)
print([row["step"] for row in rows])
"""


def printed(program: str, folder: Path) -> list[str]:
    path = folder / "program.py"
    path.write_text(NET + program)
    done = run(str(path), cwd=folder, status=0)
    return [line for line in done.stdout.splitlines() if not line.startswith(("{", "[20"))]


def test_a_trainer_s_log_has_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert printed(TRANSFORMERS, tmp_path) == ["8 True True True", "2", "2", "[]"]


def test_a_lightning_logger_gets_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    modes = " ".join(["recorded"] * 2 + ["planned"] * 6)
    assert printed(LIGHTNING, tmp_path) == [f"True {modes}", "8 True True", "['1', '3', '5', '7']"]


def test_a_lightning_trainer_that_cannot_tell_its_steps_trains(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    stream = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.randn(512, 512, generator=torch.Generator().manual_seed(1)))
"""
    program = LIGHTNING.replace("DataLoader(torch.randn(512, 512)", "DataLoader(Stream()")
    bits, *said = printed(stream + program.replace("max_steps=8", "max_epochs=1"), tmp_path)
    assert bits.startswith("True")
    assert said == ["None True True", "['1', '3', '5', '7']"]
