"""Train a ResNet-50 on noise: the benchmark's convolutional net, a plain PyTorch script like the demo's GPT.

``--result FILE`` writes what ``demo/train_gpt.py`` writes.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import ResNetConfig, ResNetForImageClassification

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "demo"))

from train_gpt import peak_bytes, sha256


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a ResNet-50 on noise.")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--result", type=Path, help="write seconds, losses and hashes to this JSON file")
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    seconds, losses = [], []
    for step in range(args.steps):
        started = time.perf_counter()
        images = torch.randn(args.batch, 3, args.size, args.size, generator=generator)
        labels = torch.randint(1000, (args.batch,), generator=generator)
        optimizer.zero_grad()
        loss = cross_entropy(model(images).logits, labels)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
        losses.append(loss.item())
        print(f"step {step}  loss {losses[-1]:.4f}  {seconds[-1]:.2f} s", flush=True)
    if args.result:
        parameters = [*model.parameters(), *model.buffers()]
        moments = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
        result = {
            "seconds": seconds,
            "losses": [loss.hex() for loss in losses],
            "weights_sha256": sha256(parameters),
            "optimizer_sha256": sha256(moments),
            "state_bytes": sum(tensor.nbytes for tensor in [*parameters, *moments]),
            "peak_bytes": peak_bytes(),
        }
        args.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
