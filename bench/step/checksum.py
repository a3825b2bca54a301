"""What checksums cost beside compute: steps of one training run, in turn with and without them.

    python -m bench.step.checksum --pairs 12 --fast 25%

One process, one plan: a GPT-2 trains within its budget, and from the step on in which it follows its plan, checksums
are switched on and off in the order on off off on. Each switch is followed by a step that does not count, since what
left without a checksum comes back without one. Reported are, of the pairs, median and quartiles of on over off less
one, in percent: wall time, CPU seconds of all threads, the threads' time in copies, and user instructions as the
processor counts them, which other programs on the machine do not touch.
"""

import argparse
import ctypes
import json
import os
import platform
import resource
import statistics
import struct
import time

import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

import ebbtide
from ebbtide import _torch

COLUMNS = ("wall", "cpu", "copying", "instructions")


class Instructions:
    """The processor's own count of what this process and its later threads execute; 0 where it may not be read."""

    def __init__(self) -> None:
        call = {"x86_64": 298, "aarch64": 241}[platform.machine()]
        hardware, instructions, inherited_user_only = 0, 1, 1 << 1 | 1 << 5
        wanted = struct.pack("IIQQQQQ", hardware, 112, instructions, 0, 0, 0, inherited_user_only).ljust(112, b"\0")
        self._fd = ctypes.CDLL(None).syscall(call, wanted, 0, -1, -1, 0)

    def read(self) -> int:
        return int.from_bytes(os.read(self._fd, 8), "little") if self._fd >= 0 else 0


def figures(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """On over off, less one, in percent."""
    ratios = [100 * (on / off - 1) for on, off in pairs if off > 0]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"median": round(middle, 2), "lower quartile": round(low, 2), "upper quartile": round(high, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps with and without checksums, in turn.")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--fast", default="25%")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--policy", default="ebbtide")
    parser.add_argument("--warm-up", type=int, default=7, help="steps before the first that counts")
    args = parser.parse_args()
    torch.manual_seed(0)
    sizes = {"n_layer": args.layers, "n_embd": args.width, "n_head": args.width // 64, "n_positions": args.length}
    counter = Instructions()
    measured: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    with ebbtide.Session(fast=args.fast, policy=args.policy, progress="off", wait_for_plan=True) as session:
        model = GPT2LMHeadModel(GPT2Config(**sizes, vocab_size=args.vocabulary, use_cache=False))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tokens = torch.randint(args.vocabulary, (args.batch, args.length))

        def step() -> dict[str, float]:
            began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
            copied, executed = _torch.counters(), counter.read()
            with session.step():
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    scores = model(tokens).logits
                F.cross_entropy(scores[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
                optimizer.step()
            after, moved = resource.getrusage(resource.RUSAGE_SELF), _torch.counters()
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            copying = sum(moved[name] - copied[name] for name in ("fetching_ns", "evicting_ns"))
            wall = time.perf_counter() - began
            return {"wall": wall, "cpu": cpu, "copying": copying * 1e-9, "instructions": counter.read() - executed}

        for _ in range(args.warm_up):
            step()
        for pair in range(args.pairs):
            for on in (True, False) if pair % 2 == 0 else (False, True):
                _torch.set_checksum(on)
                step()
                measured[on].append(step())
        report = session.report()
    last = report.steps[-1]
    pairs = {
        name: [(a[name], b[name]) for a, b in zip(measured[True], measured[False], strict=True)] for name in COLUMNS
    }
    print(
        json.dumps(
            {name: figures(values) for name, values in pairs.items()}
            | {f"median {name} without": statistics.median(s[name] for s in measured[False]) for name in COLUMNS}
            | {
                "mode": str(last.mode),
                "fetched_gb": last.fetched_bytes.total / 1e9,
                "written_gb": last.written_bytes.total / 1e9,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
