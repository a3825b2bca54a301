"""What plans would make of large nets on documented GPUs, as a page: storages moved alone, and made anew, too.

    python -m bench.gpu.plans build/gpu-steps --out bench/results/DATE_gpu-plans.md

Steps are recorded on fake tensors, in seconds and without a GPU; one whose file is in the folder is not recorded again.
Nothing is measured: an operator's time is the roofline's, a step's the simulator's, with what leaves in host memory.
Only operators that may run again on an accelerator make anything anew.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from bench.planning.remaking import row
from bench.step.table_text import markdown
from ebbtide.errors import InfeasibleBudgetError
from ebbtide.estimate.command import repeating_there, with_host_memory
from ebbtide.ir.files import load
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.trace import Trace
from ebbtide.machines import find_machine
from ebbtide.planners.base import page_size_of
from ebbtide.units import format_bytes, format_time, seconds

COMMAND = "python -m bench.gpu.plans build/gpu-steps --out bench/results/DATE_gpu-plans.md"
SHARES = (0.9, 0.8, 0.6, 0.4)
HEADER = ["step", "machine", "budget", "moved", "bound", "also made anew", "bound", "made anew", "for", "as a CPU may"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of ``bench.gpu.train``: what it is, its options, and the machines that people would take for it."""

    what: str
    options: str
    machines: tuple[str, ...]


STEPS: Mapping[str, Step] = {
    "gpt2-xl": Step("GPT-2 XL, 8 x 1,024 tokens, bf16", "--batch 8 --length 1024", ("h100", "rtx4090")),
    "llama-8b": Step(
        "Llama-8B, 4 x 4,096 tokens, fp32 with autocast, checkpointed",
        "--batch 4 --length 4096 --amp --way checkpoint",
        ("h100", "h200"),
    ),
    "unet": Step(
        "UNet of Stable Diffusion's shape, 32 pictures of 512 x 512, bf16",
        "--batch 32 --length 512",
        ("h100", "rtx4090"),
    ),
    "resnet152": Step("ResNet-152, 256 pictures of 224 x 224, bf16", "--batch 256 --length 224", ("h100", "rtx4090")),
}


def recorded(net: str, machine: str, folder: Path) -> Trace:
    """The step on fake tensors; a machine's roofline gives its times, so each machine has a file."""
    path = folder / f"{net}-{machine}.trace"
    if not path.exists():
        command = ["trace", "--fake", "--quiet", "--machine", machine, "-o", str(path), "-m", "bench.gpu.train", net]
        wishes = f"--on cpu --steps 3 {STEPS[net].options}".split()
        subprocess.run([sys.executable, "-m", "ebbtide", *command, *wishes], check=True, stdout=subprocess.DEVNULL)
    return load(path, Trace)


def budgets(trace: Trace, on: Machine) -> Iterator[float]:
    """Shares of the step's peak that the machine has memory for, and all that it has."""
    whole = peak(live_bytes(trace, page_size_of(on)))
    most = (on.tiers[0].capacity_bytes or whole) / whole
    if most < 1:
        yield most
    yield from (share for share in SHARES if share < most)


def lines(net: str, trace: Trace, machine: str) -> Iterator[list[str]]:
    on, there = with_host_memory(find_machine(machine)), repeating_there(trace)
    for share in budgets(trace, on):
        print(f"{net} on {machine}, {share:.0%} ...", file=sys.stderr)
        try:
            _, budget, *figures, _ = row(net, there, on, share)
            as_on_cpu = row(net, trace, on, share)[4]
        except InfeasibleBudgetError as error:
            yield [net, machine, f"{share:.0%}", f"needs {format_bytes(error.minimum_bytes)}", *[""] * 6]
        else:
            yield [net, machine, budget, *figures, as_on_cpu]


def page(folder: Path, build: str) -> str:
    steps, plans = [["step", "machine", "peak", "time", "is"]], [HEADER]
    for net, step in STEPS.items():
        for machine in step.machines:
            trace = recorded(net, machine, folder)
            took = format_time(seconds(trace.step_ns))
            steps.append([net, machine, format_bytes(peak(live_bytes(trace))), took, step.what])
            plans += lines(net, trace, machine)
    return f"""# Plans for GPUs, {date.today()}, build {build}

Nothing here is measured. Steps are recorded on fake tensors. An operator takes what the machine's roofline says. What
leaves goes to host memory: 54 GB/s each way on `h100` and `h200`, 25 on `rtx4090` (`ebbtide machines NAME`). Made with:

    {COMMAND}

## The steps, with all memory

{markdown(steps)}

## Budgets

Times are over that of the step with all memory; a bound is what no plan can beat. A budget is a share of the step's
peak. The first of a step is all that the machine has, where that is less. `for`: the share of the step that making anew
takes. Only operators make anything anew that may run again on an accelerator, by rules that no GPU has tried: products,
and what goes place by place or row by row. `as a CPU may`: if all could that may on a CPU, convolutions and norms too.

{markdown(plans)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="the page; default: standard output")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    told = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    made = page(given.folder, told.stdout.strip() or "unknown")
    if given.out is None:
        print(made)
    else:
        given.out.write_text(made)


if __name__ == "__main__":
    main()
