"""Hugging Face's Trainer: accumulation, clipping, evaluation, and checkpoints by safetensors, from which it goes on.

    python transformers_trainer.py --out plain
    ebbtide run --fast 30% transformers_trainer.py --out ebbtide
    python transformers_trainer.py --fast 30% --out callback

The second knows nothing of Ebbtide; the third asks for it by a callback. All learn the same, bit for bit.
"""

from common import VOCABULARY, arguments, leave, sentences
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    args = parser.parse_args()
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=256, n_layer=4, n_head=4))
    rows = [{"input_ids": row, "labels": row} for row in sentences(320, 128)]
    callbacks = []
    if args.fast:
        from ebbtide.integrations.transformers import EbbtideCallback

        callbacks = [EbbtideCallback(fast=args.fast)]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(args.out / "checkpoints"),
            max_steps=args.steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_grad_norm=1.0,
            eval_strategy="steps",
            eval_steps=4,
            save_steps=5,
            logging_steps=1,
            gradient_checkpointing=args.gradient_checkpointing,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=rows[:288],
        eval_dataset=rows[288:304],
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=args.resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    leave(args.out, model.state_dict(), losses)


if __name__ == "__main__":
    main()
