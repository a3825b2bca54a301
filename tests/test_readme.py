"""The README's Python code runs as it stands, each block as a script of its own."""

import re
import sys
from pathlib import Path

import pytest
from command import run

README = Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    """The README's fenced blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_readme_has_python_code() -> None:
    assert blocks("python")


@pytest.mark.parametrize("number", range(len(blocks("python")) if README.exists() else 0))
def test_python_in_the_readme_runs(number: int, tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text(blocks("python")[number])
    finished = run(sys.executable, str(script), cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
