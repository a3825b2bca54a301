"""Folders hold what their names say, a file's name finds it, and none changes where Python looks for modules."""

import re
from collections import Counter
from pathlib import Path

import pytest

import ebbtide
from tests.helpers.paths import ROOT

PACKAGES = {path.parent.name for path in Path(ebbtide.__file__).parent.glob("*/__init__.py")}
OTHERS = {"bench", "data", "device", "helpers", "numa", "repository", "scripts", "training", "versions"}
SOURCES = [path for folder in ("tests", "bench", "demo") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_folders_of_tests_are_packages_of_ebbtide_or_in_this_list() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if (path / "__init__.py").exists()}
    assert folders <= PACKAGES | OTHERS


def test_tests_beside_the_folders_are_of_modules_beside_the_packages() -> None:
    for path in (ROOT / "tests").glob("test_*.py"):
        assert (Path(ebbtide.__file__).parent / path.name.removeprefix("test_")).exists(), path


def test_a_tests_file_name_says_which_one_it_is() -> None:
    """Pages cite tests by their files' names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_only_their_own_tests_import_bench_and_the_demo() -> None:
    """These lie in ``tests/bench``; what others need of it is in ``tests/helpers``, where both find it."""
    for path in (ROOT / "tests").rglob("*.py"):
        if path.parent.name != "bench":
            assert not re.search(r"^\s*(from|import) (bench|demo)\b", path.read_text(), re.MULTILINE), path


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_edits_where_modules_are_looked_for(path: Path) -> None:
    assert not re.search(r"sys\.path\.(insert|append|extend)|sys\.path\s*(\+?=)[^=]", path.read_text())
