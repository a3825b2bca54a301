"""``ebbtide verify``: proves that a script ends with the same bits within a budget."""

import os
import sys
from pathlib import Path

import click

from ebbtide.commands.completion import orders, policies
from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import spill_option
from ebbtide.commands.program import (
    ProgramCommand,
    program_argument,
    refuse_misplaced_options,
    tell_misplaced_options,
    tier_option,
)


@click.command(
    cls=ProgramCommand,
    options_metavar="[OPTIONS]",
    epilog=examples(
        "ebbtide verify --fast 25% train.py --steps 10",
        "ebbtide verify --optimizer in-backward train.py --output {out}",
    ),
)
@click.option("--fast", metavar="SIZE|P%", help="The budget, as for `ebbtide run`. Default: 25%.")
@spill_option("A directory for spilling, as for `ebbtide run`.")
@tier_option("A tier, as for `ebbtide run`. May be repeated.")
@click.option("--device", metavar="NAME", help="Bound an accelerator's memory, as for `ebbtide run`.")
@click.option("--host", metavar="SIZE", help="With --device: the most host memory to pin.")
@click.option(
    "--policy", metavar="NAME", shell_complete=policies, help="The planner or policy: ebbtide (default), demand, ..."
)
@click.option(
    "--optimizer",
    metavar="ORDER",
    shell_complete=orders,
    help="As for `ebbtide run`: as-written (default), in-backward, deferred, auto.",
)
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path), help="Keep the runs' directories here.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@program_argument
def verify(
    fast: str | None,
    spill: tuple[str, ...],
    tiers: str | None,
    device: str | None,
    host: str | None,
    policy: str | None,
    optimizer: str | None,
    keep: Path | None,
    as_json: bool,
    program: tuple[str, ...],
) -> None:
    """Prove that a script trains with the same bits within a budget.

    Runs the script three times, each in a fresh process: on stock PyTorch, within the budget, and on stock PyTorch
    again. Compares bit for bit the tensors from which backward starts. After the last optimizer step, compares all
    parameters, gradients, buffers and optimizer state. The exit status is 0 only if the bits are the same, the budget
    held, and bytes of every kind moved.

    Each run writes into a copy of the current directory. Or put {out} where the script's arguments name its output, as
    in `ebbtide verify train.py --output {out}`; then the script runs where it is. A few steps are enough: let the
    script make ten or so.
    """
    from ebbtide.commands.interrupts import ended_by_sigterm
    from ebbtide.commands.working import working
    from ebbtide.settings import KNOBS, PREFIX, Settings
    from ebbtide.terminal import folded_for_terminal
    from ebbtide.verify.command import RUNS, verify_script
    from ebbtide.verify.text import render, to_json

    if fast is None and "EBBTIDE_FAST" not in os.environ:
        refuse_misplaced_options(program, ("--fast",))
    tell_misplaced_options(program)
    # Check here, where errors name the option.
    wishes = {"tiers": tiers, "device": device, "host_bytes": host, "policy": policy, "optimizer": optimizer}
    Settings().but(fast, spill=spill or None, **wishes)  # type: ignore[arg-type]
    variables = {knob.field: name.removeprefix(PREFIX) for name, knob in KNOBS.items()}
    places = os.pathsep.join(map(os.path.abspath, spill))  # each run has a directory of its own
    named = (("FAST", fast), ("SPILL", places), *((variables[key], of) for key, of in wishes.items()))
    options = {name: value for name, value in named if value}
    with ended_by_sigterm(), working(RUNS) as work:
        verdict = verify_script(program, options, keep, work, lambda text: work.say(f"ebbtide: {text}"))
    if as_json:
        click.echo(to_json(verdict))
    elif verdict.unsteady is None:
        click.echo(folded_for_terminal(render(verdict), sys.stdout))
    else:  # a list of reasons
        click.echo(folded_for_terminal(render(verdict), sys.stdout, hanging=4))
    sys.exit(0 if verdict.proven else 1)
