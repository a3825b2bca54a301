"""``ebbtide`` in this process, or in one of its own: what a command says, or the error that it ends with."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from click.testing import CliRunner, Result

from ebbtide.cli import cli

DISABLED = {"EBBTIDE_DISABLE": "1"}


def call(*words: object) -> Result:
    return CliRunner().invoke(cli, list(map(str, words)))


def said(*words: object) -> str:
    """Standard output of a command that ends well."""
    result = call(*words)
    assert result.exception is None, (result.exception, result.output)
    return result.stdout


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("EBBTIDE_")}
    command = [sys.executable, "-m", "ebbtide", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=inherited | environment, check=False)


def script(folder: Path, text: str, name: str = "train.py") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return str(path)
