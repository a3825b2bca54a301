"""Every console block of the README and the docs runs as written, and so does every command in the guide's tables.

Every option that a page names is one.

Each block runs in a folder of its own that has what the page takes for granted: a training script, a recorded step, its
plan and a machine. What cannot run here is skipped with its reason. Left out: what a command prints.
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from ebbtide.cli import cli
from tests.helpers.command import EBBTIDE, run
from tests.helpers.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = ROOT / "docs" / "example"
SHELL = re.compile(r"[|&;<>$*~`]")
"""What the shell itself reads; other commands of ours are forked."""
SKIPPED = {  # the beginning of a command: why it does not run here
    "source .venv": "the tests run in that environment",
    "pip install .": "compiles for minutes; `make install` has done it",
    "make demo": "installs packages and trains for minutes",
    "make test": "runs this test, too",
}
GUIDE = re.findall(r"^\| [^|]+ \| `(ebbtide [^`]+)`", (ROOT / "docs" / "guide.md").read_text(), re.M)
NOT_HERE = {  # of the guide's: why
    "ebbtide run --fast 8GiB train.py ARGS...": "stands for a script's own arguments",
    "ebbtide run --fast 8GiB -m package.module": "stands for a module",
    "ebbtide probe -o machine.toml": "stands in a console block, too",
}
LONG = {"guide.md-0", "simulator.md-0", "design.md-0"} | {  # seconds each, for commands that have tests of their own
    "ebbtide compare step.trace --noise 25",
    "ebbtide compare step.trace --fast 25%,50%",
    "ebbtide sweep step.trace --machine dram-optane --fast 1:8,1:1",
}


def cases(named: list[tuple[str, str]]) -> list[ParameterSet]:
    """By name, with what is run."""
    return [pytest.param(run, id=name, marks=[pytest.mark.nightly] * (name in LONG)) for name, run in named]


def blocks() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, block in enumerate(re.findall(r"^```(?:console|bash)\n(.*?)^```", page.read_text(), re.S | re.M)):
            found.append((f"{page.name}-{number}", block))
    return found


BLOCKS = blocks()


def commands(block: str) -> list[str]:
    assert all(line.startswith("$ ") for line in block.splitlines()), "a line of a console block begins with `$ `"
    return [re.sub(r"\s+#.*", "", line[2:]) for line in block.splitlines()]


@pytest.fixture(scope="module")
def granted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.py, step.trace, step.plan, machine.toml and mine.toml."""
    folder = tmp_path_factory.mktemp("granted")
    (folder / "docs").symlink_to(ROOT / "docs")
    (folder / "train.py").write_text((EXAMPLE / "train.py").read_text().replace("range(4)", "range(8)"))
    shutil.copy(EXAMPLE / "machine.toml", folder)
    shutil.copy(EXAMPLE / "machine.toml", folder / "mine.toml")
    for command in (
        "trace -o step.trace train.py",
        "plan step.trace --machine mine.toml --fast 50% -o step.plan",
    ):
        run(EBBTIDE, *command.split(), cwd=folder, status=0)
    return folder


@pytest.mark.starts
@pytest.mark.parametrize("block", cases(BLOCKS))
def test_a_console_block_runs_as_written(block: str, granted: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    shutil.copytree(granted, here, symlinks=True)
    path = f"{Path(EBBTIDE).parent}{os.pathsep}{os.environ['PATH']}"
    left_out = []
    for command in commands(block):
        reason = next((SKIPPED[start] for start in SKIPPED if command.startswith(start)), None)
        if reason is not None:
            left_out.append(f"{command}: {reason}")
            continue
        program, *words = shlex.split(command)
        if program == "ebbtide" and not SHELL.search(command):
            run(EBBTIDE, *words, cwd=here, status=0)
        else:
            run("bash", "-c", command, env={"PATH": path}, cwd=here, status=0)
    if left_out:
        pytest.skip("; ".join(left_out))


@pytest.mark.starts
@pytest.mark.parametrize("command", cases([(command, command) for command in GUIDE if command not in NOT_HERE]))
def test_a_command_of_the_guide_runs(command: str, granted: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    shutil.copytree(granted, here, symlinks=True)
    run(EBBTIDE, *command.split()[1:], cwd=here, status=0)


def test_each_reason_to_skip_is_used() -> None:
    assert set(NOT_HERE) <= set(GUIDE)
    assert {*GUIDE, *(name for name, _ in BLOCKS)} >= LONG
    lines = [command for _, block in BLOCKS for command in commands(block)]
    assert {start for start in SKIPPED if any(line.startswith(start) for line in lines)} == set(SKIPPED)


def test_every_option_that_a_page_names_is_one() -> None:
    """Of commands in running text and tables, too: `ebbtide run --fast 8GiB train.py`."""
    wrong = []
    for page in PAGES:
        for named in re.findall(r"`ebbtide ([a-z]+)( [^`]*)?`", page.read_text()):
            command = cli.commands.get(named[0])
            if command is None:
                wrong.append(f"{page.name}: ebbtide {named[0]}")
                continue
            known = {name for parameter in command.params for name in (*parameter.opts, "--help")}
            before_script = (
                re.split(r"\S+\.py\b| -m ", named[1])[0] if named[0] in ("run", "trace", "verify") else named[1]
            )
            wrong += [
                f"{page.name}: ebbtide {named[0]} {option}"
                for option in re.findall(r"(?<= )--[a-z-]+", before_script)
                if option not in known
            ]
    assert wrong == []
