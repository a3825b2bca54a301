"""A report as one HTML page that needs nothing else: styles, scripts and data stand in it, and it asks no network.

Charts are plotly.js, which the package plotly brings along. It and the data are compressed in the page.
"""

import html
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from ebbtide.errors import ReportError
from ebbtide.report.packing import pack, pack_bytes
from ebbtide.report.page_data import page_data
from ebbtide.report.subject import Subject

SHARED = ("data", "words", "tables", "charts", "shell")
"""The scripts that every page uses."""

_SCRIPTS = (*SHARED, "memory", "selection", "painting", "storages", "intervals", "timelines", "main")


def render_page(subject: Subject) -> str:
    """The page's whole text. Raises ReportError if plotly is not installed."""
    return fill_page("report.html", _SCRIPTS, page_data(subject))


def fill_page(sections: str, scripts: Sequence[str], data: dict[str, Any]) -> str:
    """The page of these sections, a file of the folder ``page``, with its scripts and data; ``data`` has a title.

    Raises ReportError if plotly is not installed.
    """
    parts = {
        "TITLE": html.escape(data["title"]),
        "STYLE": _part("page.css"),
        "SECTIONS": _part(sections),
        "SCRIPT": '"use strict";\n' + "\n".join(_part(f"{script}.js") for script in scripts),
        "LIBRARY": _library(),
        "DATA": pack(data),
    }
    pieces = _part("page.html").split("<!--")  # a text put in is never searched for further places
    filled = [pieces[0]]
    for piece in pieces[1:]:
        place, rest = piece.split("-->", 1)
        filled.append(parts[place] + rest)
    return "".join(filled)


def _part(name: str) -> str:
    return (files("ebbtide.report") / "page" / name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportError(f"a page needs plotly, which cannot be imported ({error}): pip install plotly") from error
    return pack_bytes(get_plotlyjs().encode())
