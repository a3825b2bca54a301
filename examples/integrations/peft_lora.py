"""LoRA by PEFT: a frozen model of which only small matrices learn, and what they learnt saved by safetensors.

python peft_lora.py --out plain
ebbtide run --fast 30% peft_lora.py --out ebbtide
"""

import torch
from common import VOCABULARY, arguments, budget, leave, sentences
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=256, n_layer=6, n_head=4))
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    with budget(args.fast):
        for batch in sentences(8 * args.steps, 128).split(8):
            optimizer.zero_grad()
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    model.save_pretrained(str(args.out / "adapter"))
    leave(args.out, model.state_dict(), losses)


if __name__ == "__main__":
    main()
