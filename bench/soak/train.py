"""Trains one job of the soak in this process, plainly or in a session.

python -m bench.soak.train --seed 17 --result out.json [--plain]
"""

import argparse
import dataclasses
import faulthandler
import hashlib
import json
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import ebbtide
from bench.soak.job import OPTIMIZERS, Job
from bench.soak.nets import loss_of, network


def train(job: Job, session: Any) -> dict[str, object]:
    """Hashes of the losses and of what training leaves, and what moved."""

    def data() -> Iterator[torch.Tensor]:
        """Batches of every length, through a loader whose workers are forked when it is first asked."""
        count = job.steps * job.micro_batches * job.batch
        loaders = []
        for number, length in enumerate(job.lengths):
            generator = torch.Generator().manual_seed(job.seed + number)
            rows = torch.randint(256, (count, length), generator=generator)
            loader = DataLoader(TensorDataset(rows), batch_size=job.batch, num_workers=job.workers)
            loaders.append(iter(loader))
        for step in range(job.steps):
            for _ in range(job.micro_batches):
                yield next(loaders[step % len(loaders)])[0]

    torch.manual_seed(job.seed)
    torch.set_num_threads(job.threads)
    model = network(job)
    name, options = OPTIMIZERS[job.optimizer]
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    losses, batches = [], data()
    # PyTorch has no bf16 LSTM on processors for which oneDNN has none.
    casts = job.autocast and (job.net != "lstm" or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    for step in range(job.steps):
        with session.step() if session is not None and job.by_step else nullcontext():
            optimizer.zero_grad(set_to_none=not job.keep_gradients)
            for _ in range(job.micro_batches):
                with torch.autocast("cpu", torch.bfloat16, enabled=casts):
                    loss = loss_of(model, next(batches)) / job.micro_batches
                loss.backward()
                losses.append(loss.item())
            if job.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if step == job.saved_after:
            with tempfile.NamedTemporaryFile(suffix=".pt") as file:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file.name)
                saved = torch.load(file.name, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            del saved
    digest = hashlib.sha256()
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for tensor in [*model.parameters(), *model.buffers(), *gradients, *states]:
        digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy())
    return {"losses": [loss.hex() for loss in losses], "sha256": digest.hexdigest()}


def run_here(job: Job, plain: bool) -> dict[str, object]:
    began = time.monotonic()
    if plain:
        return train(job, None) | {"seconds": time.monotonic() - began}
    with ebbtide.Session(fast=f"{job.fast_percent}%", policy=job.policy, progress="off") as session:
        found = train(job, session)
    report = session.report()
    return found | {
        "seconds": time.monotonic() - began,
        "modes": sorted({str(step.mode) for step in report.steps}),
        "moved_bytes": sum(step.evicted_bytes.total + step.fetched_bytes.total for step in report.steps),
        "over_budget": report.budget_violated,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="One job of the soak, by its seed.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--fast-percent", type=int, help="in place of what the seed says")
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # every thread's stack, when it hangs
    job = Job.of(args.seed)
    if args.fast_percent:
        job = dataclasses.replace(job, fast_percent=args.fast_percent)
    args.result.write_text(json.dumps(run_here(job, args.plain)))


if __name__ == "__main__":
    main()
