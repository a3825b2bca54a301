"""Pages in a browser. When a test ends, nothing may have gone wrong in those that it opened."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.make_page import PATIENCE_MS


@pytest.fixture(scope="session")
def tab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Where one test after another opens its page, from the same file: so the page's scripts are compiled once."""
    return browser.new_page(), tmp_path_factory.mktemp("tab") / "page.html"


@pytest.fixture
def open_page(tab: tuple[Any, Path]) -> Iterator[Callable[..., Any]]:
    """Opens a page's text, at a place of it if one is given, and waits until it is drawn. It may ask no network."""
    page, file = tab
    problems: list[str] = []
    asked = (file.as_uri(), "data:,")
    listeners: dict[str, Callable[[Any], None]] = {
        "console": lambda message: problems.append(message.text) if message.type in ("error", "trace") else None,
        "pageerror": lambda error: problems.append(str(error)),
        "request": lambda request: None if request.url in asked else problems.append(request.url),
    }

    def leaves() -> None:
        """The text before is left whole, although only the place may differ. The pointer points at nothing."""
        page.goto("about:blank")
        page.mouse.move(0, 0)

    def opens(text: str, at: str = "", width: int = 1400, color_scheme: str = "light") -> Any:
        leaves()
        file.write_text(text)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=color_scheme)
        page.goto(file.as_uri() + at)
        page.wait_for_selector("html[data-ready]", timeout=PATIENCE_MS)
        return page

    leaves()
    for event, listener in listeners.items():
        page.on(event, listener)
    yield opens
    leaves()
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    assert problems == []
