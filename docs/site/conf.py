"""`make site`: the pages as a site, by Sphinx, with a search box that needs no network and no server.

It shows what is there: links, anchors and the order of pages are as on GitHub. What Sphinx lacks is below.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

project = html_title = "Ebbtide"
extensions = ["myst_parser"]
html_theme = "furo"
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = html_show_copyright = html_show_search_summary = html_use_index = False
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # mermaid: its text is shown
root_doc = "README"
include_patterns = ["*.md", "bench/**.md", "docs/**.md", "examples/**.md"]

LINK = re.compile(r"\[([^]]+)\]\(([^)#]+)\)")
PAGES = {
    "README": "docs/guide docs/integrations docs/faults docs/* examples/README bench/README bench/LOG CONTRIBUTING *",
    "bench/README": "results/*",
}


def setup(app: Sphinx) -> None:
    app.connect("source-read", read)
    app.connect("html-collect-pages", find_headings_by_each_word)


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Ends a page with its list of pages. A folder has no page, so links lead to the README beside it, or nowhere."""
    here = Path(app.srcdir, page).parent

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        if not (here / target).is_dir():
            return found[0]
        return f"[{text}]({target}/../README.md)" if (here / target / "../README.md").is_file() else text

    toctree = "\n".join(("", "```{toctree}", ":hidden:", ":glob:", "", *PAGES.get(page, "").split(), "```", ""))
    source[0] = LINK.sub(link, source[0]) + toctree * (page in PAGES)


def find_headings_by_each_word(app: Sphinx) -> list[tuple[str, dict[str, object], str]]:
    """Sphinx finds a heading by half of it at least."""
    for titles in app.builder.indexer._all_titles.values():
        titles += [
            (word, anchor) for title, anchor in titles for word in re.findall(r"[\w.-]+", title) if word != title
        ]
    return []
