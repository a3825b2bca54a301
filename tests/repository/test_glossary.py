"""The glossary against the code: what a word stands for is there, and words that were given up are not.

Comments and texts may use any word; identifiers may not. Left out: whether a word is used in its one meaning.
"""

import io
import keyword
import re
import tokenize

import pytest

from tests.helpers.paths import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
ROW = re.compile(
    r"^\| ([^|]+) \| ([^|]+) \| \[[^]]+\]\(([^)]+)\)([^|]*)\|$", re.MULTILINE
)  # word, meaning, path, names
ROWS = [match.groups() for match in ROW.finditer(GLOSSARY.read_text())]

NATIVE = {  # identifiers of native/core and native/torch that were given up, and what stands in their place
    "held_": "reserved_",
    "StallCapacity": "StallRoom",
    "held_by_operator": "pinned",
    "held_byte_ns": "reserved_byte_ns",
    "held_peak": "reserved_peak",
    "warm_": "cached_",
    "warm_bytes": "cached_bytes",
    "release_warm": "cached",
    "leave": "exit, evict",
    "Leave": "Drop",
    "leaving": "evicting",
    "leaving_": "evicting_",
    "may_leave": "evictable",
    "close_anyway": "DropInUse",
    "guests": "external_pins",
    "hold": "pin",
    "let_go": "unpin",
    "owe": "refetch_pending",
    "owed": "refetch_pending",
    "owed_": "refetch_pending",
    "visitor": "transient",
    "Visitors": "transient",
    "rest_": "unmanaged_bytes",
    "measure_rest": "unmanaged_bytes",
    "remeasure_rest": "remeasure_unmanaged",
    "every_tick": "on_governor_wake",
    "lend": "collective_pins",
}
PLANNERS = {  # the same, of src/ebbtide/planners
    "absences": "idle",
    "Absences": "IdleTable",
    "absences_of": "idle_table",
    "Room": "Headroom",
    "room": "paged_bytes, headroom",
}
FILES = {"native/core/plan.cpp": "native/core/step.cpp", "native/torch/lent.cpp": "native/torch/collective_pins.cpp"}

NOT_YET: set[str] = set()
"""Words that are given up and still there."""


def native_identifiers() -> set[str]:
    found: set[str] = set()
    for folder in ("core", "torch"):
        for path in (ROOT / "native" / folder).glob("*.[ch]pp"):
            code = re.sub(r'//.*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', " ", path.read_text())
            found |= set(re.findall(r"[A-Za-z_]\w*", code))
    return found


def planner_identifiers() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "src" / "ebbtide" / "planners").rglob("*.py"):
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        found |= {token.string for token in tokens if token.type == tokenize.NAME}
    return {name for name in found if not keyword.iskeyword(name)}


def test_the_glossary_is_read() -> None:
    assert len(ROWS) > 50
    assert len(ROWS) == len(re.findall(r"^\| (?!word \|)", GLOSSARY.read_text(), re.MULTILINE))
    words = [word for row in ROWS for word in row[0].split(", ")]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(("word", "means", "path", "names"), ROWS, ids=[row[0] for row in ROWS])
def test_what_a_word_stands_for_is_there(word: str, means: str, path: str, names: str) -> None:
    file = (GLOSSARY.parent / path).resolve()
    assert file.is_file(), f"{word}: {path}"
    text = file.read_text()
    for name in re.findall(r"`([^`]+)`", names):
        assert re.search(rf"\b{re.escape(name)}\b", text), f"{word}: {path} has no {name}"


def test_words_that_were_given_up_are_gone() -> None:
    found = native_identifiers() & set(NATIVE) | planner_identifiers() & set(PLANNERS)
    found |= {name for name in FILES if (ROOT / name).exists()}
    replaced = NATIVE | PLANNERS | FILES
    assert {name: replaced[name] for name in found - NOT_YET} == {}, "use these words in their place"
    assert NOT_YET - found == set(), "these have gone: take them off NOT_YET"
