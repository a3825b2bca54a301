"""Findings as text a person reads, and as JSON."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from ebbtide.doctor.finding import Finding, Level

FORMAT = "ebbtide-doctor"
VERSION = 1
_LABEL = 26
_WIDTH = 110


def render(findings: Sequence[Finding]) -> str:
    """Several lines, without a newline at the end."""
    return "\n".join(_lines(findings))


def to_json(findings: Sequence[Finding]) -> str:
    body = {"format": FORMAT, "version": VERSION, "runs": runs(findings)}
    return json.dumps(body | {"findings": [asdict(finding) for finding in findings]}, indent=2)


def runs(findings: Sequence[Finding]) -> bool:
    """Whether nothing keeps Ebbtide from running here."""
    return all(finding.level is not Level.PROBLEM for finding in findings)


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        label = f"{finding.level:<8} {finding.name}"
        yield from _wrapped(f"{label:<{_LABEL}}", finding.found)
        yield from _wrapped(" " * _LABEL, f"({finding.means})")
        if finding.level is not Level.OK:
            yield from _wrapped(" " * _LABEL, f"-> {finding.cure}")
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    yield ""
    if counts[Level.PROBLEM]:
        yield f"Ebbtide cannot run here. Problems: {counts[Level.PROBLEM]}, hints: {counts[Level.HINT]}."
    else:
        yield f"Ebbtide can run here. Hints: {counts[Level.HINT]}."


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )
