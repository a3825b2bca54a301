"""``ebbtide run``: a training script within a budget."""

import sys
from dataclasses import replace

import click

from ebbtide.commands.program import ProgramCommand, warn_in_one_line


@click.command(cls=ProgramCommand, options_metavar="[OPTIONS]")
@click.option(
    "--fast", metavar="SIZE|P%", help="Bound the process (8GiB), or the tensors to a share of their peak (25%)."
)
@click.option(
    "--spill",
    metavar="DIR",
    multiple=True,
    help="Where tensors go when they leave memory: a directory on a local disk. Name one on each of several disks "
    "(--spill DIR1 --spill DIR2) to use all at once.",
)
@click.option("--policy", metavar="NAME", help="What decides what moves when: ebbtide (default), demand, lru, ...")
@click.option("--plan", metavar="FILE", help="Follow this plan in place of making one.")
@click.option("--machine", metavar="FILE", help="Plan for this machine (`ebbtide probe` writes one).")
@click.option("--save-trace", metavar="FILE", help="Write the recorded step.")
@click.option("--save-plan", metavar="FILE", help="Write its plan.")
@click.option("--save-timeline", metavar="FILE", help="Write what the last planned step came to.")
@click.option("--report", metavar="FILE", help="Write the run's figures as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress and no summary.")
@click.argument("program", metavar="(SCRIPT | -m MODULE) [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    fast: str | None,
    spill: tuple[str, ...],
    policy: str | None,
    plan: str | None,
    machine: str | None,
    save_trace: str | None,
    save_plan: str | None,
    save_timeline: str | None,
    report: str | None,
    quiet: bool,
    program: tuple[str, ...],
) -> None:
    """Run a training script within a budget.

    The script runs as it would under python, with all that follows its name as its arguments. Every option has an
    EBBTIDE_... variable too; EBBTIDE_DISABLE=1 runs the script alone. The exit status is the script's own, or 3 when
    the budget cannot work or was exceeded.
    """
    from ebbtide.launch import find_program, run_program
    from ebbtide.session import Session
    from ebbtide.settings import ProgressMode, Settings

    warn_in_one_line()
    settings = Settings.from_environment()
    settings = replace(
        settings,
        plan=plan or settings.plan,
        machine=machine or settings.machine,
        save_trace=save_trace or settings.save_trace,
        save_plan=save_plan or settings.save_plan,
        save_timeline=save_timeline or settings.save_timeline,
    )
    session = Session(fast, spill or None, report, ProgressMode.OFF if quiet else None, policy, settings)
    sys.exit(run_program(find_program(program), session, quiet))
