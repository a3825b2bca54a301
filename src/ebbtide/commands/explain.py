"""``ebbtide explain``: explains in words why a storage is where it is."""

import sys
from pathlib import Path

import click

from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import route_options

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    epilog=examples(
        "ebbtide explain step.trace --module '*.attn'",
        "ebbtide explain step.trace --plan step.plan --storage 12",
    ),
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_FILE)
@click.option("--storage", metavar="NUMBER", type=int, help="Explain one storage.")
@click.option(
    "--module",
    metavar="NAME",
    help="Explain the storages of modules and of all within them. * is any text, and a part of a name is enough.",
)
@click.option("--at-peak", is_flag=True, help="Explain the step's peak. This is the default.")
@click.option("--plan", metavar="FILE", type=_FILE, help="The plan for this step (`ebbtide run --save-plan`).")
@click.option("--timeline", metavar="FILE", type=_FILE, help="The timeline of a step, measured or simulated.")
@route_options("The machine to move on (`ebbtide probe -o FILE`).")
def explain(
    files: tuple[Path, ...],
    storage: int | None,
    module: str | None,
    at_peak: bool,
    plan: Path | None,
    timeline: Path | None,
    machine: Path | None,
    slow_tier: str | None,
    bandwidth: str | None,
) -> None:
    """Explain why a storage is where it is, and what would change that.

    The FILEs are a trace, and, in any order, its plan and a step's timeline, as for `ebbtide report`.
    """
    if (storage is not None) + (module is not None) + at_peak > 1:
        raise click.UsageError("name one of --storage NUMBER, --module NAME and --at-peak")

    from ebbtide.analysis.explain import Explainer
    from ebbtide.commands.routes import machine_named, step_for, way_of
    from ebbtide.commands.tables import whose_times
    from ebbtide.ir.files import load
    from ebbtide.ir.records import printable
    from ebbtide.ir.timeline import Timeline
    from ebbtide.pipeline.reading import read_plan, read_trace
    from ebbtide.simulator import is_modelled
    from ebbtide.terminal import folded_for_terminal

    trace, plan, timeline = _sorted(files, plan, timeline)
    step, own = read_trace(trace)
    route, name, _ = way_of(machine, bandwidth, slow_tier, own)
    there = machine_named(machine, own)
    step = step_for(step, there)
    explainer = Explainer(
        step,
        route,
        name,
        read_plan(plan, step) if plan is not None else None,
        load(timeline, Timeline) if timeline is not None else None,
    )
    if storage is not None:
        lines = explainer.storage(storage)
    else:
        lines = explainer.module(module) if module is not None else explainer.at_peak()
    if there is not None and is_modelled(there):
        lines.append(f"all times are those of {there.name}{whose_times(there, machine, step)}")
    click.echo(folded_for_terminal("\n".join(map(printable, lines)), sys.stdout, hanging=4))


def _sorted(files: tuple[Path, ...], plan: Path | None, timeline: Path | None) -> tuple[Path, Path | None, Path | None]:
    """Tell a trace, a plan and a timeline apart by what the files claim to hold. Raises UsageError."""
    from ebbtide.ir.files import kind_of
    from ebbtide.ir.plan import Plan
    from ebbtide.ir.timeline import Timeline

    named: dict[str, list[Path]] = {"trace": [], "plan": [], "timeline": []}
    for path in files:
        kind = kind_of(path) if path.exists() else None
        named["plan" if kind is Plan else "timeline" if kind is Timeline else "trace"].append(path)
    for what, option in (("plan", plan), ("timeline", timeline)):
        named[what] += [] if option is None else [option]
    for what, found in named.items():
        if len(found) > 1:
            raise click.UsageError(f"one {what} is explained at a time, and {len(found)} were named")
    (plans, timelines), trace = (named["plan"], named["timeline"]), (named["trace"] or [files[0]])[0]  # to be refused
    return trace, plans[0] if plans else None, timelines[0] if timelines else None
