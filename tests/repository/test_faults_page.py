"""docs/faults.md quotes what a user sees. The sources say it in these words."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUFFIXES = (".py", ".cpp", ".hpp")
LEAST_WORDS = 4


def test_what_the_page_quotes_is_what_the_sources_say() -> None:
    paths = [path for folder in ("src", "native") for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    said = re.sub(r'"\s*f?"', "", "\n".join(path.read_text() for path in paths))  # literals go on in the next line
    quotes = [quote for line in rows() for quote in re.findall(r"`([^`]+)`", line) if " " in quote]
    sentences = [part.removeprefix("ebbtide: fatal: ") for quote in quotes for part in quote.split(" ...")]
    sentences = [sentence for sentence in sentences if len(sentence.split()) >= LEAST_WORDS]
    assert len(sentences) >= 5
    assert [sentence for sentence in sentences if sentence not in said] == []


def rows() -> list[str]:
    return [line for line in (ROOT / "docs/faults.md").read_text().splitlines() if line.startswith("|")]
