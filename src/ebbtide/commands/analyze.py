"""``ebbtide analyze``: the contents of a recorded step's memory."""

from pathlib import Path

import click

from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import route_options, trace_argument

_WIDTH = 110
"""The page's width where there is no terminal to fit."""


@click.command(epilog=examples("ebbtide analyze step.trace", "ebbtide analyze step.trace --machine dram-optane --json"))
@trace_argument
@route_options(
    "Show what moving would gain on this machine, and budgets would cost. Default: this computer, for budgets."
)
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
def analyze(trace: Path, machine: Path | None, slow_tier: str | None, bandwidth: str | None, as_json: bool) -> None:
    """Show what a step holds at its peak, and what could leave.

    The report names idle storages, for how long they are idle, and what moving them would gain.

    TRACE is a file of `ebbtide run --save-trace`, or one in the format tiertrace/1.
    """
    import json

    from ebbtide.analysis.summary import analyze as analyze_trace
    from ebbtide.analysis.summary import to_json
    from ebbtide.analysis.terminal import page
    from ebbtide.commands.budgets import as_figures, try_budgets
    from ebbtide.commands.routes import machine_for, machine_named, step_for, way_of
    from ebbtide.commands.tables import whose_times
    from ebbtide.pipeline.reading import read_trace
    from ebbtide.report.answers import in_short

    recorded, own = read_trace(trace)
    way = way_of(machine, bandwidth, slow_tier, own)
    step = step_for(recorded, machine_named(machine, own))
    analysis = analyze_trace(step, *way)
    there = machine_for(machine, own, step.device) if bandwidth is None else None
    timed = step_for(step, there)
    budgets = try_budgets(timed, there) if there is not None else ()
    if as_json:
        tried = None if there is None else [as_figures(row, there) for row in budgets]
        click.echo(json.dumps(to_json(analysis) | {"budgets": tried}, allow_nan=False))
        return
    from rich.console import Console

    from ebbtide.terminal import piped_columns

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = piped_columns(_WIDTH)
    if there is not None:
        times = whose_times(there, machine, timed)
        console.print(in_short(timed, analysis.peak, budgets, there.name, times), end="\n\n")
    console.print(page(analysis, step))
