"""``ebbtide run``: a training script within a budget."""

import signal
import sys
from typing import Unpack

import click

from ebbtide.commands.completion import machines, orders, policies
from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import spill_option
from ebbtide.commands.program import (
    ProgramCommand,
    program_argument,
    refuse_misplaced_options,
    tell_misplaced_options,
    tier_option,
    warn_in_one_line,
)
from ebbtide.errors import SettingError
from ebbtide.host.own_thread import import_numpy
from ebbtide.settings import Named, Settings


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
    metavar="SIZE|P%|auto",
    help="Bound the process (8GiB; it may peak 2 % above that), or the tensors alone to a share of their peak (25%; "
    "two steps find the peak, within free memory, and later ones may raise it). auto: `ebbtide estimate` runs two "
    "steps of the script first, and names the smallest budget within 10 % of full speed; auto:25% allows more. "
    "Default: the machine's free memory, or its container's.",
)
@click.option(
    "--fast-node",
    metavar="SIZE",
    help="Bound all ranks on this node together (torchrun): each takes an equal share.",
)
@spill_option(
    "The directory for tensors that leave memory, on a local disk. Name one on each of several disks (--spill DIR1 "
    "--spill DIR2) to use all at once. Default: the first of TMPDIR, /var/tmp and here that can serve and has room."
)
@tier_option(
    "A tier between memory and the spill directory: compressed:2GiB (compressed memory) or numa:1:32GiB (memory of "
    "NUMA node 1). May be repeated, the fastest first."
)
@click.option(
    "--device",
    metavar="NAME",
    help="Bound the memory of an accelerator (cuda, cuda:1, auto) and not the process's. --fast is then a size for all "
    "tensors there, or a share. Tensors that leave go to pinned host memory, and then to --spill, if named. Default: "
    "the free memory of the device.",
)
@click.option(
    *("--host", "host_bytes"),
    metavar="SIZE",
    help="With --device: the most host memory to pin. Default: half of the free.",
)
@click.option(
    "--policy",
    metavar="NAME",
    shell_complete=policies,
    help="The planner or policy that decides what moves when: ebbtide (default), demand, lru, ... `ebbtide compare` "
    "tries all. In Ebbtide's sources, docs/planners.md lists planners, and docs/simulator.md policies.",
)
@click.option("--plan", metavar="FILE", type=click.Path(), help="Follow this plan in place of making one.")
@click.option(
    "--machine",
    metavar="NAME|FILE",
    shell_complete=machines,
    help="Plan for this machine (`ebbtide probe` writes one).",
)
@click.option(
    "--optimizer",
    metavar="ORDER",
    shell_complete=orders,
    help="The time of each parameter's update: as-written (default), in-backward (as soon as its gradient is "
    "complete), deferred (before its next use), or auto (deferred, if steps are faster then).",
)
@click.option("--save-trace", metavar="FILE", type=click.Path(), help="Write the recorded step.")
@click.option("--save-plan", metavar="FILE", type=click.Path(), help="Write its plan.")
@click.option("--save-timeline", metavar="FILE", type=click.Path(), help="Write the timeline of the last planned step.")
@click.option(
    "--wait-for-plan",
    is_flag=True,
    default=None,
    help="Wait while a step is planned. Default: steps go on, and follow the plan once it is made.",
)
@click.option("--report", metavar="FILE", type=click.Path(), help="Write the run's figures as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress and no summary.")
@click.option("-v", "--verbose", is_flag=True, help="Show a line for every step, at most four a second.")
@program_argument
def run(fast: str | None, quiet: bool, verbose: bool, program: tuple[str, ...], **named: Unpack[Named]) -> None:
    """Run a training script within a budget.

    Plans are made for a step, which ends when every optimizer in use has stepped.

    The script runs as under python. All that follows its name is its arguments. Every option also has an EBBTIDE_...
    variable. EBBTIDE_DISABLE=1 runs the script alone. EBBTIDE_PROGRESS chooses how progress is shown: auto, plain,
    verbose or off. The summary is always shown.

    The exit status is the script's own, with these exceptions. It is 3 when the budget cannot work, was exceeded or
    never came into force. It is also 3 when a named plan was not used, or a report, trace, plan or timeline could not
    be saved. It is 2 for wrong options, 4 where no directory can serve for spilling, and 6 on a machine that cannot
    serve. After Ctrl-C, SIGINT ends the command as it ends Python; shells say 130.
    """
    import_numpy()
    from ebbtide.commands.automatic_budget import budget_for, is_automatic
    from ebbtide.errors import INTERRUPTED
    from ebbtide.host.place import place
    from ebbtide.session.ending import stay_at_the_end
    from ebbtide.session.launch import find_program, on_interrupt, run_program
    from ebbtide.session.leaving import command_before
    from ebbtide.session.session import Session

    warn_in_one_line()
    if quiet and verbose:
        raise SettingError("-q and -v: name one of them")
    named["spill"] = named["spill"] or None
    named["progress"] = "off" if quiet else "verbose" if verbose else None
    automatic = fast if fast is not None and is_automatic(fast) else None
    chosen = Settings.from_environment().but(None if automatic else fast, **named)
    budgets = (fast, chosen.fast, chosen.fast_node, chosen.arena_bytes)
    if all(budget is None for budget in budgets) and not chosen.disable:
        refuse_misplaced_options(program, ("--fast",))
    if not quiet:
        tell_misplaced_options(program)
    if automatic is not None:
        if chosen.device or named["fast_node"]:
            raise SettingError(f"--fast {fast} does not go with --device or --fast-node: name a budget")
        chosen = chosen.but("100%" if chosen.disable else budget_for(automatic, program, place().size, chosen.spill))
    session = Session(settings=chosen)  # mistakes in settings are told before the program's
    try:
        status = run_program(find_program(program), session, quiet, command=command_before(program))
    finally:
        stay_at_the_end()
    if status is INTERRUPTED:
        on_interrupt(signal.SIG_DFL)
    sys.exit(status)
