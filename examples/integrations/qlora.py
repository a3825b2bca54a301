"""QLoRA: frozen weights of four bits and AdamW with states of eight bits by bitsandbytes, LoRA by PEFT.

python qlora.py --out plain
ebbtide run --fast 50% qlora.py --out ebbtide
"""

import torch
from bitsandbytes.nn import Linear4bit
from bitsandbytes.optim import AdamW8bit
from common import VOCABULARY, arguments, budget, leave, sentences
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=4
        )
    )
    for layer in model.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(layer.mlp, name, quantized(getattr(layer.mlp, name)))
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "up_proj", "down_proj"]))
    optimizer = AdamW8bit([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    with budget(args.fast):
        for batch in sentences(8 * args.steps, 128).split(8):
            optimizer.zero_grad()
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    model.save_pretrained(str(args.out / "adapter"))
    leave(args.out, {name: p for name, p in model.named_parameters() if p.requires_grad}, losses)


def quantized(layer: torch.nn.Linear) -> Linear4bit:
    """What `BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")` makes of a layer that it loads."""
    four = Linear4bit(layer.in_features, layer.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4")
    four.load_state_dict(layer.state_dict())
    return four.to("cpu")  # which is when bitsandbytes quantizes


if __name__ == "__main__":
    main()
