"""A script finds its process as a plain run has it. The exceptions are listed here."""

import json
import subprocess
import sys

import pytest

from tests.helpers.command import EBBTIDE, environment
from tests.helpers.paths import SCRIPTS

SIGSEGV = 1 << 10  # in a mask of the kernel's
ORDERS = ["as-written", "in-backward", "deferred"]


def states(*command: str) -> list[dict[str, object]]:
    """In a fresh process, and not one that has imported everything before."""
    words = [*command, str(SCRIPTS / "print_state.py"), "an argument"]
    here = environment({"PYTEST_CURRENT_TEST": ""})  # which differs from test to test
    done = subprocess.run(words, env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("UserWarning: shown once") == 1
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def plainly() -> list[dict[str, object]]:
    return states(sys.executable)


@pytest.mark.alike
@pytest.mark.parametrize("order", ORDERS)
def test_a_script_finds_its_process_as_a_plain_run_has_it(order: str, plainly: list[dict[str, object]]) -> None:
    here = states(sys.executable, EBBTIDE, "run", "--fast", "60%", "--optimizer", order)
    assert len(here) == len(plainly) == 2
    for plain, ours in zip(plainly, here, strict=True):
        caught = plain["kernel"] | {"SigCgt": f"{int(plain['kernel']['SigCgt'], 16) | SIGSEGV:016x}"}
        assert ours == plain | {"kernel": caught}  # the safety net
