"""Shows findings as text for people, and as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from ebbtide.doctor.finding import Finding, Level
from ebbtide.terminal import WIDEST, folded

FORMAT = "ebbtide-doctor"
VERSION = 1
_LABEL = 26


def render(findings: Sequence[Finding], columns: int, verbose: bool = False) -> str:
    """Return several lines, without a newline at the end. Text without blanks, such as a path, is not broken.

    Hints and problems come with their meaning; with ``verbose``, all findings do.
    """
    return folded("\n".join(_lines(findings, verbose)), min(columns, WIDEST), _LABEL)


def to_json(findings: Sequence[Finding]) -> str:
    body = {"format": FORMAT, "version": VERSION, "runs": runs(findings)}
    return json.dumps(body | {"findings": [asdict(finding) for finding in findings]}, indent=2)


def runs(findings: Sequence[Finding]) -> bool:
    """Say whether Ebbtide can run here."""
    return all(finding.level is not Level.PROBLEM for finding in findings)


def _lines(findings: Sequence[Finding], verbose: bool) -> Iterator[str]:
    for finding in findings:
        yield f"{f'{finding.level:<8} {finding.name}':<{_LABEL}}{finding.found}"
        if verbose or finding.level is not Level.OK:
            yield f"{'':<{_LABEL}}({finding.means})"
        if finding.level is not Level.OK:
            yield f"{'':<{_LABEL}}-> {finding.cure}"
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    yield ""
    if counts[Level.PROBLEM]:
        yield f"Ebbtide cannot run here. Problems: {counts[Level.PROBLEM]}, hints: {counts[Level.HINT]}."
    else:
        yield f"Ebbtide can run here. Hints: {counts[Level.HINT]}."
