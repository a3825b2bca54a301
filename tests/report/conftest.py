"""Pages in a browser. When a test ends, nothing may have gone wrong in those that it opened."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.make_page import PATIENCE_MS


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a file or a page's text, at another address if one is given, and waits until it is drawn. It may ask no
    network."""
    problems: list[str] = []
    opened = []

    def opens(what: Path | str, width: int = 1400, address: str = "", **options: Any) -> Any:
        file = what if isinstance(what, Path) else tmp_path / "page.html"
        if isinstance(what, str):
            file.write_text(what)
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        opened.append(page)
        asked = (file.as_uri(), "data:,")
        page.on(
            "console", lambda message: problems.append(message.text) if message.type in ("error", "trace") else None
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url in asked else problems.append(request.url))
        page.goto(address or file.as_uri())
        page.wait_for_selector("html[data-ready]", timeout=PATIENCE_MS)
        return page

    yield opens
    for page in opened:
        page.close()
    assert problems == []
