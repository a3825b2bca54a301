"""``ebbtide top``: the sessions that run on this machine, as their reports on disk show them."""

import sys
from dataclasses import replace
from time import sleep
from typing import TYPE_CHECKING

import click

from ebbtide.commands.examples import examples

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ebbtide.ir.run_report import RunReport, Traffic

_EVERY_S = 1.0
_KILLED = 3  # so many of those that were killed are shown


@click.command(epilog=examples("ebbtide top", "ebbtide top --once"))
@click.option("--once", is_flag=True, help="Show them once and end, as without a terminal.")
def top(once: bool) -> None:
    """Show your running sessions, until Ctrl-C.

    Each session writes its report every two seconds. A session that was killed stays for a day, with the file that it
    left: `ebbtide report FILE` shows that, too. Sessions of other users and of containers are not shown.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if once or not sys.stdout.isatty():
        console.print(_shown(console.width))
        return
    try:
        with Live(_shown(console.width), console=console, screen=True, auto_refresh=False) as live:
            while True:
                sleep(_EVERY_S)
                live.update(_shown(console.width), refresh=True)
    except KeyboardInterrupt:
        return


def _shown(columns: int) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from ebbtide.session.kept_report import goes_on, session_folder, sessions

    try:
        found = sessions(session_folder())
    except OSError:
        found = []
    if not found:
        return Text("No session runs here.")
    run = [each for each in found if each[1].moment is not None and goes_on(each[1].moment)]
    killed = [each for each in found if each not in run]
    shown = [*reversed(run), *killed[: -_KILLED - 1 : -1]]  # the youngest first
    parts = [part for path, report in shown for part in _session(str(path), report, columns)]
    if len(killed) > _KILLED:
        parts.append(
            Text(
                f"{len(killed)} sessions were killed, and the last {_KILLED} are shown. Their files are in "
                f"{found[0][0].parent}: remove them, or a session that begins a day later does",
                "red",
            )
        )
    return Group(*parts)


def _session(path: str, report: "RunReport", columns: int) -> "list[RenderableType]":
    """Return a session's lines: who it is, a bar of what is bounded, and its summary's."""
    from rich.table import Table
    from rich.text import Text

    from ebbtide.report.ranks import verdict
    from ebbtide.report.summary import render_summary
    from ebbtide.session.kept_report import goes_on
    from ebbtide.terminal import folded
    from ebbtide.units import format_bytes

    moment = report.moment
    assert moment is not None
    if not goes_on(moment):
        return [Text(f"{moment.pid}  {moment.command}", "bold"), Text(f"  was killed; it left {path}\n", "red")]
    bar = Table.grid(padding=(0, 1))
    of = f" of {format_bytes(moment.budget_bytes)}" if moment.budget_bytes else ", no budget yet"
    if moment.budget_bytes:
        from rich.progress_bar import ProgressBar

        share = ProgressBar(total=moment.budget_bytes, completed=moment.held_bytes, width=30)
        bar.add_row(f"  {moment.what:<18}", share, f"{format_bytes(moment.held_bytes)}{of}")
    else:
        bar.add_row(f"  {moment.what:<18}", f"{format_bytes(moment.held_bytes)}{of}")
    if moment.in_memory is not None and moment.in_memory.total:
        bar.add_row("  of them", Text(in_memory(moment.in_memory)))
    figures = "\n".join(render_summary(replace(report, moment=None, trouble="")).splitlines()[1:])
    title = Text(f"{moment.pid}  {moment.command}", "bold")
    return [title, Text(f"  {progress(report)}; {verdict(report)}"), bar, Text(f"{folded(figures, columns)}\n")]


def in_memory(kinds: "Traffic") -> str:
    """Return what live tensors have in memory, by kind."""
    from ebbtide.ir.run_report import KINDS
    from ebbtide.units import format_bytes

    held = zip(KINDS, kinds.by_kind(), strict=True)
    return ", ".join(f"{kind.replace('_', ' ')} {format_bytes(nbytes)}" for kind, nbytes in held if nbytes)


def progress(report: "RunReport") -> str:
    """Return the step, the time of one, and what is left where the script has told."""
    from ebbtide.report.typical_steps import median_step_s, median_turn_s
    from ebbtide.units import format_time

    moment, steps, typical_s = report.moment, report.step_count(), median_step_s(report)
    assert moment is not None
    parts = [f"step {steps}"]
    if moment.total_steps is not None:
        parts = [f"step {steps} of {moment.total_steps}"]
        if (turn_s := median_turn_s(report)) is not None and moment.total_steps >= steps:
            parts.append(f"{format_time((moment.total_steps - steps) * turn_s)} left")
    if typical_s is not None:
        parts.insert(1, f"{format_time(typical_s)} each")
        if moment.running_s > 2 * typical_s:
            parts.append(f"the next {format_time(moment.running_s)} so far")
    return ", ".join([*parts, *([moment.doing] if moment.doing else [])])
