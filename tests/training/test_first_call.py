"""A session makes the first call of MKL's vector functions, by one thread, where plain PyTorch makes it.

Where two threads make that call at once, one of them may compute in low precision. Such a race cannot be had at will.
But MKL reads its environment in that call, too: what is set before changes bits, and what is set afterwards does not.
"""

import subprocess
import sys

import pytest

ROOTS = """
import os, sys, torch
from contextlib import nullcontext
import ebbtide

numbers = torch.linspace(0, 1, 4096)
with ebbtide.Session("2GiB", progress="off") if sys.argv[1] == "session" else nullcontext():
    torch.ones(2).add_(1)
    if sys.argv[3] == "begun":
        try:
            torch.sqrt(numbers, out=torch.empty(4096, dtype=torch.int32))
        except RuntimeError:
            pass  # it began, and computed nothing
    os.environ |= dict([sys.argv[2].split("=")])
    print(numbers.sqrt().numpy().tobytes().hex())
"""
USUAL, OTHER = "A=", "MKL_CBWR=COMPATIBLE"


def roots(where: str, setting: str, operator: str = "") -> str:
    """Return the bytes of square roots that are computed once the setting has been made. ``operator`` is "begun" for
    one that has begun before, and computed nothing."""
    command = [sys.executable, "-c", ROOTS, where, setting, operator]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def plain() -> dict[str, str]:
    found = {setting: roots("plain", setting) for setting in (USUAL, OTHER)}
    if found[USUAL] == found[OTHER]:
        pytest.skip("no MKL here, or the setting gives the same bits")
    return found


@pytest.mark.starts
def test_until_mkl_is_called_a_script_may_set_what_it_reads(plain: dict[str, str]) -> None:
    assert roots("session", OTHER) == plain[OTHER] == roots("plain", OTHER, "begun")


@pytest.mark.starts
def test_where_an_operator_begins_that_calls_it_one_thread_has_called_it(plain: dict[str, str]) -> None:
    assert roots("session", OTHER, "begun") == plain[USUAL]
