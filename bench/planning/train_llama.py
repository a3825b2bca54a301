"""Train a Llama of any shape, in half precision with AdamW. An ordinary script, for ``ebbtide trace --fake``.

ebbtide trace --fake --machine h200 -m bench.planning.train_llama --layers 80 --hidden 8192 --inner 28672 --heads 64
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

KEY_HEADS = 8
VOCABULARY = 128_256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("layers", "hidden", "inner", "heads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--length", type=int, default=2048, help="tokens in a row")
    asked = parser.parse_args()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=asked.hidden,
        intermediate_size=asked.inner,
        num_hidden_layers=asked.layers,
        num_attention_heads=asked.heads,
        num_key_value_heads=KEY_HEADS,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        tokens = torch.randint(VOCABULARY, (asked.rows, asked.length))
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
