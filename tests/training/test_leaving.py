"""However a script ends, and in whichever thread it trains, it trains within the budget or is told otherwise."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ebbtide.runtime import ranks
from ebbtide.session import ending, leaving
from ebbtide.session.leaving import under
from tests.helpers.command import EBBTIDE, HUNG_AFTER_S, run

TRAINS = """
import atexit, multiprocessing, os, sys, threading, torch
torch.set_num_threads(1)

def train(width=256, steps=5):
    torch.manual_seed(1)
    net = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(6)])
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(64, width)).square().mean().backward()
        optimizer.step()
    print("trained", sum(p.double().sum().item() for p in net.parameters()), flush=True)
"""
ENDS = {
    "a thread goes on": "threading.Thread(target=train).start()",
    "a thread goes on after an error": "threading.Thread(target=train).start()\nsys.exit(5)",
    "an executor goes on": "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(1).submit(train)",
    "at exit": "atexit.register(train)",
    "os._exit": "train()\nos._exit(0)",
    "os._exit with a status": "train()\nos._exit(7)",
    "os._exit on a thread": "train()\nthreading.Thread(target=os._exit, args=(0,)).start()\nthreading.Event().wait()",
    "execl": "if 'again' not in sys.argv: os.execl(sys.executable, sys.executable, '-u', *sys.argv, 'again')\ntrain()",
    "execve": "if 'again' not in sys.argv: os.execve(sys.executable, [sys.executable, *sys.argv, 'again'],"
    " {'PYTHONPATH': os.environ.get('PYTHONPATH', '')})\ntrain()",
    "its own command": "if os.environ.get('AGAIN') is None:\n"
    "    os.environ['AGAIN'] = '1'\n    os.execv(sys.executable, sys.orig_argv)\ntrain()",
}


def ended(code: str, folder: Path, *options: str) -> Any:
    script = folder / "train.py"
    script.write_text(TRAINS + code)
    return run(*([EBBTIDE, "run", *options] if options else [sys.executable]), str(script), cwd=folder)


@pytest.mark.alike
@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in ENDS.items()])
def test_a_script_trains_within_its_budget_to_its_own_end(code: str, tmp_path: Path) -> None:
    if "orig_argv" in code:  # the command server's, where another process runs it
        code = code.replace("sys.orig_argv", "[sys.executable, *sys.argv]")
    plain = ended(code, tmp_path)
    assert plain.stdout.startswith("trained"), plain.stderr
    done = ended(code, tmp_path, "--fast", "40%", "--report", "report.json")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (len(report["steps"]), report["bounded_as_asked"]) == (5, True)
    assert "trained for 5 steps in " in done.stderr


@pytest.mark.parametrize("start", ["threading.Thread(target=train).start()", "train()"])
def test_a_recorded_step_ends_the_training_without_a_traceback(start: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS + start)
    done = run(EBBTIDE, "trace", "-o", "step.trace", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["ebbtide"]
    assert (tmp_path / "step.trace").exists()


def test_a_rank_that_leaves_waits_for_as_long_as_the_others_figures_may_take() -> None:
    assert leaving._MOST_S >= ending.GATHER_S + 2 * ranks._ANSWER_S  # and then it asks whether one has failed


def test_os_exit_does_not_hide_that_the_budget_was_exceeded(tmp_path: Path) -> None:
    code = "train()\nwith torch.no_grad(): torch.nn.Linear(256, 256)(torch.ones(65536, 256))\nos._exit(0)"
    done = ended(code, tmp_path, "--fast", "40%", "--report", "report.json")
    assert done.returncode == 3
    assert json.loads((tmp_path / "report.json").read_text())["budget_violated"]
    assert "error: the budget was exceeded" in done.stderr


@pytest.mark.parametrize(
    "call", ["os.execvp('true', ['true'])", "os.execve(os.open('/bin/true', os.O_RDONLY), ['true'], os.environ)"]
)
def test_another_program_in_the_place_of_the_script_is_told(call: str, tmp_path: Path) -> None:
    done = ended(call, tmp_path, "--fast", "40%")
    assert done.returncode == 0
    assert "gives its process to" in done.stderr


@pytest.mark.parametrize("fast", ["40%", "450MiB"])
def test_children_that_train_after_their_parent_are_not_within_its_budget(fast: str, tmp_path: Path) -> None:
    code = """
