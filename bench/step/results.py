"""The file of results: every run of every cell, and which tuned run each is paired with. Written whole after each run.

It is gzip of JSON lines. The first has the format, the machine and the failures, and each other line has one run.

A record is what ``children.run_child`` returns with ``cell``, ``pair`` (0, 1, ...), ``steps_run``, ``baseline`` (the
number of the tuned run beside it; None for tuned runs and where that failed), ``began`` (UTC) and ``bandwidth``
(bytes a second, probed at the start of the round: ``read``, ``write``, ``both``).
"""

import gzip
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "ebbtide-bench"
VERSION = 2


@dataclass(slots=True)
class Results:
    """``runs`` in the order they were made; ``failures``: a cell's name and why it has no (more) pairs."""

    path: Path
    machine: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def open(path: Path, machine: dict[str, Any], beside: Sequence[str] = ("tuned",)) -> "Results":
        """Those in the file, or none. Raises ValueError for a file of another kind, or where beside a run stands none
        of its network and of these ways."""
        if not path.exists():
            return Results(path, machine)
        return Results.read(path, beside)

    @staticmethod
    def read(path: Path, beside: Sequence[str] = ("tuned",)) -> "Results":
        try:
            head, *runs = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
        except (gzip.BadGzipFile, EOFError, zlib.error, ValueError):
            head, runs = None, []
        if not isinstance(head, dict) or (head.get("format"), head.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"{path} holds no results of this benchmark (format {FORMAT!r}, version {VERSION})")
        for run in runs:
            number = run["baseline"]
            if number is not None and runs[number]["cell"] not in [f"{_net(run)}/{way}" for way in beside]:
                raise ValueError(f"{path} pairs a run of {run['cell']} with one of {runs[number]['cell']}")
        return Results(path, head["machine"], runs, head["failures"])

    def write(self) -> None:
        head = {"format": FORMAT, "version": VERSION, "machine": self.machine, "failures": self.failures}
        lines = "".join(json.dumps(line) + "\n" for line in (head, *self.runs))
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_bytes(gzip.compress(lines.encode(), mtime=0))
        os.replace(partial, self.path)

    def of(self, name: str) -> list[dict[str, Any]]:
        return [run for run in self.runs if run["cell"] == name]

    def pairs(self, name: str) -> int:
        """How many runs of the cell have a tuned run beside them."""
        return sum(run["baseline"] is not None for run in self.of(name))

    def add(self, record: dict[str, Any]) -> int:
        """Keeps it on disk, and returns its number."""
        self.runs.append(record)
        self.write()
        return len(self.runs) - 1

    def fail(self, name: str, why: str) -> None:
        self.failures[name] = why
        self.write()


def _net(run: dict[str, Any]) -> str:
    net: str = run["cell"].partition("/")[0]
    return net
