"""Whether the size that an error names works: six networks, each refused a budget and then run with the named one.

    python -m bench.soak.named_sizes --repeat 10

Each network is run within a budget that cannot work, in a fresh process. The size that the error names is what the next
run gets, in a memory cgroup of that size. It must train to its end with exit status 0, within the budget, and with
steps that followed a plan; training waits for it, or with ``--beside`` (and more steps) goes on meanwhile. Exits 1 if a
run does not, and 2 where no cgroup can be made (that takes root).
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.memory_cgroup import NotPermitted, memory_cgroup

SCRIPT = Path(__file__).resolve().parents[2] / "tests" / "scripts" / "train_small.py"
NETS = ("mlp", "numpy", "conv", "gpt", "lstm", "embedding")
EBBTIDE = str(Path(sys.executable).with_name("ebbtide"))
MIB = 2**20


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def named(output: str) -> str:
    """The size in an error's text; "" if there is none."""
    found = re.search(r"use --fast (\d+MiB)", output)
    return found[1] if found else ""


def try_named(net: str, steps: int, refused: str, *, beside: bool = False) -> str:
    """What came of it, in words; it begins with "ok" if the size that was named works."""
    wait = [] if beside else ["--wait-for-plan"]
    script = [str(SCRIPT), net, "--steps", str(steps)]
    first = run([EBBTIDE, "run", "--fast", refused, *script])
    size = named(first.stderr)
    if not size:
        return f"no size was named (exit status {first.returncode}): {first.stderr[-300:]}"
    with memory_cgroup(int(size.removesuffix("MiB")) * MIB) as group:
        done = run(group.wrap([EBBTIDE, "run", "--fast", size, *wait, *script]))
    peak = re.search(r"process peak\s+(.*)", done.stderr)
    plan = re.search(r"  steps +(.*?); median", done.stderr)
    said = f"{refused} refused, {size} named: {peak[1] if peak else ''}; {plan[1] if plan else ''}"
    if done.returncode == 0 and "within budget" in done.stderr and re.search(r"[1-9]\d* planned", said):
        return f"ok: {said}"
    return f"FAILED with {done.returncode}: {said}: {done.stderr[-500:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=NETS)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--beside", action="store_true", help="steps go on while a plan is made")
    parser.add_argument("--refused", nargs="+", default=["64MiB", "280MiB"], help="budgets that cannot work, in turn")
    args = parser.parse_args()
    held = tried = 0
    for number in range(args.repeat):
        for net in args.nets:
            began = time.monotonic()
            try:
                refused = args.refused[number % len(args.refused)]
                found = try_named(net, args.steps, refused, beside=args.beside)
            except NotPermitted as why:
                print(f"no memory cgroup can be made: {why}", file=sys.stderr)
                sys.exit(2)
            tried, held = tried + 1, held + found.startswith("ok")
            print(f"{net}: {found} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{held} of {tried} named sizes worked")
    sys.exit(held < tried)


if __name__ == "__main__":
    main()
