"""Pages say how it is: no word that only makes sense beside a commit, no link to a place that is not there."""

import re
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "THIRD_PARTY.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"]
PAGES = [ROOT / "README.md", *OTHERS, *sorted((ROOT / "docs").glob("**/*.md"))]
DATED = [ROOT / "bench" / "README.md", ROOT / "bench" / "LOG.md", *sorted((ROOT / "bench" / "results").glob("*.md"))]
DIARY = re.compile(
    r"until (?:this change|then|now)|used to\b|before that was|no longer|this time|last time|\bnow\b|currently"
    r"|formerly|previously|at the moment\b|since (?:this|that) (?:commit|change)|newly",
    re.I,
)
SALES = re.compile(r"blazing|powerful|seamless|effortless|state.of.the.art|cutting.edge|revolution|world.class", re.I)
MOST_LINES = 200
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, spaces to hyphens, other punctuation left out."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_is_a_diary(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    assert not DIARY.findall(prose)
    assert not SALES.findall(prose)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_short_and_the_readme_has_it(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= MOST_LINES
    if page.parent == ROOT / "docs":
        assert f"](docs/{page.name})" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_that_a_page_names_are_there(page: Path) -> None:
    named = set(re.findall(r"\btest_[a-z]\w*\.py\b", page.read_text()))
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("page", PAGES + DATED, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_paths_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(r"`(?:python )?((?:src|native|docs|bench|tests)/[\w./-]+)", page.read_text())
    assert [path for path in named if not (ROOT / path).exists() and "test_X" not in path] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 700
