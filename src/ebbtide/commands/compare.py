"""``ebbtide compare``: all policies on one machine, at several budgets."""

from pathlib import Path

import click

from ebbtide.commands.completion import policies
from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import json_option, machine_options, trace_argument


@click.command(
    epilog=examples(
        "ebbtide compare step.trace --fast 25%,50%",
        "ebbtide compare step.trace --machine g10 --policy ebbtide,g10,lru",
    ),
)
@trace_argument
@machine_options
@click.option(
    "--fast", metavar="LIST", default="15%,25%,50%,75%", show_default=True, help="Budgets: sizes, shares of the peak."
)
@click.option(
    *("--policy", "names"),
    metavar="LIST",
    shell_complete=policies,
    multiple=True,
    help="Planners and online policies, such as ebbtide,lru. Default: all. May be repeated.",
)
@json_option
def compare(
    trace: Path,
    machine: Path | None,
    changes: tuple[str, ...],
    fast: str,
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare all policies on a recorded step, in one simulator.

    The gap is the distance to a time that no plan can beat. A hit, as in 10Cache, is a storage that is usable at once
    when its operation is reached, however long others waited for it. Exposed is the share of the step in which compute
    waits. If the gap of Ebbtide's own plan is above 2 %, a line names the constraint that makes the bound loose.
    """
    from ebbtide.commands.inputs import budgets_of, read_step
    from ebbtide.commands.tables import show, show_remaking, show_trials, whose_times
    from ebbtide.commands.trial_json import as_json as as_figures
    from ebbtide.commands.trial_json import print_json
    from ebbtide.commands.working import working
    from ebbtide.pipeline.trials import explain_looseness, named, try_policy
    from ebbtide.units import format_bytes

    chosen = named(",".join(names) or None)
    step, its_machine = read_step(trace, machine, changes)
    fast_tier = its_machine.tiers[0].name
    figures = []
    budgets = budgets_of(fast, step, its_machine)
    with working(len(budgets) * len(chosen)) as begin, begin.leaving_nothing():
        for budget in budgets:
            rows = []
            for policy in chosen:
                begin(f"{policy} at {format_bytes(budget)}")
                rows.append(try_policy(policy, step, its_machine, budget))
            rows.sort(key=lambda row: (row.outcome is None, row.outcome.step_ns if row.outcome else 0))
            tried = [(row, explain_looseness(row, step, its_machine)) for row in rows]
            figures += [
                as_figures(row, step, its_machine) | {"loose": None if loose is None else loose.as_json()}
                for row, loose in tried
            ]
            if as_json:
                continue
            simulated = f"simulated{whose_times(its_machine, machine, step)}"
            title = f"{its_machine.name}: {format_bytes(budget)} of {fast_tier}; {simulated}"
            with begin.aside():
                show_trials(title, rows, step.step_ns, fast_tier)
                show_remaking(rows, step)
                for row, loose in tried:
                    if loose is not None:
                        show(f"{row.policy}, gap {100 * loose.gap:.1f} %: {loose.sentence()}")
                show("")
    if as_json:
        print_json(figures)
