"""TRL's SFTTrainer on a text, with a tokenizer that is made here, since nothing is downloaded.

python trl_sft.py --out plain
ebbtide run --fast 60% trl_sft.py --out ebbtide
python trl_sft.py --fast 60% --out callback
"""

from common import arguments, leave, sentences
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer


def byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(["<end>", *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def main() -> None:
    args = arguments(__doc__).parse_args()
    set_seed(0)
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4
    )
    model = LlamaForCausalLM(config)
    texts = [bytes(row.tolist()).decode("latin-1") for row in sentences(8 * args.steps, 127)]
    callbacks = []
    if args.fast:
        from ebbtide.integrations.transformers import EbbtideCallback

        callbacks = [EbbtideCallback(fast=args.fast)]
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=str(args.out / "checkpoints"),
            max_steps=args.steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_length=128,
            logging_steps=1,
            save_strategy="no",
            bf16=False,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    leave(args.out, model.state_dict(), losses)


if __name__ == "__main__":
    main()
