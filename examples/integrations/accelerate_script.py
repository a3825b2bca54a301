"""A loop of one's own with Accelerate: accumulation, clipping, a schedule, and a state that is saved and loaded.

python accelerate_script.py --out plain
ebbtide run --fast 30% accelerate_script.py --out ebbtide
accelerate launch --no_python ebbtide run --fast 30% accelerate_script.py --out launched
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from common import VOCABULARY, arguments, budget, leave, sentences
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    args = arguments(__doc__).parse_args()
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=256, n_layer=4, n_head=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * args.steps)
    loader = torch.utils.data.DataLoader(sentences(8 * args.steps, 128), batch_size=4)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses = []
    with budget(args.fast):
        for at, batch in enumerate(loader):
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if at == args.steps:  # half way
                accelerator.save_state(str(args.out / "state"))
                accelerator.load_state(str(args.out / "state"))
    accelerator.save_model(model, str(args.out / "model"))
    leave(args.out, accelerator.unwrap_model(model).state_dict(), losses)


if __name__ == "__main__":
    main()
