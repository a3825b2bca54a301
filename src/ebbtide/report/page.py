"""Writes a report as one HTML page. Styles, scripts and data stand in it, and it asks no network.

A section of a page is a script in ``page/report``, which adds itself. The scripts that sections import are in
``page/shared``. Charts are plotly.js, which the package plotly contains. Plotly.js and the data are compressed in the
page. Its licence asks to go along with it, so the foot of the page shows its copyright and licence.
"""

import html
import re
from functools import cache
from importlib.resources import files

from ebbtide.errors import ReportError
from ebbtide.report.bundle import bundle
from ebbtide.report.packing import pack, pack_bytes
from ebbtide.report.page_data import page_data
from ebbtide.report.subject import Subject

_FOLDER = files("ebbtide.report") / "page"


def render_page(subject: Subject) -> str:
    """Return the page's whole text. Raises ReportError if plotly is not installed."""
    data = page_data(subject)
    sections = sorted(f"report/{part.name}" for part in (_FOLDER / "report").iterdir() if part.name.endswith(".js"))
    parts = {
        "TITLE": html.escape(data["title"]),
        "STYLE": _part("page.css"),
        "SCRIPT": bundle(sections, _part),
        "LICENCE": html.escape(f"{_copyright()}\n\n{_part('plotly-license.txt')}"),
        "LIBRARY": _packed_library(),
        "DATA": pack(data),
    }
    pieces = _part("page.html").split("<!--")  # inserted text is never searched for further places
    filled = [pieces[0]]
    for piece in pieces[1:]:
        place, rest = piece.split("-->", 1)
        filled.append(parts[place] + rest)
    return "".join(filled)


def _part(path: str) -> str:
    return _FOLDER.joinpath(path).read_text(encoding="utf-8")


@cache
def _library() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportError(f"a page needs plotly, which cannot be imported ({error}): pip install plotly") from error
    library: str = get_plotlyjs()
    return library


@cache
def _packed_library() -> str:
    return pack_bytes(_library().encode())


def _copyright() -> str:
    """Return the copyright notice in the comment that begins plotly.js."""
    comment = re.match(r"\s*/\*(.*?)\*/", _library(), re.DOTALL)
    lines = comment[1].splitlines() if comment else []
    return "\n".join(line.strip(" *") for line in lines).strip()
