"""``ebbtide run``: a training script within a budget."""

import os
import signal
import sys
from pathlib import Path

import click

from ebbtide.commands.examples import examples
from ebbtide.commands.program import (
    ProgramCommand,
    joined_tiers,
    refuse_misplaced_budget,
    tell_misplaced_options,
    warn_in_one_line,
)
from ebbtide.errors import SettingError


@click.command(
    cls=ProgramCommand,
    options_metavar="[OPTIONS]",
    epilog=examples(
        "ebbtide run --fast 8GiB train.py --epochs 3",
        "ebbtide run --fast 25% --report out.json -m package.train",
    ),
)
@click.option(
    "--fast",
    metavar="SIZE|P%",
    help="Bound the process (8GiB; it may peak 2 % above that), or the tensors alone to a share of what they peak at "
    "(25%; two steps find that, within what there is). Default: what the machine or its container has free.",
)
@click.option(
    "--fast-node",
    metavar="SIZE",
    help="Bound all ranks on this node together (torchrun): each takes an equal share.",
)
@click.option(
    "--spill",
    metavar="DIR",
    multiple=True,
    help="Where tensors go when they leave memory: a directory on a local disk. Name one on each of several disks "
    "(--spill DIR1 --spill DIR2) to use all at once. Default: the first of TMPDIR, /var/tmp and here that can serve "
    "and has room.",
)
@click.option(
    "--tier",
    "tiers",
    metavar="KIND:SIZE",
    multiple=True,
    callback=joined_tiers,
    help="A tier between memory and the spill directory: compressed:2GiB (memory in which bytes lie compressed) or "
    "numa:1:32GiB (that of NUMA node 1). Repeatable, the fastest first.",
)
@click.option(
    "--policy",
    metavar="NAME",
    help="What decides what moves when: ebbtide (default), demand, lru, ... `ebbtide compare` tries all; in Ebbtide's "
    "sources docs/planners.md lists those that plan, docs/simulator.md the others.",
)
@click.option("--plan", metavar="FILE", help="Follow this plan in place of making one.")
@click.option("--machine", metavar="NAME|FILE", help="Plan for this machine (`ebbtide probe` writes one).")
@click.option(
    "--optimizer",
    metavar="ORDER",
    help="When each parameter is updated: as-written (default), in-backward (as soon as its gradient is complete), or "
    "deferred (before its next use).",
)
@click.option("--save-trace", metavar="FILE", help="Write the recorded step.")
@click.option("--save-plan", metavar="FILE", help="Write its plan.")
@click.option("--save-timeline", metavar="FILE", help="Write what the last planned step came to.")
@click.option(
    "--wait-for-plan",
    is_flag=True,
    default=None,
    help="Stand still while a step is planned. Default: steps go on, and follow the plan when it is there.",
)
@click.option("--report", metavar="FILE", help="Write the run's figures as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress and no summary.")
@click.option("-v", "--verbose", is_flag=True, help="Show a line for every step, at most four a second.")
@click.argument("program", metavar="(SCRIPT | -m MODULE) [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    fast: str | None,
    fast_node: str | None,
    spill: tuple[str, ...],
    tiers: str | None,
    policy: str | None,
    plan: str | None,
    machine: str | None,
    optimizer: str | None,
    save_trace: str | None,
    save_plan: str | None,
    save_timeline: str | None,
    wait_for_plan: bool | None,
    report: str | None,
    quiet: bool,
    verbose: bool,
    program: tuple[str, ...],
) -> None:
    """Run a training script within a budget.

    A step, which plans are made for, ends when every optimizer in use has stepped.

    The script runs as it would under python, with all that follows its name as its arguments. Every option has an
    EBBTIDE_... variable too; EBBTIDE_DISABLE=1 runs the script alone, and EBBTIDE_PROGRESS is how progress is shown
    (auto, plain, verbose or off; the summary stays).

    The exit status is the script's own, or 3 when the budget cannot work, was exceeded or never came into force, when
    a plan was named and not used, or when a report, a trace, a plan or a timeline was to be saved and was not; 2 for
    options that cannot be, 4 where nothing can be spilled, 6 on a machine that cannot serve,
    130 after Ctrl-C.
    """
    from ebbtide.api import run
    from ebbtide.errors import INTERRUPTED
    from ebbtide.session.ending import stay_at_the_end
    from ebbtide.session.launch import on_interrupt
    from ebbtide.settings import Settings

    warn_in_one_line()
    stay_at_the_end()
    if quiet and verbose:
        raise SettingError("-q and -v: name one of them")
    settings = Settings.from_environment()
    written = {"report": report, "save-trace": save_trace, "save-plan": save_plan, "save-timeline": save_timeline}
    _refuse_one_file_twice({name: path or getattr(settings, name.replace("-", "_")) for name, path in written.items()})
    budgets = (fast, fast_node, settings.fast, settings.fast_node, settings.arena_bytes)
    if all(budget is None for budget in budgets) and not settings.disable:
        refuse_misplaced_budget(program)
    if not quiet:
        tell_misplaced_options(program)
    status = run(
        program,
        quiet=quiet,
        settings=settings,
        fast=fast,
        fast_node=fast_node,
        spill=spill or None,
        tiers=tiers,
        policy=policy,
        plan=plan,
        machine=machine,
        optimizer=optimizer,
        save_trace=save_trace,
        save_plan=save_plan,
        save_timeline=save_timeline,
        wait_for_plan=wait_for_plan,
        report=report,
        progress="verbose" if verbose else None,
    )
    if status == INTERRUPTED:
        on_interrupt(signal.SIG_DFL)
    sys.exit(status)


def _refuse_one_file_twice(written: dict[str, str | Path | None]) -> None:
    """Of options and what each writes. Raises SettingError."""
    options: dict[str, str] = {}
    for name, path in written.items():
        if path is None:
            continue
        there = os.path.realpath(path)
        if there in options and not Path(there).is_char_device():
            raise SettingError(f"--{options[there]} and --{name} both write {path}: name two files")
        options[there] = name
