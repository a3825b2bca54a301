"""``ebbtide plan``: a plan for a recorded step, for this machine or another."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebbtide.commands.completion import policies
from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import Inputs, fast_option, json_option, machine_options, read_inputs, trace_argument
from ebbtide.session.driven import check_writable, written

if TYPE_CHECKING:
    from ebbtide.ir.plan import Plan


@click.command(
    epilog=examples(
        "ebbtide plan step.trace --fast 25% -o step.plan",
        "ebbtide plan step.trace --machine dram-cxl --fast 50% --json",
    ),
)
@trace_argument
@machine_options
@fast_option
@click.option(
    "--policy", metavar="NAME", shell_complete=policies, default="ebbtide", show_default=True, help="The planner."
)
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write the plan.")
@json_option
def plan(
    trace: Path,
    machine: Path | None,
    changes: tuple[str, ...],
    fast: str | None,
    policy: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Plan a recorded step, for this machine or another.

    Shows the plan's predicted time, a time that no plan can beat, and the gap. To follow the plan in a run, record the
    step with `ebbtide run --save-trace`, and give the plan to `ebbtide run --plan`.
    """
    from ebbtide.commands.tables import whose_times
    from ebbtide.commands.trial_json import print_json
    from ebbtide.commands.working import working
    from ebbtide.ir.files import save
    from ebbtide.planners import plan as make
    from ebbtide.terminal import folded_for_terminal

    check_writable({"plan": output}, [trace, machine])
    inputs = read_inputs(trace, machine, changes, fast)
    with working(1) as begin:
        begin(f"planning {len(inputs.trace.storages)} storages")
        with begin.leaving_nothing():
            made = make(policy, inputs.trace, inputs.machine, inputs.budget_bytes)
        if output is not None:
            with written("plan", output):
                save(made, output)
    if as_json:
        print_json(figures_of(made, inputs))
        return
    said = describe(made, inputs, whose_times(inputs.machine, machine, inputs.trace))
    click.echo(folded_for_terminal(said, sys.stdout, hanging=13))
    click.echo(f"{'saved':<12} {'no: -o FILE saves it' if output is None else output}")


def figures_of(made: "Plan", inputs: Inputs) -> dict[str, Any]:
    """Return the same figures for programs. The plan itself is the file that -o writes."""
    from ebbtide.ir.remakes import made_anew

    made_anew_bytes, made_anew_ns = made_anew(made, inputs.trace)
    return {
        "planner": made.planner,
        "machine": inputs.machine.name,
        "status": str(made.status),
        "operations": len(inputs.trace.ticks),
        "storages": len(inputs.trace.storages),
        "budget_bytes": made.budget_bytes,
        "resident_ns": inputs.trace.step_ns,
        "predicted_ns": made.predicted_ns,
        "lower_bound_ns": made.lower_bound_ns,
        "gap": made.gap,
        "made_anew_bytes": made_anew_bytes,
        "made_anew_ns": made_anew_ns,
        "planned_in_ns": made.plan_ns,
    }


def describe(made: "Plan", inputs: Inputs, times: str = "") -> str:
    """Return the plan's figures, a line each. ``times`` says whose times the operations have."""
    from ebbtide.analysis.explain_plan import remaking_text
    from ebbtide.units import format_bytes, format_time, seconds

    resident_ns = inputs.trace.step_ns
    predicted, bound = (format_time(seconds(ns)) for ns in (made.predicted_ns, made.lower_bound_ns))
    share = 100 * resident_ns / max(made.predicted_ns, 1)
    rows = {
        "step": f"{len(inputs.trace.ticks)} operations, {len(inputs.trace.storages)} storages",
        "budget": f"{format_bytes(made.budget_bytes)} of {inputs.machine.tiers[0].name}",
        "predicted": f"{predicted}, {share:.1f} % of the speed with everything resident{times}",
        "lower bound": f"{bound}: no plan is faster",
        "gap": f"{100 * made.gap:.2f} % ({made.status})",
        "made anew": remaking_text(made, inputs.trace),
        "planned in": f"{format_time(seconds(made.plan_ns))} by {made.planner}",
    }
    return "\n".join(f"{name:<12} {text}" for name, text in rows.items() if text)
