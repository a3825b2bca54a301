"""`make site`: links lead somewhere, and the search box, without a server, to the headings that people look for.

Skipped where the extra ``site`` is not installed.
"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT

pytestmark = [pytest.mark.starts, pytest.mark.slow]
PATIENCE_MS = 60_000
LINK = re.compile(r'<a [^>]*href="([^"]*)"')
FOUND = {
    "Resume": "docs/guide.html#resume",
    "LoRA": "docs/integrations.html#lora-and-qlora",
    "QLoRA": "docs/integrations.html#lora-and-qlora",
    "Reading the summary": "docs/guide.html#reading-the-summary",
    "Is my disk at risk": "docs/guide.html#is-my-disk-at-risk",
    "notebook": "docs/guide.html#in-a-notebook",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make site` does, whose warnings are errors."""
    for package in ("sphinx", "myst_parser", "furo"):
        if find_spec(package) is None:
            pytest.skip(f"no {package} here: make site installs it")
    folder = tmp_path_factory.mktemp("site")
    (recipe,) = re.findall(r"-m (sphinx .*) build/site$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    command = [sys.executable, "-m", *recipe.split(), str(folder / "site")]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return folder / "site"


def test_every_link_leads_to_a_page_and_a_place_in_it(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    names = {str(page.relative_to(site)) for page in pages}
    assert {"README.html", "docs/guide.html", "examples/README.html", "bench/LOG.html", "CONTRIBUTING.html"} <= names
    texts = {page: page.read_text() for page in pages}
    links = [(page, link) for page in pages for link in LINK.findall(texts[page]) if "://" not in link]
    assert len(links) > 1000
    for page, link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), (page, link)
        assert not anchor or f'id="{anchor}"' in texts[target], (page, link)


def test_pages_ask_no_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//', page.read_text()), page


@pytest.mark.alike
@pytest.mark.parametrize(("words", "place"), FOUND.items())
def test_a_search_leads_to_the_heading(site: Path, browser: Any, words: str, place: str) -> None:
    page = browser.new_page()
    page.goto((site / "README.html").as_uri())
    page.get_by_role("textbox").first.fill(words)
    page.keyboard.press("Enter")
    page.locator("#search-results .search a").first.click(timeout=PATIENCE_MS)
    page.wait_for_url(f"**/{place}*", timeout=PATIENCE_MS)
    page.close()
