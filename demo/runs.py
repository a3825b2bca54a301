"""One training run in a child process: which door it goes through, and what came of it."""

import json
import os
import re
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tests.helpers.memory_cgroup import MemoryCgroup

SCRIPT = Path(__file__).with_name("train_gpt.py")
_STEP = re.compile(r"step (\d+)  loss ")  # what the script prints at a step's end, counted from 0
_LAST_WORDS = 15  # lines
KINDS = ("parameter", "gradient", "optimizer_state", "activation", "other")

# Values in bytes: glibc reads no suffixes. Blocks under 1 GiB come from the heap, which keeps 16 GiB of freed memory,
# grows by 64 MiB and asks for huge pages; so a step faults in no fresh pages, which is much of an arena's gain.
TUNABLES = {
    "glibc.malloc.mmap_threshold": 2**30,
    "glibc.malloc.trim_threshold": 16 * 2**30,
    "glibc.malloc.top_pad": 64 * 2**20,
    "glibc.malloc.hugetlb": 1,
}


def gigabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:.2f} GB"


class Door(Enum):
    STOCK = "plain"
    TUNED = "plain, tuned glibc"
    EBBTIDE = "ebbtide"


class RunFailed(Exception):
    """A run that should have trained did not; the text holds its last words."""


@dataclass(frozen=True, slots=True)
class Run:
    """``fast`` and ``policy`` are what ``ebbtide run`` is given; ``cgroup`` holds the child where one is given."""

    name: str
    door: Door
    arguments: str
    fast: str = ""
    policy: str = "ebbtide"
    cgroup: MemoryCgroup | None = None
    script: Path = SCRIPT

    def describe(self) -> str:
        """The run as a person would type it."""
        tunables = "GLIBC_TUNABLES=... " if self.door is Door.TUNED else ""
        policy = f" --policy {self.policy}" if self.policy != "ebbtide" else ""
        door = f"ebbtide run --fast {self.fast}{policy}" if self.door is Door.EBBTIDE else "python"
        limit = f"   (memory cgroup of {gigabytes(self.cgroup.limit_bytes)})" if self.cgroup else ""
        return f"{tunables}{door} {self.script.name} {self.arguments}{limit}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``result`` is what the script wrote, ``report`` what ``ebbtide run`` wrote; both None if the child was killed."""

    run: Run
    killed: bool
    result: dict[str, Any] | None = None
    report: dict[str, Any] | None = None

    @property
    def step_s(self) -> float:
        """Median seconds of a steady step, so without the warm-up, the recorded one and the first that is planned."""
        assert self.result is not None
        return statistics.median(self.result["seconds"][3:])

    @property
    def peak_bytes(self) -> int:
        """Where the process peaked; in Ebbtide's runs since the budget was in force."""
        assert self.result is not None
        return int(self.result["peak_bytes"] if self.report is None else self.report["process_peak_bytes"])

    @property
    def peaked_before(self) -> bool:
        """Whether the process peaked higher before: a percentage is in force from the third step on."""
        assert self.result is not None
        return bool(self.result["peak_bytes"] > self.peak_bytes)

    @property
    def bounded_steps(self) -> list[dict[str, Any]]:
        """The report's steps that ran under the budget, so without recorded ones; warm-up left out as in step_s."""
        assert self.report is not None
        return [step for step in self.report["steps"][3:] if step["mode"] != "recorded"]

    def moved_bytes(self, direction: str, kind: str = "total") -> float:
        """Mean bytes a bounded step; ``direction`` is evicted_bytes, fetched_bytes or written_bytes."""
        return statistics.mean(step[direction][kind] for step in self.bounded_steps)

    @property
    def stall_s(self) -> float:
        return statistics.mean(sum(step["stall_s"].values()) for step in self.bounded_steps)

    def same_bits(self, reference: "Outcome") -> bool:
        """Losses, weights and optimizer state equal to the reference's, to the last bit."""
        keys = ("losses", "weights_sha256", "optimizer_sha256")
        return all(self.result and reference.result and self.result[key] == reference.result[key] for key in keys)


def _command(run: Run, result: Path, report: Path) -> list[str]:
    script = [str(run.script), *run.arguments.split(), "--result", str(result)]
    if run.door is Door.EBBTIDE:
        ebbtide = str(Path(sys.executable).with_name("ebbtide"))
        command = [ebbtide, "run", "--fast", run.fast, "--policy", run.policy, "--report", str(report), *script]
    else:
        command = [sys.executable, *script]
    return run.cgroup.wrap(command) if run.cgroup else command


def execute(run: Run, folder: Path, ended: Callable[[int], None]) -> Outcome:
    """Run the child to its end; ``ended`` is told after each step how many have ended.

    Killed for memory in its cgroup is an outcome; any other failure raises RunFailed.
    """
    result, report = folder / "result.json", folder / "report.json"
    for path in (result, report):
        path.unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES"}
    environment["EBBTIDE_WAIT_FOR_PLAN"] = "1"  # a demo is short: its steps are to follow the plan
    if run.door is Door.TUNED:
        environment["GLIBC_TUNABLES"] = ":".join(f"{key}={value}" for key, value in TUNABLES.items())
    last_words: deque[str] = deque(maxlen=_LAST_WORDS)
    with subprocess.Popen(
        _command(run, result, report), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                last_words.append(line.rstrip())
                if step := _STEP.match(line):
                    ended(int(step[1]) + 1)
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        if run.cgroup and run.cgroup.oom_kills():
            return Outcome(run, killed=True)
        raise RunFailed("\n".join((f"{run.name} ended with exit code {child.returncode}:", *last_words)))
    return Outcome(
        run,
        killed=False,
        result=json.loads(result.read_text()),
        report=json.loads(report.read_text()) if run.door is Door.EBBTIDE else None,
    )