if __name__ == "__main__":
    train()
    child = multiprocessing.get_context("fork").Process(target=train, args=(2048, 2))
    child.start()
"""
    done = ended(code, tmp_path, "--fast", fast)
    assert done.returncode == 3
    assert "a process that the script forked trained, and one that it started peaked at" in done.stderr


GOES_ON = """
import time

def goes_on(parent, trained):
    train(512)
    trained.set()
    while os.getppid() == parent:
        time.sleep(0.01)
    with open("part", "w") as sys.stdout:
        train(512)
    os.rename("part", "whole")

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    trained = context.Event()
    context.Process(target=goes_on, args=(os.getpid(), trained)).start()
    trained.wait()
    os._exit(0)
"""


def test_a_spawned_child_trains_on_after_its_parent_which_says_that_nothing_bounds_it(tmp_path: Path) -> None:
    found = []
    for options in ([], ["--fast", "40%"]):
        done = ended(GOES_ON, tmp_path, *options)
        assert done.returncode == (3 if options else 0), done.stderr
        assert ("no optimizer step was seen" in done.stderr) == bool(options)
        found += [done.stdout.strip(), wait_for(tmp_path / "whole").strip()]
    assert found[0].startswith("trained")
    assert len({*found}) == 1


def test_children_of_a_fork_server_count(tmp_path: Path) -> None:
    """It outlives them, and so is not waited for."""
    code = """
if __name__ == "__main__":
    multiprocessing.get_context("forkserver").Process(target=train).start()
"""
    done = ended(code, tmp_path, "--fast", "40%")
    assert done.stdout.startswith("trained")
    assert done.returncode == 3
    assert "If the script trains in processes that it starts" in done.stderr


def wait_for(file: Path) -> str:
    """Return what somebody writes, and remove it."""
    patience = time.monotonic() + HUNG_AFTER_S
    while not file.exists():
        assert time.monotonic() < patience
        time.sleep(0.01)
    text = file.read_text()
    file.unlink()
    return text


def test_threads_that_outlive_the_program_of_a_call_are_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS + "threading.Timer(0.5, train).start()")
    done = run(sys.executable, "-c", "import ebbtide; ebbtide.run(['train.py'], fast='400MiB')", cwd=tmp_path)
    assert done.stdout.startswith("trained")
    assert "threads of the program go on, and nothing bounds them from here" in done.stderr


def test_the_command_stands_between_pythons_options_and_the_program() -> None:
    ours = ["/bin/ebbtide", "run", "--fast", "8GiB"]
    python = sys.executable
    for words, options in (
        (["a.py", "-c"], []),
        (["-m", "package", "x"], ["-u", "-X", "dev"]),
        (["-mpackage"], ["-Ou", "-Wignore"]),
    ):
        assert under(ours, python, ["python", *options, *words]) == ["python", *options, *ours, *words]
        for same in (ours, [os.path.relpath(ours[0]), *ours[1:]]):
            assert under(ours, python, ["python", *options, *same, *words]) == ["python", *options, *same, *words]
        assert under([], python, ["python", *options, *words]) is None
    for words in (["-c", "print()"], ["-uc", "print()"], ["-um", "package"], ["-"], [], ["-u"], ["-X"]):
        assert under(ours, python, ["python", *words]) is None


def test_only_this_python_is_known_to_have_ebbtide(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))  # as another environment has it
    for path in ("/bin/true", str(tmp_path / "python")):
        assert under(["/bin/ebbtide", "run"], path, ["python", "a.py"]) is None
