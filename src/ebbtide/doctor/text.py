"""Shows findings as text for people, and as JSON."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from ebbtide.doctor.finding import Finding, Level

FORMAT = "ebbtide-doctor"
VERSION = 1
_LABEL = 26
_WIDEST = 110
"""Longer lines are hard to read, however wide the terminal."""


def render(findings: Sequence[Finding], columns: int, verbose: bool = False) -> str:
    """Return several lines, without a newline at the end. Text without blanks, such as a path, is not broken.

    Hints and problems come with their meaning; with ``verbose``, all findings do.
    """
    return "\n".join(_lines(findings, max(min(columns, _WIDEST), 2 * _LABEL), verbose))


def to_json(findings: Sequence[Finding]) -> str:
    body = {"format": FORMAT, "version": VERSION, "runs": runs(findings)}
    return json.dumps(body | {"findings": [asdict(finding) for finding in findings]}, indent=2)


def runs(findings: Sequence[Finding]) -> bool:
    """Say whether Ebbtide can run here."""
    return all(finding.level is not Level.PROBLEM for finding in findings)


def _lines(findings: Sequence[Finding], width: int, verbose: bool) -> Iterator[str]:
    for finding in findings:
        label = f"{finding.level:<8} {finding.name}"
        yield from _wrapped(f"{label:<{_LABEL}}", finding.found, width)
        if verbose or finding.level is not Level.OK:
            yield from _wrapped(" " * _LABEL, f"({finding.means})", width)
        if finding.level is not Level.OK:
            yield from _wrapped(" " * _LABEL, f"-> {finding.cure}", width)
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    yield ""
    if counts[Level.PROBLEM]:
        yield f"Ebbtide cannot run here. Problems: {counts[Level.PROBLEM]}, hints: {counts[Level.HINT]}."
    else:
        yield f"Ebbtide can run here. Hints: {counts[Level.HINT]}."


def _wrapped(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=label,
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )
