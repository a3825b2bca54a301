"""`make versions`: for each torch an environment of its own, `pip install .`, and a quick suite over what is installed.

Each minor version's newest release is fetched from where pip is configured to look; builds for CUDA run on a CPU, too,
and take several gigabytes, so an environment is removed when it has been tried. A row is printed for each, as
``bench/results`` has them.

Exit status 0: all were built, and all tests passed. What was compiled stays in build/.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ebbtide.host.torch_versions import TRIED
from tests.helpers.paths import ROOT

TOOLS = ("pytest>=8", "hypothesis>=6", "expecttest>=0.3")
# Recording, planning and replay, bits beside plain PyTorch in every family of nets, and the command as users call it.
SUITE = (
    "tests/host",
    "tests/capture",
    "tests/runtime",
    "tests/recorders",
    "tests/simulator/test_native_simulator.py",
    "tests/training/test_recording.py",
    "tests/training/test_command.py",
    "tests/training/test_same_bits.py::test_a_case_gives_the_same_bits_as_planned_and_its_steps_follow_the_plan",
)
ASK = "import json, sys, torch; print(json.dumps([torch.__version__, '%d.%d.%d' % sys.version_info[:3]]))"
WHICH = "import sys; print('%d.%d' % sys.version_info[:2])"
HEADINGS = ("torch", "Python", "builds", "tests")


@dataclass(frozen=True, slots=True)
class Tried:
    """One version: what was installed, and how far it came. ``tests`` is pytest's last line without its time."""

    torch: str
    python: str
    builds: bool
    tests: str

    @property
    def passed(self) -> bool:
        return self.builds and bool(re.search(r"\d+ passed", self.tests)) and not re.search("failed|error", self.tests)

    def row(self) -> str:
        return _row(self.torch, self.python, "yes" if self.builds else "no", self.tests)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def attempt(minor: str, python: str, folder: Path) -> Tried:
    """Makes the environment and leaves it there. The logs lie beside it."""
    here = folder / "bin" / "python"
    pip = (str(here), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir")
    logs = folder.with_name(f"{folder.name}.log")
    _said((python, "-m", "venv", "--clear", str(folder)), logs, "w")
    # torch first and alone, as in the Makefile.
    status, _ = _said((*pip, f"torch=={minor}.*", "setuptools>=77"), logs)
    if status:
        return Tried(minor, python, False, "torch cannot be installed")
    torch, version = json.loads(subprocess.check_output((str(here), "-c", ASK), text=True))
    status, _ = _said((*pip, ".[demo]", *TOOLS), logs)
    if status:
        return Tried(torch, version, False, "none")
    _, said = _said((str(here), "-m", "pytest", "-q", "-rP", "-p", "no:cacheprovider", *SUITE), logs)
    return Tried(torch, version, True, outcome(said))


def outcome(said: str) -> str:
    """Of pytest's last line, without its time: ``12 passed, 1 skipped``."""
    lines = re.findall(r"^=*\s*(\d+ (?:passed|failed|skipped|error).*?) in [\d.]+s", said, re.MULTILINE)
    return lines[-1] if lines else "none ran"


def _said(command: tuple[str, ...], logs: Path, mode: str = "a") -> tuple[int, str]:
    finished = subprocess.run(
        command,
        cwd=ROOT,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with logs.open(mode) as log:
        log.write(f"$ {' '.join(command)}\n{finished.stdout}\n")
    return finished.returncode, finished.stdout


def pairs(minors: list[str], pythons: list[str]) -> Iterator[tuple[str, str]]:
    """Every torch with the first Python; the newest torch with each other."""
    yield from ((minor, pythons[0]) for minor in minors)
    yield from ((minors[-1], python) for python in pythons[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="2.15", help=f"by default {' '.join(TRIED)}")
    parser.add_argument("--python", action="append", help="an interpreter; of several, all but the first try one torch")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions", help="for environments and logs")
    parser.add_argument("--keep", action="store_true", help="leave the environments there")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    found = []
    print(f"{_row(*HEADINGS)}\n{_row(*['---'] * len(HEADINGS))}", flush=True)
    for minor, python in pairs(args.versions or list(TRIED), args.python or [sys.executable]):
        version = subprocess.check_output((python, "-c", WHICH), text=True).strip()
        folder = args.folder.absolute() / f"torch{minor}-python{version}"
        try:
            found.append(attempt(minor, python, folder))
        finally:
            if not args.keep:
                shutil.rmtree(folder, ignore_errors=True)
        print(found[-1].row(), flush=True)
    return 0 if all(tried.passed for tried in found) else 1


if __name__ == "__main__":
    sys.exit(main())
