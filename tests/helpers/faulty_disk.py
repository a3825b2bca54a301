"""Compiles ``faulty_disk.cpp``, and names what a process's environment must hold for its disk to fail as it is told."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.helpers.command import EBBTIDE, TRAIN_MLP, run

SCRIPT = (TRAIN_MLP, "--width=768", "--depth=6", "--steps=5")
FAST = ("run", "--policy=demand", "--fast=35%")
SOURCE = Path(__file__).with_suffix(".cpp")


def build(folder: Path) -> Path:
    """The library, compiled into ``folder`` unless it is there."""
    return compiled(SOURCE, folder)


def compiled(source: Path, folder: Path) -> Path:
    """A library of one source, to be preloaded."""
    library = folder / f"{source.stem}.so"
    if not library.exists():
        compiler = os.environ.get("CXX", "g++").split()
        options = ("-std=c++20", "-O2", "-shared", "-fPIC", "-o", str(library))
        subprocess.run([*compiler, str(source), *options], check=True)
    return library


def environment(library: Path, *rules: str) -> dict[str, str]:
    """For rules "call:after:count:fault", as the source explains them."""
    return {"LD_PRELOAD": str(library), "FAULTY_DISK": " ".join(rules), "EBBTIDE_CHECKSUM": "1"}


def trains_on(
    result: Path, *options: str, env: Mapping[str, str] | None = None, status: int | None = None
) -> subprocess.CompletedProcess[str]:
    """The script in a session in demand mode; what it ends with is written to ``result``."""
    late = dict(env or {})
    library = late.pop("LD_PRELOAD", "")
    return run(EBBTIDE, *FAST, *options, *SCRIPT, f"--result={result}", env=late, status=status, library=library)


def slow_environment(library: Path, bytes_per_s: int) -> dict[str, str]:
    """For a disk that reads so many bytes a second, and writes as many, whatever the other does."""
    rate = f"0:-1:rate{bytes_per_s // 1_000_000}"
    return {"LD_PRELOAD": str(library), "FAULTY_DISK": f"preadv:{rate} pwritev:{rate}"}
