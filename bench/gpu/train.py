"""One net, some steps, on a GPU: losses, a digest of the state, times and peaks, as JSON lines. It knows no Ebbtide.

    python -m bench.gpu.train mlp
    python -m ebbtide run --device cuda --fast 60% --wait-for-plan -m bench.gpu.train gpt2-xl

``--way`` is what a user would pick instead: checkpointing, or ``torch.autograd.graph.save_on_cpu``.
"""

import argparse
import contextlib
import hashlib
import json
import time

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.gpu.nets import SHAPES, Transformer
from bench.gpu.vision import RESNETS, ResNet, UNet, pictures, unet_batch

_began = time.perf_counter()


def say(what: str, **fields: object) -> None:
    print(json.dumps({"what": what, "at_s": round(time.perf_counter() - _began, 2), **fields}), flush=True)


def words_of(tensor: Tensor) -> str:
    """The sum of the tensor's words on the device, exact in 64 bits: no second copy of large states on the host."""
    flat = tensor.detach().contiguous().view(-1)
    return str(int(flat.view(torch.int16 if tensor.element_size() == 2 else torch.int32).sum(dtype=torch.int64)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("net", choices=["mlp", *SHAPES, *RESNETS, "unet"])
    parser.add_argument("--on", default="cuda")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024, help="tokens, or points of a picture's side")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--optimizer", default="foreach", choices=["foreach", "fused", "single"])
    parser.add_argument("--way", default="plain", choices=["plain", "checkpoint", "save_on_cpu"])
    parser.add_argument("--amp", action="store_true", help="float32 weights and state, bfloat16 autocast")
    given = parser.parse_args()
    if given.way == "checkpoint" and given.net not in SHAPES:
        parser.error(f"{given.net} has no blocks to checkpoint")
    device = torch.device(given.on)
    module = getattr(torch, device.type)
    torch.manual_seed(0)
    dtype = torch.float32 if given.amp else getattr(torch, given.dtype)
    torch.set_default_dtype(dtype)  # weights are made in their type: no float32 copy first
    with device:
        if given.net == "mlp":
            width, rows = (2048, 4096) if given.on == "cuda" else (128, 256)
            model: nn.Module = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(width, width), nn.GELU())])
            batch: tuple[Tensor, ...] = (torch.randn(rows, width),)
        elif given.net == "unet":
            model, batch = UNet(), unet_batch(given.batch, given.length)
        elif given.net in RESNETS:
            model, batch = ResNet(RESNETS[given.net]), pictures(given.batch, given.length)
        else:
            model = Transformer(SHAPES[given.net], given.length)
            batch = (torch.randint(0, SHAPES[given.net].words, (given.batch, given.length)),)
    torch.set_default_dtype(torch.float32)
    if given.way == "checkpoint":
        model.around = lambda block, x: checkpoint(block, x, use_reentrant=False)  # type: ignore[assignment]
    around = (
        torch.autograd.graph.save_on_cpu(pin_memory=True) if given.way == "save_on_cpu" else contextlib.nullcontext()
    )
    options = {"foreach": {"foreach": True}, "fused": {"fused": True}, "single": {"foreach": False}}[given.optimizer]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **options)
    say("made", parameters=sum(p.numel() for p in model.parameters()), **vars(given))
    losses, times = [], []
    for step in range(given.steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with around, torch.autocast(device.type, torch.bfloat16, enabled=given.amp):
            out = model(*batch)
            loss = out.float().square().mean() if given.net == "mlp" else out
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        times.append(round(time.perf_counter() - start, 4))
        say("step", n=step, s=times[-1], loss=losses[-1])
    if given.on != "cpu":
        torch.accelerator.synchronize(device)
    if hasattr(module, "max_memory_reserved"):
        say("peaks", allocated=module.max_memory_allocated(), reserved=module.max_memory_reserved())
    sums = hashlib.sha256()
    for parameter in model.parameters():
        state = optimizer.state[parameter].values()
        for tensor in (parameter, *(value for value in state if torch.is_tensor(value) and value.numel() > 1)):
            sums.update(words_of(tensor).encode())
    say("done", losses=losses, times=times, state=sums.hexdigest()[:16])


if __name__ == "__main__":
    main()
