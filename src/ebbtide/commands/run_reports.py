"""Shows reports of runs as text: one by itself, several side by side, or those of a job's ranks by their common
name."""

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ebbtide.errors import ReportError
    from ebbtide.ir.run_report import RunReport


_MOST_NAME = 18  # characters


def with_ranks(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Replace a missing ``out.json`` by ``out.0.json``, ``out.1.json``, ... Raises UsageError where there are none."""
    return tuple(found for path in paths for found in ([path] if path.exists() else _of_ranks(path)))


def print_runs(paths: tuple[Path, ...], as_json: bool) -> None:
    """Print reports. Raises UsageError for another file of Ebbtide's, and ReportError."""
    from ebbtide.ir.files import kind_of
    from ebbtide.report.ranks import column, render_ranks
    from ebbtide.report.summary import render_summary
    from ebbtide.terminal import folded_for_terminal, terminal_columns

    kinds = {path: kind.__name__.lower() for path in paths if (kind := kind_of(path)) is not None}
    for path, what in kinds.items():
        also = "name its step's trace, too, and " if what == "plan" and "trace" not in kinds.values() else ""
        raise click.UsageError(f"{path} holds a {what}: {also}say with -o report.html where the page of it goes.")
    runs = [read_run(path) for path in paths]
    if as_json:
        click.echo(json.dumps([asdict(run) for run in runs], indent=2, allow_nan=False))
        return
    if len(runs) == 1:
        text = render_summary(runs[0])
    else:
        columns = dict(zip(_names(paths), map(column, runs), strict=True))
        text = render_ranks(columns, terminal_columns(sys.stdout))
    click.echo(folded_for_terminal(text, sys.stdout))


def read_run(path: Path) -> "RunReport":
    """Read a report. Raises ReportError."""
    from ebbtide.errors import ReportError
    from ebbtide.ir.run_report import RunReport

    text = text_of(path)
    if not text.lstrip().startswith("{"):
        raise _neither(path)
    try:
        return RunReport.from_json(text)
    except ReportError as error:
        raise ReportError(f"{path}: {error}") from error


def text_of(path: Path) -> str:
    """Read a text. Raises ReportError for a file that is none."""
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise _neither(path) from error


def _neither(path: Path) -> "ReportError":
    from ebbtide.errors import ReportError

    return ReportError(f"{path} is neither a report nor a trace, plan or timeline of Ebbtide's")


def _of_ranks(path: Path) -> list[Path]:
    numbered = {_rank(found): found for found in path.parent.glob(f"{path.stem}.*{path.suffix}")}
    ranks = sorted(rank for rank, found in numbered.items() if found.stem == f"{path.stem}.{rank}" and rank is not None)
    found = [numbered[rank] for rank in ranks]
    if not found:
        raise click.UsageError(f"{path} does not exist, and no {path.stem}.0{path.suffix} of a rank.")
    return found


def _rank(path: Path) -> int | None:
    """Return 7 for ``out.7.json``."""
    match = re.fullmatch(r".+\.(\d+)", path.stem)
    return int(match[1]) if match else None


def _names(paths: tuple[Path, ...]) -> list[str]:
    """Return ranks if all are numbered files of one name, and otherwise the files' names. No name comes twice."""
    bases = {(path.parent, path.stem.rpartition(".")[0], path.suffix) for path in paths}
    if len(bases) == 1 and all(_rank(path) is not None for path in paths):
        names = [f"rank {_rank(path)}" for path in paths]
    else:
        names = [path.stem for path in paths]
        if len(set(names)) < len(names):
            names = [f"{path.parent.name}/{path.stem}" for path in paths]
        names = [name if len(name) <= _MOST_NAME else f"...{name[3 - _MOST_NAME :]}" for name in names]
    if len(set(names)) < len(names):
        names = [f"{number}: {name}" for number, name in enumerate(names, 1)]
    return names
