"""Run ``ebbtide`` and plain Python as a user would, in child processes, and watch their memory from outside."""

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers import forked
from tests.helpers.paths import SCRIPTS

EBBTIDE = forked.EBBTIDE
TRAIN_MLP = str(SCRIPTS / "train_mlp.py")
HUNG_AFTER_S = 600
POLL_S = 0.005


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, with no ``EBBTIDE_...`` variables but ``extra`` and that training waits for plans."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EBBTIDE_")}
    return kept | {"EBBTIDE_WAIT_FOR_PLAN": "1"} | dict(extra or {})


def run(
    *command: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    status: int | None = None,
    fresh: bool = False,
    library: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run to the end; both streams are captured as text, and shown if the exit status is not the one that is expected.

    ``ebbtide``, scripts and ``-m`` are forked from a Python that has imported PyTorch (``fork_server``), and so is what
    they start, unless the process itself matters (``fresh``): a budget in bytes is for all that it holds, and some
    variables are read when it starts. Of whole GiB the server takes little: a third of one. A ``library`` is one
    that this Python has preloaded.
    """
    words = None if fresh else forked.words_of(command)
    if words is None or _SMALL_BUDGET.search(" ".join(words)) or not all(map(_is_read_late, env or {})):
        done = subprocess.run(
            command, env=environment(env), cwd=cwd, capture_output=True, text=True, timeout=HUNG_AFTER_S, check=False
        )
    else:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            ended = forked.run(command, environment(env), cwd or Path.cwd(), out, err, HUNG_AFTER_S, library)
            out.seek(0), err.seek(0)
            done = subprocess.CompletedProcess(command, ended, out.read(), err.read())
    assert status is None or done.returncode == status, done.stdout + done.stderr
    return done


_SMALL_BUDGET = re.compile(r"--fast(-node)?[= ](?!\d+(%|GiB)|auto)")


def _is_read_late(variable: str) -> bool:
    ours = variable.startswith("EBBTIDE_") and not variable.startswith("EBBTIDE_FAST")
    return ours or variable in ("FAULTY_DISK", "OMP_NUM_THREADS", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class Watched:
    """A finished command. ``peak_bytes`` is the largest VmHWM that any of its processes was seen with."""

    exit_code: int
    output: str
    peak_bytes: int


def _high_water_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 if "VmHWM:" in status else 0


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def watch(command: Sequence[str], env: Mapping[str, str] | None = None) -> Watched:
    """Run to the end, reading the high-water mark of the process and its children from /proc all the while.

    The mark only grows, so what lies between two readings is not lost; only what comes after the last one is.
    """
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=environment(env), stdout=output, stderr=subprocess.STDOUT)
        peak_bytes = 0
        while True:
            peak_bytes = max(peak_bytes, *(_high_water_bytes(pid) for pid in (process.pid, *_children(process.pid))))
            try:
                exit_code = process.wait(POLL_S)
                break
            except subprocess.TimeoutExpired:
                continue
        output.seek(0)
        return Watched(exit_code, output.read(), peak_bytes)
