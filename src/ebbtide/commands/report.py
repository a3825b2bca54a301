"""``ebbtide report``: a run's report as text, and a step as a page."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import route_options
from ebbtide.commands.run_reports import print_runs, text_of, with_ranks
from ebbtide.session.driven import check_writable, written

if TYPE_CHECKING:
    from ebbtide.ir.machine import Machine
    from ebbtide.ir.plan import Plan
    from ebbtide.ir.run_report import RunReport
    from ebbtide.ir.timeline import Timeline
    from ebbtide.ir.trace import Trace
    from ebbtide.report.answers import TriedBudget
    from ebbtide.report.subject import Subject

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    epilog=examples("ebbtide report run.json", "ebbtide report step.trace step.plan run.json -o report.html"),
)
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=_FILE)
@click.option("--plan", metavar="FILE", type=_FILE, help="The step's plan, as if it were one of the FILEs.")
@click.option("--timeline", metavar="FILE", type=_FILE, help="A step's timeline, in the same way.")
@click.option("-o", "--output", metavar="PAGE", type=_FILE, help="Write one HTML page that needs no network.")
@click.option("--perfetto", metavar="JSON", type=_FILE, help="Write a trace that ui.perfetto.dev opens.")
@route_options(
    "Show what would move in time on this machine, and how a plan would run there. Default: this one, probed."
)
@click.option("--json", "as_json", is_flag=True, help="Print the reports of runs as one list.")
def report(
    paths: tuple[Path, ...],
    plan: Path | None,
    timeline: Path | None,
    output: Path | None,
    perfetto: Path | None,
    machine: Path | None,
    slow_tier: str | None,
    bandwidth: str | None,
    as_json: bool,
) -> None:
    """Show a run as text; a run, a step or a plan as a page.

    `ebbtide report run.json` prints the report that `ebbtide run --report run.json` wrote. Several reports stand side
    by side. For the ranks of a job, give the one name that all of them were given.

    With -o, the FILEs are a trace (`ebbtide run --save-trace`), its plan (--save-plan), its timelines and the run's
    report, in any order. The page shows the step's memory, its storages, what is worth moving, and the plan against
    what happened.
    """
    from ebbtide.report.page import render_page
    from ebbtide.report.perfetto import render_perfetto
    from ebbtide.whole_file import write_whole

    paths = with_ranks((*paths, *(path for path in (plan, timeline) if path is not None)))
    if output is None and perfetto is None:
        print_runs(paths, as_json)
        return
    if as_json:
        raise click.UsageError("--json prints reports of runs; leave it out where a page is written.")
    wanted = (("page", output, render_page), ("Perfetto trace", perfetto, render_perfetto))
    check_writable({what: path for what, path, _ in wanted}, [*paths, machine])
    subject = _subject(paths, machine, slow_tier, bandwidth, output is not None)
    for what, path, render in wanted:
        if path is not None:
            text = render(subject).encode()
            with written(what, path):
                write_whole(path, text)
            click.echo(f"wrote {path} ({len(text) / 1e6:.1f} MB)")


def _subject(
    paths: tuple[Path, ...], machine: Path | None, slow_tier: str | None, bandwidth: str | None, with_budgets: bool
) -> "Subject":
    from ebbtide.commands.budgets import try_budgets
    from ebbtide.commands.routes import machine_for, step_for, way_of
    from ebbtide.commands.tables import whose_times
    from ebbtide.errors import ReportError
    from ebbtide.ir.base import Origin
    from ebbtide.ir.files import kind_of, load
    from ebbtide.ir.plan import Plan
    from ebbtide.ir.timeline import Timeline
    from ebbtide.ir.trace import Trace
    from ebbtide.pipeline.reading import read_plan, read_trace
    from ebbtide.report.subject import Subject

    traces, plans, timelines, runs = [], [], [], []
    file = ""
    for path in paths:
        kind = kind_of(path)
        run = _run_of(path) if kind is None else None
        if run is not None:
            runs.append(run)
        elif kind is Plan:
            plans.append(path)
        elif kind is Timeline:
            timelines.append(load(path, Timeline))
        else:
            assert kind in (None, Trace)
            traces.append(read_trace(path))
            file = path.name  # no folders: people share pages
    for what, found in (("trace", traces), ("plan", plans), ("report of a run", runs)):
        if len(found) > 1:
            raise ReportError(f"a page is about one step: {len(found)} files hold a {what}, so write a page for each")
    trace, own = traces[0] if traces else (None, None)
    if plans and trace is None:
        raise ReportError("a plan is shown on its trace: name the trace's file too")
    plan = read_plan(plans[0], trace) if plans and trace is not None else None
    wanted = trace is not None and bandwidth is None
    device = trace.device if trace is not None else None
    there = machine_for(machine, own, device) if wanted or machine is not None else own
    way = way_of(machine, bandwidth, slow_tier, there)
    trace = step_for(trace, there) if trace is not None else None
    times = whose_times(there, machine, trace) if there is not None and trace is not None else ""
    has_forecast = any(timeline.origin is Origin.SIMULATED for timeline in timelines)
    if trace is not None and plan is not None and there is not None and not has_forecast:
        timelines = [*_forecast(trace, plan, there), *timelines]
    budgets: tuple[TriedBudget, ...] = ()
    if with_budgets and trace is not None and there is not None:
        budgets = try_budgets(trace, there)
    return Subject(trace, plan, tuple(timelines), runs[0] if runs else None, *way, budgets, times, file)


def _run_of(path: Path) -> "RunReport | None":
    """Read a run's report. Returns None for a file that does not say that it is one."""
    import json

    from ebbtide.ir.run_report import FORMAT, RunReport

    try:
        value = json.loads(text := text_of(path))
    except (ValueError, RecursionError):
        return None
    is_run = isinstance(value, dict) and value.get("format") == FORMAT
    return RunReport.from_json(text) if is_run else None


def _forecast(trace: "Trace", plan: "Plan", machine: "Machine") -> list["Timeline"]:
    """Simulate the plan. Where that is impossible, a warning says why, and there is no timeline."""
    from ebbtide.errors import EbbtideError
    from ebbtide.ir.check import require_valid
    from ebbtide.planners.base import page_size_of
    from ebbtide.simulator import simulate_plan

    kept, page_bytes = machine.with_budget(plan.budget_bytes), page_size_of(machine)
    try:
        require_valid(plan, trace, kept, page_bytes)
        outcome = simulate_plan(plan, trace, kept, page_bytes, record=True)
    except (EbbtideError, ValueError, KeyError) as error:  # a tier, a link or a budget that this machine lacks
        click.echo(f"ebbtide: warning: the plan is not simulated on {machine.name}: {error}", err=True)
        return []
    return [outcome.timeline(plan.planner)]
