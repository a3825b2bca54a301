"""torch.compile of the model and of the optimizer's step.

python compiled.py --out plain
ebbtide run --fast 50% compiled.py --out ebbtide
"""

import torch
from common import VOCABULARY, arguments, budget, leave, sentences
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=("model", "step"), help="compile the model, or the optimizer's step, alone")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=256, n_layer=2, n_head=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=False, foreach=True)
    forward = model if args.only == "step" else torch.compile(model)
    step = optimizer.step if args.only == "model" else torch.compile(optimizer.step)
    losses = []
    with budget(args.fast):
        for batch in sentences(8 * args.steps, 128).split(8):
            optimizer.zero_grad()
            loss = forward(input_ids=batch, labels=batch).loss
            loss.backward()
            step()
            losses.append(loss.item())
    leave(args.out, model.state_dict(), losses)


if __name__ == "__main__":
    main()
