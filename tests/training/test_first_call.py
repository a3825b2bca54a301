"""A session makes the first call of MKL's vector functions by one thread, so that a team's first one has no race."""

import subprocess
import sys

import pytest

FORKS = """
import hashlib, os, sys, torch
import ebbtide

def first_call():
    torch.set_num_threads(2)
    for _ in range(3):
        numbers + 0  # the team is there
    return hashlib.sha256(numbers.sqrt().numpy().tobytes()).digest()

with ebbtide.Session("2GiB", progress="off"):
    numbers = torch.linspace(0, 1, 16384)
    torch.ones(2).add_(1)
seen = set()
for _ in range(400):
    receives, sends = os.pipe()
    if os.fork() == 0:
        os.write(sends, first_call())
        os._exit(0)
    os.close(sends)
    seen.add(os.read(receives, 64))
    os.close(receives)
    os.wait()
print(len(seen))
"""


@pytest.mark.starts
def test_the_first_vector_function_of_a_team_has_one_result() -> None:
    """Without the session 3 of 4 such runs saw a half in low precision, on 2 Intel CPUs."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
