"""Seconds a step, ours against plain PyTorch: fresh processes, interleaved, so that each pair sees the same machine.

    python bench/step_time.py --budgets 25%,50% --pairs 5 -- --layers 6 --dtype bf16

Each round runs every door once, in turn: plain with stock and with tuned glibc, and ours at every budget and policy.
A door's figure is the median over rounds of its step time over the *tuned* one of the same round, with the lowest and
the highest. CPU seconds stand beside. Steps count from the fourth on. Prints one table; ``--json`` keeps everything.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "demo"))

from runs import SCRIPT, Door, Outcome, Run, execute, gigabytes


def doors(script: Path, arguments: str, budgets: list[str], policies: list[str]) -> list[Run]:
    plain = [Run(door.name.lower(), door, arguments, script=script) for door in (Door.STOCK, Door.TUNED)]
    return plain + [
        Run(f"{policy} {budget}", Door.EBBTIDE, arguments, fast=budget, policy=policy, script=script)
        for budget in budgets
        for policy in policies
    ]


def median_of(outcome: Outcome, name: str) -> float:
    return statistics.median(step[name] for step in outcome.bounded_steps[1:])


def row(run: Run, outcomes: list[Outcome], tuned: list[Outcome], reference: Outcome) -> list[str]:
    ratios = sorted(ours.step_s / other.step_s for ours, other in zip(outcomes, tuned, strict=True))
    ours = [outcome for outcome in outcomes if outcome.report is not None]
    peak = statistics.median(outcome.result["peak_bytes"] for outcome in outcomes if outcome.result)
    texts = [
        run.name,
        f"{statistics.median(outcome.step_s for outcome in outcomes):.2f}",
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
        gigabytes(peak),
        "yes" if all(outcome.same_bits(reference) for outcome in outcomes) else "NO",
    ]
    if not ours:
        return [*texts, "", "", "", "", ""]
    return [
        *texts,
        f"{statistics.median(median_of(outcome, 'cpu_s') for outcome in ours):.2f}",
        f"{statistics.median(outcome.stall_s for outcome in ours):.2f}",
        gigabytes(statistics.median(outcome.moved_bytes("fetched_bytes") for outcome in ours)),
        gigabytes(statistics.median(outcome.moved_bytes("written_bytes") for outcome in ours)),
        f"{statistics.median(plan['predicted_s'] / plan['step_s'] for plan in plans):.2f}"
        if (plans := [outcome.report["plan"] for outcome in ours if outcome.report and outcome.report["plan"]])
        else "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", type=Path, default=SCRIPT, help="what to train; bench/train_resnet.py is another")
    parser.add_argument("--budgets", default="25%,50%")
    parser.add_argument("--policies", default="ebbtide")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("arguments", nargs="*", help="of the training script, after --")
    args = parser.parse_args()
    runs = doors(args.script.resolve(), " ".join(args.arguments), args.budgets.split(","), args.policies.split(","))
    outcomes: dict[str, list[Outcome]] = {run.name: [] for run in runs}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.pairs):
            for run in runs:
                outcomes[run.name].append(execute(run, Path(folder)))
                print(f"round {number}  {run.name:16} {outcomes[run.name][-1].step_s:.2f} s", flush=True)
    table = Table(box=box.MARKDOWN)
    for title in ("run", "step s", "over tuned", "peak", "same bits", "CPU s", "stall s", "in", "written", "predicted"):
        table.add_column(title, justify="right")
    for run in runs:
        table.add_row(*row(run, outcomes[run.name], outcomes["tuned"], outcomes["stock"][0]))
    Console(width=max(140, Console().width)).print(table)
    if args.json:
        kept = {name: [{"result": o.result, "report": o.report} for o in found] for name, found in outcomes.items()}
        args.json.write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
