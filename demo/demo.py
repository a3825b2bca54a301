"""Ebbtide's main job on real input: a GPT on the Python standard library's sources, in far less memory than it needs.

Every run is a fresh child process of the same unmodified script, ``train_gpt.py``:

1. GPT A, mostly activations, plain: stock, and with glibc tuned to fault in no fresh pages (both are needed for an
   honest comparison: much of an arena's gain over stock PyTorch is page faults avoided);
2. the same in a quarter of its tensor memory, ``ebbtide run --fast 25%``: in demand mode, where every fetch is forced,
   and planned;
3. GPT B, mostly state: parameters, gradients and AdamW state are three times what the *whole process* may hold
   (``--fast`` = their bytes, counted by the plain run over its tensors, divided by three);
4. where memory cgroups are permitted, that run stands in one, limited to a quarter more than ``--fast`` (the kernel
   charges page tables, page cache and I/O buffers too), and plain PyTorch is shown being killed by the same limit.

Exits 1 if a run fails, moves nothing, goes over its budget, or ends with other bits than plain PyTorch.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from demo.comparison import show
from demo.memory_cgroup import NotPermitted, memory_cgroup
from demo.runs import Door, Outcome, Run, RunFailed, execute

Pair = tuple[Outcome, Outcome]

GPT_A = "--layers 6 --width 768 --heads 12 --seq 512 --batch 8 --dtype bf16 --steps 8"
GPT_B = "--layers 10 --width 1024 --heads 16 --seq 128 --batch 2 --dtype fp32 --steps 6"
POLICIES = (("demand", "demand"), ("planned", "ebbtide"))
STATE_OVER_FAST = 3
CGROUP_OVER_FAST = 1.25


def announced(run: Run, folder: Path) -> Outcome:
    """Execute a run, saying so before and what came of it after."""
    print(f"{run.name}: {run.describe()}", flush=True)
    started = time.monotonic()
    outcome = execute(run, folder)
    ended = "killed for memory" if outcome.killed else "trained"
    print(f"    {ended} after {time.monotonic() - started:.0f} s", flush=True)
    return outcome


def gpt_a(folder: Path) -> Iterator[Pair]:
    plain = announced(Run("A plain", Door.STOCK, GPT_A), folder)
    yield plain, plain
    yield announced(Run("A plain, tuned glibc", Door.TUNED, GPT_A), folder), plain
    for name, policy in POLICIES:
        yield announced(Run(f"A {name}", Door.EBBTIDE, GPT_A, fast="25%", policy=policy), folder), plain


def gpt_b(folder: Path) -> Iterator[Pair]:
    plain = announced(Run("B plain", Door.STOCK, GPT_B), folder)
    yield plain, plain
    assert plain.result is not None
    fast_bytes = plain.result["state_bytes"] // STATE_OVER_FAST
    ours = [Run(f"B {name}", Door.EBBTIDE, GPT_B, fast=str(fast_bytes), policy=policy) for name, policy in POLICIES]
    with ExitStack() as stack:
        try:
            cgroup = stack.enter_context(memory_cgroup(int(fast_bytes * CGROUP_OVER_FAST)))
        except NotPermitted as why:
            print(f"not shown, plain killed at a memory limit: {why}", flush=True)
        else:
            yield announced(Run("B plain, limited", Door.STOCK, GPT_B, cgroup=cgroup), folder), plain
            ours = [replace(run, cgroup=cgroup) for run in ours]
        for run in ours:
            yield announced(run, folder), plain


def problems(pairs: list[Pair]) -> Iterator[str]:
    """Everything that makes the demo a failure, in words."""
    for outcome, reference in pairs:
        name, report = outcome.run.name, outcome.report
        if outcome.run.cgroup and outcome.run.door is not Door.EBBTIDE:
            if not outcome.killed:
                yield f"{name}: was expected to be killed at the limit, and trained"
            continue
        if outcome.killed:
            yield f"{name}: killed for memory"
            continue
        if not outcome.same_bits(reference):
            yield f"{name}: other bits than {reference.run.name}"
        if report is not None and report["budget_violated"]:
            yield f"{name}: went over its budget"
        if report is not None and not (outcome.moved_bytes("evicted_bytes") and outcome.moved_bytes("fetched_bytes")):
            yield f"{name}: moved nothing, so it proves nothing"


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a GPT in far less memory than it needs, with the same bits.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results and reports to this file")
    args = parser.parse_args()
    started = time.monotonic()
    pairs: list[Pair] = []
    try:
        with tempfile.TemporaryDirectory(prefix="ebbtide-demo-") as folder:
            for scenario in (gpt_a, gpt_b):
                pairs.extend(scenario(Path(folder)))
    except RunFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    show(pairs)
    print(f"All runs took {time.monotonic() - started:.0f} s.")
    if args.json:
        rows = [
            {"name": o.run.name, "arguments": o.run.arguments, "killed": o.killed, "same_bits": o.same_bits(reference)}
            | {"result": o.result, "report": o.report}
            for o, reference in pairs
        ]
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    found = list(problems(pairs))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
