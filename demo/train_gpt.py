"""Train a byte-level GPT-2 on the sources of the Python standard library.

An ordinary PyTorch script: it knows nothing of Ebbtide, which is the point of running it under ``ebbtide run``.
``--result FILE`` writes what a comparison needs: seconds a step, losses to the last bit, a SHA-256 of all weights
and of all optimizer state, the bytes that training must keep between steps, and the process's peak (VmHWM).
"""

import argparse
import hashlib
import json
import resource
import sysconfig
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a byte-level GPT-2 on the Python standard library's sources.")
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--seq", type=int, default=512, help="bytes in one sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences in one step")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16", help="bf16 means autocast")
    parser.add_argument("--adamw", choices=["fused", "foreach", "for-loop"], default="fused")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path, help="write seconds, losses and hashes to this JSON file")
    return parser.parse_args()


def corpus() -> torch.Tensor:
    """Every byte of the standard library's ``.py`` files, in the order of their paths."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in root.rglob("*.py") if not {"site-packages", "dist-packages"} & set(path.parts))
    return torch.frombuffer(bytearray().join(path.read_bytes() for path in paths), dtype=torch.uint8)


def sample(text: torch.Tensor, batch: int, seq: int, generator: torch.Generator) -> torch.Tensor:
    """``batch`` random windows of ``seq`` bytes, as token numbers: int64 [batch, seq]."""
    starts = torch.randint(len(text) - seq, (batch,), generator=generator).tolist()
    return torch.stack([text[start : start + seq] for start in starts]).long()


def sha256(tensors: Iterable[torch.Tensor]) -> str:
    """One hash over the bytes of all tensors, read where they lie: nothing is copied."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def peak_bytes() -> int:
    """The most memory this process ever held at once: VmHWM."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    text = corpus()
    config = GPT2Config(
        vocab_size=256,
        n_positions=args.seq,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=args.heads,
        attn_pdrop=0.0,  # PyTorch's fused CPU attention takes none
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        loss_type="ForCausalLM",
    )
    model = GPT2LMHeadModel(config)
    flavour = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}[args.adamw]
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, **flavour)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"{millions:.0f}M parameters, {len(text) / 1e6:.1f} MB of text", flush=True)

    seconds, losses, faults = [], [], []
    for step in range(args.steps):
        started, faults_before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tokens = sample(text, args.batch, args.seq, generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
        losses.append(loss.item())
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before)
        print(f"step {step}  loss {losses[-1]:.4f}  {seconds[-1]:.2f} s", flush=True)

    if args.result:
        parameters = list(model.parameters())
        moments = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
        result = {
            "seconds": seconds,
            "losses": [loss.hex() for loss in losses],
            "minor_faults": faults,
            "weights_sha256": sha256(parameters),
            "optimizer_sha256": sha256(moments),
            "state_bytes": sum(t.nbytes for p in parameters for t in (p, p.grad)) + sum(t.nbytes for t in moments),
            "peak_bytes": peak_bytes(),
        }
        args.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
