"""``ebbtide explain``: explains in words why a storage is where it is."""

import sys
from pathlib import Path

import click

from ebbtide.commands.completion import machines
from ebbtide.commands.examples import examples

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    epilog=examples(
        "ebbtide explain step.trace --module '*.attn'",
        "ebbtide explain step.trace --plan step.plan --storage 12",
    ),
)
@click.argument("trace", metavar="FILE", type=_FILE)
@click.option("--storage", metavar="NUMBER", type=int, help="Explain one storage.")
@click.option("--module", metavar="NAME", help="Explain the storages of modules and of all within them; * is any text.")
@click.option("--at-peak", is_flag=True, help="Explain the step's peak. This is the default.")
@click.option("--plan", metavar="FILE", type=_FILE, help="The plan for this step (`ebbtide run --save-plan`).")
@click.option("--timeline", metavar="FILE", type=_FILE, help="The timeline of a step, measured or simulated.")
@click.option(
    "--machine",
    metavar="NAME|FILE",
    shell_complete=machines,
    type=_FILE,
    help="The machine to move on (`ebbtide probe -o FILE`).",
)
@click.option("--slow-tier", metavar="NAME", help="The machine's slow tier to move to. Default: the first.")
@click.option("--bandwidth", metavar="SIZE[,SIZE]", help="Bytes a second out, and back, in place of a machine.")
def explain(
    trace: Path,
    storage: int | None,
    module: str | None,
    at_peak: bool,
    plan: Path | None,
    timeline: Path | None,
    machine: Path | None,
    slow_tier: str | None,
    bandwidth: str | None,
) -> None:
    """Explain why a storage is where it is, and what would change that."""
    if (storage is not None) + (module is not None) + at_peak > 1:
        raise click.UsageError("name one of --storage NUMBER, --module NAME and --at-peak")

    from ebbtide.analysis.explain import Explainer
    from ebbtide.analysis.texts import printable
    from ebbtide.commands.routes import machine_named, step_for, way_of
    from ebbtide.commands.tables import whose_times
    from ebbtide.pipeline.reading import read_plan, read_timeline, read_trace
    from ebbtide.report.summary import folded_for_terminal
    from ebbtide.simulator import is_modelled

    step, own = read_trace(trace)
    route, name, _ = way_of(machine, bandwidth, slow_tier, own)
    there = machine_named(machine, own)
    step = step_for(step, there)
    explainer = Explainer(
        step,
        route,
        name,
        read_plan(plan, step) if plan is not None else None,
        read_timeline(timeline) if timeline is not None else None,
    )
    if storage is not None:
        lines = explainer.storage(storage)
    else:
        lines = explainer.module(module) if module is not None else explainer.at_peak()
    if there is not None and is_modelled(there):
        lines.append(f"all times are those of {there.name}{whose_times(there, machine, step)}")
    click.echo(folded_for_terminal("\n".join(map(printable, lines)), sys.stdout, hanging=4))
