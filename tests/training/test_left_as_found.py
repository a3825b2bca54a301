"""A script finds its process as a plain run has it. The exceptions are listed here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import EBBTIDE, environment, run
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


SAYS_THREADS = """\
import hashlib, os, threading
{first}
import numpy
drawn = numpy.random.default_rng(0).standard_normal((777, 777))
print(hashlib.sha256((drawn @ drawn).tobytes()).hexdigest())
{then}
import importlib.util
print(importlib.util.find_spec("torch").loader.__class__)
import torch
made = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
print(torch.get_num_threads(), made.sum().item().hex())
print(hashlib.sha256((drawn @ drawn).tobytes()).hexdigest())
inputs = made[:204_800].reshape(4, 32, 40, 40)
weight = made[:18_432].reshape(64, 32, 3, 3)
long = made[:640_000].reshape(32, -1)

def begins():  # oneDNN has OpenMP's number there, and MKL its own
    for result in (torch.conv2d(inputs, weight), long @ long.mT):
        print(hashlib.sha256(result.numpy().tobytes()).hexdigest())

thread = threading.Thread(target=begins)
thread.start()
thread.join()
print(numpy.__spec__.loader.__class__.__name__, torch.__spec__.loader.__class__.__name__)
"""


@pytest.mark.alike
@pytest.mark.parametrize(
    ("first", "then", "of_pytorch"),
    [
        ("", "os.environ['OMP_NUM_THREADS'] = '1'", "1"),  # too late for NumPy
        ("os.environ['OMP_NUM_THREADS'] = '1'", "", "1"),
        ("os.environ['OPENBLAS_NUM_THREADS'] = '1'", "os.environ['MKL_NUM_THREADS'] = '1'", "1"),
        ("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", "", "1"),
        ("os.environ['OMP_NUM_THREADS'] = '4'", "", ""),  # a new thread's, until PyTorch takes MKL's, of CPUs at most
        ("os.environ['GOTO_NUM_THREADS'] = '1'", "", ""),
        ("import torch; os.environ['OMP_NUM_THREADS'] = '1'", "", ""),  # too late
    ],
)
def test_threads_are_as_the_script_says_before_it_imports_a_library(
    first: str, then: str, of_pytorch: str, tmp_path: Path
) -> None:
    script = tmp_path / "says_threads.py"
    script.write_text(SAYS_THREADS.format(first=first, then=then))
    plain = run(sys.executable, str(script), status=0, fresh=True)
    ours = run(EBBTIDE, "run", "--fast", "1GiB", str(script), fresh=True)
    assert ours.stdout == plain.stdout, ours.stderr
    assert not of_pytorch or plain.stdout.splitlines()[2].split()[0] == of_pytorch


RUN_ANYWHERE = """
def runs_anywhere(task):
    try:
        return len(os.sched_getaffinity(int(task))) > 1
    except ProcessLookupError:  # a thread that was joined may still be listed, and then not
        return False
print(sum(map(runs_anywhere, os.listdir("/proc/self/task"))))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="OpenMP binds to one CPU of several")
def test_where_openmp_binds_its_threads_they_are_as_many_and_ours_run_anywhere(tmp_path: Path) -> None:
    """It binds the thread that loads it, and those that this one begins."""
    script = tmp_path / "says_threads.py"
    logs = "import logging\nprint(logging.getLogger('torch._dynamo').level)\n"  # PyTorch reads that, too
    script.write_text(SAYS_THREADS.format(first="os.environ['TORCH_LOGS'] = '+dynamo'", then="") + logs + RUN_ANYWHERE)
    bound = {"OMP_PROC_BIND": "close"}
    *plain, free = run(sys.executable, str(script), env=bound, status=0, fresh=True).stdout.splitlines()
    ran = run(EBBTIDE, "run", "--fast", "1GiB", str(script), env=bound, fresh=True)
    *ours, free_too = ran.stdout.splitlines()
    assert ours == plain, ran.stderr
    assert int(free_too) > int(free)


WAITS_FOR_A_SIGNAL = """\
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # threads that begin from now on block it, too
import torch
from torch import nn
net = nn.Linear(512, 512)
optimizer = torch.optim.SGD(net.parameters())
for _ in range(5):
    net(torch.ones(64, 512)).sum().backward()
    optimizer.step()
blocked = 1 << signal.SIGUSR1 - 1
for task in os.listdir("/proc/self/task"):
    status = open(f"/proc/self/task/{task}/status").read()
    if not int(status.partition("SigBlk:")[2].split()[0], 16) & blocked:
        print(status)
os.kill(os.getpid(), signal.SIGUSR1)  # it would end the process
print(signal.sigwait({signal.SIGUSR1}).name)
"""


@pytest.mark.alike
def test_no_thread_takes_a_signal_that_the_script_waits_for(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WAITS_FOR_A_SIGNAL)
    ours = run(EBBTIDE, "run", "--fast", "90%", str(script), status=0, fresh=True)
    assert ours.stdout == "SIGUSR1\n"
    assert "5 steps" in ours.stderr


def test_what_is_read_too_late_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nos.environ['OPENBLAS_CORETYPE'] = 'Haswell'\nimport numpy\n")
    done = run(EBBTIDE, "run", "--fast", "1GiB", str(script), fresh=True)
    assert "OPENBLAS_CORETYPE is read as numpy is loaded, before the script" in done.stderr
