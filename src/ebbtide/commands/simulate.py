"""``ebbtide simulate``: one policy or plan on one machine, on the virtual clock."""

from pathlib import Path

import click

from ebbtide.commands.completion import policies
from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import fast_option, json_option, machine_options, read_inputs, trace_argument
from ebbtide.errors import EbbtideError, SettingError
from ebbtide.session.driven import check_writable, written


@click.command(
    epilog=examples(
        "ebbtide simulate step.trace --fast 25% --policy lru",
        "ebbtide simulate step.trace --plan step.plan --save-timeline step.timeline",
    ),
)
@trace_argument
@machine_options
@fast_option
@click.option(
    "--policy", metavar="NAME", shell_complete=policies, help="A planner or an online policy. Default: ebbtide."
)
@click.option(
    "--plan",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Simulate this plan in place of a policy, within its own budget or another --fast.",
)
@json_option
@click.option("--save-timeline", metavar="FILE", type=click.Path(path_type=Path), help="Write the timeline.")
def simulate(
    trace: Path,
    machine: Path | None,
    changes: tuple[str, ...],
    fast: str | None,
    policy: str | None,
    plan: Path | None,
    as_json: bool,
    save_timeline: Path | None,
) -> None:
    """Simulate a recorded step under a policy or a plan, on any machine.

    Shows the steady step's time, its stalls, the bytes that move, and the cost in energy, money and wear.
    """
    from ebbtide.commands.tables import show, show_remaking, show_trials, whose_times
    from ebbtide.commands.trial_json import as_json as as_figures
    from ebbtide.commands.trial_json import print_json
    from ebbtide.commands.working import working
    from ebbtide.ir.check import require_valid
    from ebbtide.ir.files import save
    from ebbtide.ir.occupancy import needed_bytes, peak
    from ebbtide.ir.plan import PlanStatus
    from ebbtide.pipeline.reading import read_plan
    from ebbtide.pipeline.trials import named, try_plan, try_policy
    from ebbtide.planners.base import page_size_of
    from ebbtide.units import format_bytes

    check_writable({"timeline": save_timeline}, [trace, machine, plan])
    if plan is not None and policy is not None:
        raise SettingError("--plan and --policy: name one of them")
    chosen = named(policy or "ebbtide")
    if len(chosen) != 1:
        raise SettingError("--policy takes one name here; `ebbtide compare` takes several")
    step, its_machine, budget = read_inputs(trace, machine, changes, fast)
    if plan is not None:
        made = read_plan(plan, step)
        if fast is None:
            budget = made.budget_bytes
        if made.status is not PlanStatus.OVER_BUDGET:
            require_valid(
                made, step, its_machine.with_budget(max(budget, made.budget_bytes)), page_size_of(its_machine)
            )
        try:
            row = try_plan(made, step, its_machine, budget, record=True)
        except ValueError as error:
            needed = format_bytes(peak(needed_bytes(step, page_size_of(its_machine))))
            raise SettingError(
                f"--fast: {error}: it is {format_bytes(budget)}, one operation alone needs up to {needed}, and the "
                f"plan was made for {format_bytes(made.budget_bytes)}"
            ) from error
    else:
        with working(1) as begin, begin.leaving_nothing():
            begin(chosen[0])
            row = try_policy(chosen[0], step, its_machine, budget, record=True)
    if row.outcome is None:
        assert row.failure is not None
        raise row.failure if isinstance(row.failure, EbbtideError) else SettingError(row.why_not)
    if as_json:
        print_json(as_figures(row, step, its_machine))
    else:
        fast_tier = its_machine.tiers[0].name
        simulated = f"simulated{whose_times(its_machine, machine, step)}"
        title = f"{its_machine.name}: {format_bytes(budget)} of {fast_tier}; {simulated}"
        show_trials(title, [row], step.step_ns, fast_tier)
        show_remaking([row], step)
        if row.planned is not None and row.planned.budget_bytes != budget:
            show(f"the plan was made for {format_bytes(row.planned.budget_bytes)}, and has {format_bytes(budget)} here")
    if save_timeline is not None:
        with written("timeline", save_timeline):
            save(row.outcome.timeline(row.policy), save_timeline)
