"""The pages are short, and so are their sentences: one thought each.

A sentence ends at a full stop, a question mark or an exclamation mark. An item of a list and a cell of a table end one,
too. Code in backticks counts as one word, and so does a row of such names with commas between them. A cell is bound by
the longest sentence alone: many are no sentences, and would lower the median. Left out: code blocks, and headings.

Run as a script it prints each page's words and its longest sentences.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.helpers.paths import ROOT

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PAGES = [*DOCS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"]
MOST_WORDS = 18_000  # of README and docs/ together, as `wc -w` counts them
MEDIAN_WORDS = 18
LONGEST_SENTENCE = 40
CODE_BLOCK = re.compile(r"^```.*?^```|^    \S.*?$|<!--.*?-->", re.DOTALL | re.MULTILINE)
NEW_BLOCK = re.compile(r"\s*([-*]|\d+\.)\s")
NAMES = re.compile(r"`[^`]+`(?:'s)?(?:,? (?:and |or )?`[^`]+`)*")
END = re.compile(r"(?<=[.?!])[\"')*\]]*\s+(?=[\"'(*\[]*[A-Z0-9])")


def blocks(text: str) -> Iterator[tuple[str, bool]]:
    """Each paragraph, item and cell, and whether it is a cell."""
    paragraph: list[str] = []
    for line in [*CODE_BLOCK.sub("\n", text).splitlines(), ""]:
        is_row, is_heading = line.startswith("|"), line.startswith("#")
        if (not line.strip() or is_row or is_heading or NEW_BLOCK.match(line)) and paragraph:
            yield " ".join(paragraph), False
            paragraph = []
        if is_row:
            yield from ((cell, True) for cell in re.split(r"(?<!\\)\|", line.strip("| ")))
        elif line.strip() and not is_heading:
            paragraph.append(NEW_BLOCK.sub("", line, count=1) if NEW_BLOCK.match(line) else line.strip())


def sentences(text: str) -> Iterator[tuple[str, bool]]:
    for block, is_cell in blocks(text):
        said = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
        said = re.sub(r"\*+", "", NAMES.sub("CODE", said))
        yield from ((sentence, is_cell) for sentence in END.split(said) if n_words(sentence))


def n_words(sentence: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    found = list(sentences(page.read_text()))
    assert [sentence for sentence, _ in found if n_words(sentence) > LONGEST_SENTENCE] == []
    assert median(n_words(sentence) for sentence, is_cell in found if not is_cell) <= MEDIAN_WORDS


def test_all_pages_together_are_short() -> None:
    assert sum(len(page.read_text().split()) for page in DOCS) <= MOST_WORDS


def test_what_counts_as_a_sentence() -> None:
    text = "# A heading\n\nOne `a b`, `c` and `d` is 5 words. Two is\ntwo [more words](there.md).\n"
    text += "\n- An item\n- And one\n"
    text += "\n```\ncode is none\n```\n\n| A cell. | Two. Three |\n|---|---|\n"
    assert [(n_words(sentence), is_cell) for sentence, is_cell in sentences(text)] == [
        *((5, False), (5, False), (2, False), (2, False)),
        *((2, True), (1, True), (1, True)),
    ]


if __name__ == "__main__":
    for page in PAGES:
        found = sorted(((n_words(sentence), sentence) for sentence, _ in sentences(page.read_text())), reverse=True)
        middle = median(n_words(sentence) for sentence, is_cell in sentences(page.read_text()) if not is_cell)
        print(f"{page.relative_to(ROOT)}: {len(page.read_text().split())} words, sentences of {middle:g} in the median")
        for length, sentence in found:
            if length > LONGEST_SENTENCE:
                print(f"    {length}: {sentence}")
