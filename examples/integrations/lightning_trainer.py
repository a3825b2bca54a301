"""Lightning's Trainer: accumulation, clipping, validation, and a checkpoint.

python lightning_trainer.py --out plain
ebbtide run --fast 30% lightning_trainer.py --out ebbtide
python lightning_trainer.py --fast 30% --devices 2 --out callback
"""

import lightning
import torch
from common import VOCABULARY, arguments, leave, sentences
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import GPT2Config, GPT2LMHeadModel


class Learner(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=256, n_layer=4, n_head=4)
        )
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, at: int) -> torch.Tensor:
        loss = self.model(input_ids=batch, labels=batch).loss
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: torch.Tensor, at: int) -> None:
        self.log("validation", self.model(input_ids=batch, labels=batch).loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--devices", type=int, default=1, help="processes, which Lightning starts")
    args = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    rows = sentences(8 * args.steps + 8, 128)
    callbacks = [ModelCheckpoint(dirpath=args.out / "checkpoints", every_n_train_steps=5)]
    if args.fast:
        from ebbtide.integrations.lightning import EbbtideCallback

        callbacks.append(EbbtideCallback(fast=args.fast))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        max_steps=args.steps,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=8,
        num_sanity_val_steps=0,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    learner = Learner()
    trainer.fit(
        learner,
        torch.utils.data.DataLoader(rows[:-8], batch_size=4),
        torch.utils.data.DataLoader(rows[-8:], batch_size=4),
    )
    leave(args.out, learner.state_dict(), learner.losses)


if __name__ == "__main__":
    main()
