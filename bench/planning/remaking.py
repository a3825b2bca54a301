"""What making contents anew is worth on a machine with faster CPUs: plans of recorded steps with it and without.

    ebbtide trace -o build/steps/llama.trace -m bench.step.train llama --steps 3 --result build/steps/llama.json
    python -m bench.planning.remaking build/steps/*.trace --faster 20 --read 4.2GB --write 8.9GB --fast 25% 12%

Operations take a part of their recorded time. Nothing is measured: both times are the simulator's.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.step.table_text import markdown
from ebbtide.ir.base import Origin
from ebbtide.ir.files import load
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.remakes import made_anew, without_remakes
from ebbtide.ir.trace import Trace
from ebbtide.planners import plan
from ebbtide.planners.base import page_size_of
from ebbtide.units import MIB, parse_size

HEADER = ["step", "budget", "moved", "bound", "also made anew", "bound", "made anew", "for", "planning, CPU s"]


def machine(read: int, write: int) -> Machine:
    links = (Link("dram", "file", write), Link("file", "dram", read))
    return Machine("assumed", Origin.ASSUMED, (Tier("dram", InPlace.ALL), Tier("file", InPlace.NOTHING)), links)


def faster(trace: Trace, times: float) -> Trace:
    return replace(trace, ticks=replace(trace.ticks, time_ns=(trace.ticks.time_ns / times).astype(np.int64)))


def row(name: str, trace: Trace, on: Machine, share: float) -> list[str]:
    """Times are given over that of the step with all memory, ``for`` as a share of it."""
    budget = int(share * peak(live_bytes(trace, page_size_of(on))))
    made: list[tuple[Plan, float]] = []
    for step in (without_remakes(trace), trace):
        began = time.process_time()
        made.append((plan("ebbtide", step, on, budget), time.process_time() - began))
    nbytes, spent_ns = made_anew(made[1][0], trace)
    figures = [f"{found / trace.step_ns:.2f}" for one, _ in made for found in (one.predicted_ns, one.lower_bound_ns)]
    took = " and ".join(f"{spent_s:.1f}" for _, spent_s in made)
    return [name, f"{share:.0%}", *figures, f"{nbytes / MIB:.0f} MiB", f"{spent_ns / trace.step_ns:.1%}", took]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--faster", type=float, default=8, help="so many times as fast as recorded are operations (8)")
    parser.add_argument("--read", default="4.2GB", metavar="SIZE", help="of the disk, a second (4.2GB)")
    parser.add_argument("--write", default="8.9GB", metavar="SIZE", help="of the disk, a second (8.9GB)")
    parser.add_argument("--fast", nargs="+", default=["25%", "12%"], metavar="PERCENT", help="budgets (25%% 12%%)")
    args = parser.parse_args()
    on = machine(parse_size(args.read), parse_size(args.write))
    lines = [HEADER]
    for path in args.traces:
        trace = faster(load(path, Trace), args.faster)
        lines += [row(path.stem, trace, on, float(budget.removesuffix("%")) / 100) for budget in args.fast]
    print(f"Operations {args.faster:g} times as fast as recorded, disk {args.read} in, {args.write} out; simulated.\n")
    print(markdown(lines))


if __name__ == "__main__":
    main()
