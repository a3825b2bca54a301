"""torchao: frozen weights of eight bits below layers that learn, and AdamW with states of eight bits.

python torchao_int8.py --out plain
ebbtide run --fast 50% torchao_int8.py --out ebbtide
"""

import torch
from common import VOCABULARY, arguments, budget, leave, sentences
from torch.nn import functional
from torchao.optim import AdamW8bit
from torchao.quantization import Int8WeightOnlyConfig, quantize_

WIDTH = 512


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.manual_seed(0)
    frozen = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)])
    quantize_(frozen, Int8WeightOnlyConfig())
    frozen.requires_grad_(False)
    learning = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in frozen)
    words, last = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
    model = torch.nn.ModuleList([words, learning, last])
    optimizer = AdamW8bit(model.parameters(), lr=1e-3)
    losses = []
    with budget(args.fast):
        for batch in sentences(8 * args.steps, 128).split(8):
            optimizer.zero_grad()
            hidden = words(batch)
            for fixed, layer in zip(frozen, learning, strict=True):
                hidden = hidden + functional.gelu(fixed(hidden) + layer(hidden))
            loss = functional.cross_entropy(last(hidden[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    leave(args.out, model.state_dict(), losses)


if __name__ == "__main__":
    main()
