"""A browser to show pages in."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium here to show the page in: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright: pip install playwright")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found)
        yield opened
        opened.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser is a process."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.starts)
