"""A report as one HTML page that needs nothing else: styles, scripts and data stand in it, and it asks no network.

Charts are plotly.js, which the package plotly brings along. It and the data are compressed in the page.
"""

import html
from functools import cache
from importlib.resources import files

from ebbtide.errors import ReportError
from ebbtide.report.packing import pack, pack_bytes
from ebbtide.report.page_data import page_data
from ebbtide.report.subject import Subject

_SCRIPTS = (
    *("data", "words", "tables", "charts"),  # what the others use
    *("memory", "selection", "painting", "storages", "intervals", "timelines", "main"),
)


def render_page(subject: Subject) -> str:
    """The page's whole text. Raises ReportError if plotly is not installed."""
    data = page_data(subject)
    parts = {
        "TITLE": html.escape(data["title"]),
        "STYLE": _part("page.css"),
        "SCRIPT": '"use strict";\n' + "\n".join(_part(f"{name}.js") for name in _SCRIPTS),
        "LIBRARY": _library(),
        "DATA": pack(data),
    }
    page = _part("page.html")
    pieces = page.split("<!--")  # a text put in is never searched for further places
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split("-->", 1)
        filled.append(parts[name] + rest)
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
