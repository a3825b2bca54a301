"""A session makes the first call of MKL's vector functions, by one thread.

Where two threads make that call at once, one of them may compute in low precision. Such a race cannot be had at will.
But MKL reads its environment in that call, too: what is set afterwards changes nothing.
"""

import subprocess
import sys

import pytest

ROOTS = """
import os, sys, torch
import ebbtide

numbers = torch.linspace(0, 1, 4096)
if sys.argv[1] == "session":
    with ebbtide.Session("2GiB", progress="off"):
        torch.ones(2).add_(1)
os.environ |= dict([sys.argv[2].split("=")])
print(numbers.sqrt().numpy().tobytes().hex())
"""


def roots(where: str, setting: str) -> str:
    """Return the bytes of square roots that are computed once the setting has been made."""
    done = subprocess.run([sys.executable, "-c", ROOTS, where, setting], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.starts
def test_after_a_first_operator_mkl_has_chosen_its_functions() -> None:
    usual, other = "A=", "MKL_CBWR=COMPATIBLE"
    plain = roots("plain", usual)
    if roots("plain", other) == plain:
        pytest.skip("no MKL here, or the setting gives the same bits")
    assert roots("session", other) == roots("session", usual) == plain
