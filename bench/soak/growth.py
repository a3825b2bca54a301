"""Trains for an hour within a budget and looks for what grows: memory, spill file, memory areas, threads, open files.

    python -m bench.soak.growth --minutes 60 --fast 40%

A small language model with dropout; the length of its sequences changes from step to step, a forked worker makes the
data of every hundredth step, and every fiftieth one saves a checkpoint and loads it again. Then plain PyTorch makes as
many steps in a fresh process, and must end with the same bits.

Nothing may be larger in the last quarter of the time than in the second one, but for SLACK. Exits 1 if something is.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

MIB = 2**20
LENGTHS = (64, 64, 48, 64, 96, 48, 64, 64)
SAVE_EVERY, FORK_EVERY, SAMPLE_EVERY_S = 50, 100, 1.0
SLACK = {"resident_bytes": (0.01, 4 * MIB), "spill_bytes": (0.0, 0), "areas": (0.02, 32), "threads": (0.0, 0)}
SLACK |= {"files": (0.0, 0)}
"""By how much the last quarter's median may exceed the second one's: this share of it, and this much."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the process holds at one moment, between two steps."""

    seconds: float
    steps: int
    resident_bytes: int
    spill_bytes: int
    areas: int
    threads: int
    files: int


def sample(seconds: float, steps: int, spill_bytes: int) -> Sample:
    own = Path("/proc/self")
    status = (own / "status").read_text()
    return Sample(
        seconds,
        steps,
        int(status.split("VmRSS:")[1].split()[0]) * 1024,
        spill_bytes,
        len((own / "maps").read_text().splitlines()),
        len(list((own / "task").iterdir())),
        len(list((own / "fd").iterdir())),
    )


def train(minutes: float, steps: int, fast: str, result: Path) -> None:
    """In this process: for so long in a session, or (``fast`` is "") so many steps without one."""
    import hashlib

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    width, vocabulary, batch = 256, 512, 8

    class Tokens(Dataset):
        """One sequence, made in a worker from its number."""

        def __init__(self, step: int, length: int) -> None:
            self.step, self.length = step, length

        def __len__(self) -> int:
            return batch

        def __getitem__(self, row: int) -> torch.Tensor:
            generator = torch.Generator().manual_seed(self.step * batch + row)
            return torch.randint(vocabulary, (self.length,), generator=generator)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            layer = nn.TransformerEncoderLayer(width, 4, dim_feedforward=1024, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)
            self.head = nn.Linear(width, vocabulary)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.encoder(self.embedding(tokens)))

    def batches() -> Iterator[torch.Tensor]:
        step = 0
        while True:
            tokens = Tokens(step, LENGTHS[step % len(LENGTHS)])
            workers = 1 if step % FORK_EVERY == FORK_EVERY - 1 else 0
            yield next(iter(DataLoader(tokens, batch_size=batch, num_workers=workers)))
            step += 1

    torch.manual_seed(0)
    session = None
    if fast:
        import ebbtide
        from ebbtide import _torch

        session = ebbtide.Session(fast=fast, progress="off", wait_for_plan=True)
    samples: list[Sample] = []
    began, sampled = time.monotonic(), 0.0
    with session or nullcontext():
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for step, tokens in enumerate(batches()):
            seconds = time.monotonic() - began
            if seconds > 60 * minutes if fast else step == steps:
                break
            with session.step() if session is not None else nullcontext():
                optimizer.zero_grad()
                scores = model(tokens)[:, :-1]
                nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
                optimizer.step()
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                with tempfile.NamedTemporaryFile(suffix=".pt") as file:
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file.name)
                    saved = torch.load(file.name, weights_only=True)
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                del saved
            if fast and seconds - sampled > SAMPLE_EVERY_S:
                sampled = seconds
                samples.append(sample(seconds, step, _torch.counters()["tier_bytes"][-1]))
    digest = hashlib.sha256()
    for tensor in [*model.parameters(), *(value for state in optimizer.state.values() for value in state.values())]:
        digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy())
    report = session.report() if session is not None else None
    found = {
        "steps": step,
        "sha256": digest.hexdigest(),
        "samples": [asdict(one) for one in samples],
        "moved_bytes": sum(s.evicted_bytes.total + s.fetched_bytes.total for s in report.steps) if report else 0,
        "violated": report.budget_violated if report else False,
    }
    result.write_text(json.dumps(found))


def run(result: Path, **options: object) -> dict:
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ}  # threads that spin slow one another on a busy machine
    subprocess.run([sys.executable, __file__, "--result", str(result), *words], env=environment, check=True)
    return json.loads(result.read_text())


def growth(samples: list[dict]) -> Iterator[str]:
    """What is larger in the last quarter than in the second, in words; every figure is printed."""
    quarter = len(samples) // 4
    for name, (share, much) in SLACK.items():
        second, last = (
            statistics.median(one[name] for one in part)
            for part in (samples[quarter : 2 * quarter], samples[3 * quarter :])
        )
        print(f"  {name:<16}{second:>16,.0f} in the second quarter, {last:>16,.0f} in the last")
        if last > second * (1 + share) + much:
            yield f"{name} grew from {second:,.0f} to {last:,.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Train for long within a budget, and look for what grows.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--fast", default="40%")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples to this file")
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.result:
        train(args.minutes, args.steps or 0, args.fast, args.result)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        ours = run(Path(folder, "ours"), minutes=args.minutes, fast=args.fast)
        print(
            f"{ours['steps']} steps in {args.minutes:g} minutes, {ours['moved_bytes'] / 1e9:.1f} GB moved", flush=True
        )
        if args.json:
            args.json.write_text(json.dumps(ours))
        if len(ours["samples"]) < 16:
            print("error: too short to say anything", file=sys.stderr)
            return 1
        problems = list(growth(ours["samples"]))
        plain = run(Path(folder, "plain"), steps=ours["steps"], fast="")
    if plain["sha256"] != ours["sha256"]:
        problems.append("other bits than plain PyTorch")
    if ours["violated"]:
        problems.append("the budget was exceeded")
    if not ours["moved_bytes"]:
        problems.append("nothing moved, so this shows nothing")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print("the same bits as plain PyTorch, and nothing grew" if not problems else "FAILED")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
