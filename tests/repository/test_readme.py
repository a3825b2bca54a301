"""The Python code of the README and of the docs runs as it stands, each block as a script of its own."""

import re
import sys
from pathlib import Path

import pytest

from tests.helpers.command import run
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.starts

README = ROOT / "README.md"
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in (README, *sorted((ROOT / "docs").glob("*.md")))
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
]


def test_the_readme_has_python_code() -> None:
    assert "```python\n" in README.read_text()


@pytest.mark.parametrize("block", BLOCKS)
def test_python_in_a_page_runs(block: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(block)
    run(sys.executable, str(script), cwd=tmp_path, status=0)
