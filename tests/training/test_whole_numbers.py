"""Whole numbers under a system that takes its time (``whole_numbers.py`` says how): what differs is a lost byte."""

import json
import sys
from pathlib import Path

import pytest

from tests.helpers import command, unkind_system
from tests.helpers.paths import ROOT
from tests.training import whole_numbers

SHORT = 100
"""Operations: seconds where nothing else runs."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unkind_system.build(tmp_path_factory.mktemp("unkind_system"))


def seed_of(threads: int) -> int:
    """The first that has so many threads."""
    return next(seed for seed in range(100) if whole_numbers.settings(seed)[0] == threads)


@pytest.mark.alike
@pytest.mark.parametrize(
    ("threads", "operations"),
    [*((threads, SHORT) for threads in (4, 3, 2, 1)), pytest.param(4, 20 * SHORT, marks=pytest.mark.nightly)],
)
def test_no_byte_is_lost_or_stale_where_system_calls_are_slow_and_short(
    threads: int, operations: int, library: Path
) -> None:
    """All that the arena asks of the system goes through the library, which moves the bytes that the arena counts."""
    seed = seed_of(threads)
    asked = ("-m", "tests.training.whole_numbers", f"--seed={seed}", f"--operations={operations}")
    run = command.run(sys.executable, *asked, env=unkind_system.environment(library, seed), cwd=ROOT)
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["different"] == []
    assert (found["operations"], found["forks"], found["trainings"]) == (operations, operations // 100, 2)
    assert found["mappings"] > 0
    assert [name for name, count in found["system"].items() if count == 0] == []
    assert found["system"]["written_bytes"] >= found["evicted_bytes"] // 4  # what is clean is evicted without a write
    assert found["system"]["read_bytes"] >= found["fetched_bytes"] > 0
