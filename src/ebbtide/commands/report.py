"""``ebbtide report``: what a run wrote of itself."""

from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def report(file: Path) -> None:
    """Show a report that `ebbtide run --report FILE` wrote."""
    from ebbtide.report.run_report import RunReport
    from ebbtide.report.summary import render_summary

    click.echo(render_summary(RunReport.from_json(file.read_text())))
