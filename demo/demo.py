"""Ebbtide's main job on real input: a GPT on the Python standard library's sources, in far less memory than it needs.

Every run is a fresh child process of the same unmodified script, ``train_gpt.py``:

1. GPT A, mostly activations, in the type that this CPU multiplies faster (bf16 or fp32: a moment's measurement says
   which), plain: stock, and with glibc tuned to fault in no fresh pages (both are needed for an
   honest comparison: much of an arena's gain over stock PyTorch is page faults avoided);
2. the same in a quarter of its tensor memory, ``ebbtide run --fast 25%``: in demand mode, where every fetch is forced,
   and planned;
3. GPT B, mostly state: parameters, gradients and AdamW state are three times what the *whole process* may hold
   (``--fast`` = their bytes, counted by the plain run over its tensors, divided by three);
4. where memory cgroups are permitted, that run stands in one, limited to a quarter more than ``--fast`` (the kernel
   charges page tables, page cache and I/O buffers too), and plain PyTorch is shown being killed by the same limit.

Before the first run it says about how long all take, and while one goes on which step it is at. Exits 1 if a run fails,
moves nothing, goes over its budget, or ends with other bits than plain PyTorch.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from demo.calibrate import NotMeasured, Speed, measured_speed
from demo.comparison import in_a_sentence, show
from demo.display import say, shown
from demo.forecast import Forecast, Net, roughly, run_s
from demo.runs import Door, Outcome, Run, RunFailed, execute
from tests.helpers.memory_cgroup import NotPermitted, memory_cgroup

Pair = tuple[Outcome, Outcome]

# Mostly activations in either type. In fp32, which CPUs without bf16 units take, a step has a quarter of the FLOPs.
GPT_A = {
    "bf16": Net("--layers 6 --width 768 --heads 12 --seq 512 --batch 8 --dtype bf16 --steps 8", 3_200_000_000),
    "fp32": Net("--layers 6 --width 384 --heads 6 --seq 512 --batch 4 --dtype fp32 --steps 6", 1_100_000_000),
}
GPT_B = Net("--layers 10 --width 1024 --heads 16 --seq 128 --batch 2 --dtype fp32 --steps 6", 5_200_000_000)
POLICIES = (("demand", "demand"), ("planned", "ebbtide"))
STATE_OVER_FAST = 3
CGROUP_OVER_FAST = 1.25
A_PLAIN, A_TUNED, B_PLAIN, B_LIMITED = "A plain", "A plain, tuned glibc", "B plain", "B plain, limited"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the runs happen: their files, what is shown of them, and how long they are thought to take."""

    folder: Path
    console: Console
    forecast: Forecast

    def execute(self, run: Run, net: Net) -> Outcome:
        """Execute a run, saying so before, how far it is meanwhile, and what came of it after."""
        say(self.console, f"{run.name}: {run.describe()}")
        started = time.monotonic()
        with shown(self.console, net.steps) as ended:
            outcome = execute(run, self.folder, ended)
        took_s = time.monotonic() - started
        self.forecast.ended(run.name, took_s)
        came = "killed for memory" if outcome.killed else "trained"
        left = self.forecast.left()
        say(self.console, f"    {came} after {took_s:.0f} s" + (f"; {left}" if left else ""))
        return outcome


def expected_s(net_a: Net, speed: Speed) -> dict[str, float]:
    """Seconds of each run, by its name."""
    plain = {A_PLAIN: net_a, A_TUNED: net_a, B_PLAIN: GPT_B}
    ours = {f"{letter} {name}": net for letter, net in (("A", net_a), ("B", GPT_B)) for name, _ in POLICIES}
    return (
        {name: run_s(net, speed, moves=False) for name, net in plain.items()}
        | {name: run_s(net, speed, moves=True) for name, net in ours.items()}
        | {B_LIMITED: speed.start_s}
    )


def gpt_a(net: Net, stage: Stage) -> Iterator[Pair]:
    plain = stage.execute(Run(A_PLAIN, Door.STOCK, net.arguments), net)
    yield plain, plain
    yield stage.execute(Run(A_TUNED, Door.TUNED, net.arguments), net), plain
    for name, policy in POLICIES:
        yield stage.execute(Run(f"A {name}", Door.EBBTIDE, net.arguments, fast="25%", policy=policy), net), plain


def gpt_b(net: Net, stage: Stage) -> Iterator[Pair]:
    plain = stage.execute(Run(B_PLAIN, Door.STOCK, net.arguments), net)
    yield plain, plain
    assert plain.result is not None
    fast = plain.result["state_bytes"] // STATE_OVER_FAST
    ours = [Run(f"B {name}", Door.EBBTIDE, net.arguments, fast=str(fast), policy=policy) for name, policy in POLICIES]
    with ExitStack() as stack:
        try:
            cgroup = stack.enter_context(memory_cgroup(int(fast * CGROUP_OVER_FAST)))
        except NotPermitted as why:
            stage.forecast.left_out(B_LIMITED)
            say(stage.console, f"not shown, plain killed at a memory limit: {why}")
        else:
            yield stage.execute(Run(B_LIMITED, Door.STOCK, net.arguments, cgroup=cgroup), net), plain
            ours = [replace(run, cgroup=cgroup) for run in ours]
        for run in ours:
            yield stage.execute(run, net), plain


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


def runs(dtype: str, console: Console) -> Iterator[Pair]:
    """All of them, as they end. Raises RunFailed, NotMeasured."""
    say(console, "measuring this machine for a moment")
    speed = measured_speed()
    chosen = speed.faster_dtype if dtype == "auto" else dtype
    ratio = speed.bf16_one_thread / speed.fp32_one_thread
    say(console, f"matrix products in bf16 run at {ratio:.2g} times the rate of fp32 here: GPT A trains in {chosen}")
    net_a = GPT_A[chosen]
    forecast = Forecast(expected_s(net_a, speed))
    say(
        console,
        f"all runs take {roughly(forecast.left_s())} if this machine keeps its pace of this moment; each run that ends "
        "corrects that",
    )
    with tempfile.TemporaryDirectory(prefix="ebbtide-demo-") as folder:
        stage = Stage(Path(folder), console, forecast)
        yield from gpt_a(net_a, stage)
        yield from gpt_b(GPT_B, stage)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a GPT in far less memory than it needs, with the same bits.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results and reports to this file")
    parser.add_argument("--dtype", choices=["auto", *GPT_A], default="auto", help="GPT A's; auto is the faster one")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the run and its cgroup end, too
    started = time.monotonic()
    pairs: list[Pair] = []
    failed: Exception | None = None
    interrupted = False
    try:
        for pair in runs(args.dtype, Console()):
            pairs.append(pair)
    except (RunFailed, NotMeasured) as failure:
        failed = failure  # what the others came to is shown all the same
    except KeyboardInterrupt:
        interrupted = True
    if pairs:
        show(pairs)
        took = f"{'Those runs' if failed or interrupted else 'All runs'} took {time.monotonic() - started:.0f} s."
        print(f"{took} {in_a_sentence(pairs)}")
        command = os.path.relpath(Path(sys.executable).with_name("ebbtide"))
        print(f"Your own script: {command} run --fast 8GiB train.py (docs/guide.md goes through the commands)")
    if args.json:
        rows = [
            {"name": o.run.name, "arguments": o.run.arguments, "killed": o.killed, "same_bits": o.same_bits(reference)}
            | {"result": o.result, "report": o.report}
            for o, reference in pairs
        ]
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    found = [*problems(pairs), *([str(failed)] if failed else [])]
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if interrupted:
        return 130
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
