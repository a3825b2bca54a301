"""The command where it needs no native code."""

import json
import os
import pickle
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from time import sleep

import pytest
from click.testing import CliRunner

import ebbtide
from ebbtide.cli import cli
from ebbtide.errors import InfeasibleBudgetError, SettingError
from ebbtide.ir.files import save
from ebbtide.machines import find_machine
from ebbtide.planners import plan
from ebbtide.planning.policies import planner_from
from tests.helpers import command as commands
from tests.helpers.cli import DISABLED, run, script
from tests.helpers.make_steps import network
from tests.ir.test_report_format import REPORT

pytestmark = pytest.mark.starts


def forked(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same from a process that has imported PyTorch: where only what it says and writes matters."""
    return commands.run(commands.EBBTIDE, *arguments, env=environment, cwd=cwd)


def test_the_version_is_the_packages() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"ebbtide {ebbtide.__version__}\n")


def test_help_names_every_option() -> None:
    assert run("--help").returncode == 0
    text = run("run", "--help").stdout
    for option in ("--fast", "--spill", "--report", "--quiet", "-m MODULE"):
        assert option in text


@pytest.mark.parametrize(
    ("arguments", "environment", "complaint"),
    [
        (["run", "--fast", "lots", "x.py"], {}, "'lots' is not a budget"),
        (["run", "--fast", "1GiB", "missing.py"], {}, "cannot open missing.py: No such file"),
        (["estimate", "missing.py"], {}, "cannot open missing.py: No such file"),
        (["run", "python", "x.py"], {}, "cannot open python: No such file or directory: leave out `python`, as in"),
        (["run", "python3", "-u", "x.py", "-e"], {}, "`ebbtide run x.py -e`"),
        (["run", sys.executable, "-m", "x"], {}, "is no Python script: leave out"),
        (["run", "t.pyz"], {}, "t.pyz is no Python script"),
        (["run", "--fast", "25%", "t.sh"], {}, "t.sh is a shell script: name the Python script that it starts"),
        (["run", "--fast", "8GB,25%", "x.py"], {}, "'8GB,25%' names several budgets: name one"),
        (["estimate", "--device", "cuda", "x.py"], {}, "`ebbtide machines` lists them"),
        (["report", "t.sh"], {}, "t.sh is neither a report nor a trace, plan or timeline of Ebbtide's"),
        (["run", "--fast", "1GiB", "-m", "missing_module"], {}, "no module named missing_module"),
        (["run", "--fast", "1GiB", "-m", "."], {}, "-m .: no package specified for '.'"),
        (["run", "--spill", "", "x.py"], {}, "spill=('',) is not understood; accepted: a directory"),
        (["run", "--fast", "1GiB", "."], {}, "cannot open .: Is a directory"),
        (["run", "--fast", "1GiB", "-m", "missing_package.inner"], {}, "no module named missing_package"),
        (["run", "--report", "x" * 300, "t.py"], {}, "(File name too long): name a file in a writable directory"),
        (["run", "--machine", "x" * 300, "t.py"], {}, "cannot be used: File name too long"),
        (["run", "--fast", "1GiB", "-m"], {}, "-m needs the name of a module"),
        (["run", "--fast", "1GiB", "-m", "json"], {}, "a package without __main__"),
        (["run", "--fast", "1GiB"], {}, "Missing argument"),
        (["run", "-q", "-v", "--fast", "1GiB", "x.py"], {}, "-q and -v: name one of them"),
        (["run", "--speed", "1", "x.py"], {}, "No such option"),
        (["run", "x.py"], {"EBBTIDE_IO_THREADS": "many"}, "EBBTIDE_IO_THREADS='many' is not understood"),
    ],
)
def test_what_cannot_be_done_is_one_clear_error(
    arguments: list[str], environment: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "t.sh").write_text("exec python train.py\n")
    (tmp_path / "t.py").write_text("")
    with zipfile.ZipFile(tmp_path / "t.pyz", "w") as packed:
        packed.writestr("train.py", "")
    done = forked(*arguments, cwd=tmp_path, **environment)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_without_a_size_says_what_it_took(tmp_path: Path) -> None:
    done = forked("run", script(tmp_path, "print('ran')"))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "no size was named, so this process takes" in done.stderr


def test_a_report_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    train = script(tmp_path, "print('ran')")
    done = run("run", "--fast", "8GiB", "--report", str(tmp_path / "missing/out.json"), train, **DISABLED)
    assert (done.returncode, done.stdout) == (2, "")
    assert "report cannot be written" in done.stderr


def test_a_spill_directory_in_ram_is_told_before_torch_is_loaded(tmp_path: Path) -> None:
    if not Path("/dev/shm").is_mount():
        pytest.skip("no /dev/shm here")
    done = run("run", "--fast", "8GiB", "--spill", "/dev/shm", script(tmp_path, "print('ran')"))
    assert (done.returncode, done.stdout) == (4, "")
    assert "lies in RAM" in done.stderr


def test_switched_off_it_says_so_once_and_reports_nothing_measured(tmp_path: Path) -> None:
    path, out = script(tmp_path, "import sys; print('torch' in sys.modules)"), tmp_path / "out.json"
    done = run("run", "--fast", "25%", "--report", str(out), path, **DISABLED)
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert done.stderr.count("EBBTIDE_DISABLE") == 1
    assert json.loads(out.read_text())["policy"] == "disabled"
    assert json.loads(out.read_text())["steps"] == []


def test_a_forked_child_that_leaves_through_the_script_writes_nothing(tmp_path: Path) -> None:
    body = "import os, sys\nif os.fork() == 0:\n    sys.exit(5)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    done = run("run", "--fast", "25%", script(tmp_path, body), **DISABLED)
    assert (done.returncode, done.stdout) == (0, "5\n")
    assert done.stderr.count("Ebbtide was disabled") == 1


def test_a_report_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    REPORT.write(path)
    assert "trained for 2 steps in 0.98 GiB, within budget" in run("report", str(path)).stdout
    path.write_text("{}")
    done = run("report", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "not a report that this Ebbtide reads" in done.stderr


def test_a_budget_after_the_script_says_where_it_went(tmp_path: Path) -> None:
    train = script(tmp_path, "raise SystemExit('it ran')")
    for command, options in (
        ("run", ["--fast", "50%"]),
        ("run", ["--lr", "1", "--fast=50%"]),
        ("verify", ["--fast=50%"]),
    ):
        done = CliRunner(env={"EBBTIDE_FAST": None, "EBBTIDE_DISABLE": None}).invoke(cli, [command, train, *options])
        assert done.exit_code == 2
        assert f"stands after {train} and so went to it" in done.output
        assert "it ran" not in done.output


@pytest.mark.parametrize("content", [None, b"", b"no plan"])
def test_a_plan_that_cannot_be_used_is_named_once(content: bytes | None, tmp_path: Path) -> None:
    plan = tmp_path / "step.plan"
    if content is not None:
        plan.write_bytes(content)
    with pytest.raises(SettingError) as caught:
        planner_from(plan)
    assert str(caught.value).count(str(plan)) == 1
    assert "Errno" not in str(caught.value)


def test_the_smallest_budget_is_a_size_that_can_be_typed() -> None:
    text = str(InfeasibleBudgetError(75_497_473, "aten::mm", 3, 1000))
    assert 'The smallest budget that can work is 72.0 MiB: use fast="73MiB" or more.' in text
    assert 'use fast="12KiB"' in str(InfeasibleBudgetError(12_288, "aten::mm", 3, 1000))


def test_an_operation_is_named_by_its_module_and_its_time() -> None:
    where = "aten::mm in h.3.mlp (1.20 ms into the step)"
    error = pickle.loads(pickle.dumps(InfeasibleBudgetError(75_497_473, "aten::mm", 3, 500, where)))
    assert f"a budget of 500 B: {where} needs 72.0 MiB of tensors" in str(error)
    for unknown, name in (("aten::mm", "aten::mm"), ("", "an operation")):
        text = str(InfeasibleBudgetError(75_497_473, unknown, 3, 1000))
        assert f": {name} needs" in text
        assert "tick" not in text


def test_options_that_stand_after_the_script_are_told_and_the_script_has_them(tmp_path: Path) -> None:
    train = script(tmp_path, "import sys; print('has', sys.argv[1:])")
    for command in (("trace", "-o", str(tmp_path / "t")), ("verify",), ("run",)):
        done = forked(*command, train, "--step=9", "--policy", "lru", **DISABLED)
        told = {"trace": "--step=9", "verify": "--policy", "run": "--policy"}[command[0]]
        assert f"ebbtide: {told} after {train}: passed on to it; options of ebbtide come before" in done.stderr
        assert command[0] == "verify" or "has ['--step=9', '--policy', 'lru']" in done.stdout
    given = forked("trace", "-o", str(tmp_path / "t"), "--step", "3", train, "--step=9", "--other", **DISABLED)
    assert "passed on" not in given.stderr  # an option that was given is the script's own there


def test_an_option_before_the_command_is_told_where_it_belongs() -> None:
    done = CliRunner().invoke(cli, ["--fast", "50%", "train.py"])
    assert done.exit_code == 2
    assert "--fast is an option of run, verify, plan, simulate, compare and sweep" in done.output
    assert "`ebbtide run --fast ...`" in done.output
    assert "No such option" in CliRunner().invoke(cli, ["--frobnicate"]).output


def test_ctrl_c_in_a_command_ends_it_as_it_ends_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ebbtide.commands.plan.read_inputs", interrupted)
    (tmp_path / "step.trace").write_bytes(b"")
    done = CliRunner().invoke(cli, ["plan", str(tmp_path / "step.trace")])
    assert (done.exit_code, done.stderr) == (130, "ebbtide: interrupted\n")


def test_a_run_that_is_interrupted_before_its_first_step_blames_nobody_else(tmp_path: Path) -> None:
    done = forked("run", "--fast", "50%", script(tmp_path, "raise KeyboardInterrupt"))
    assert done.returncode == -signal.SIGINT
    assert "it was interrupted before the two steps that find the peak of a percentage" in done.stderr
    assert "accelerate launch" not in done.stderr


def test_a_trace_that_would_be_replaced_is_told_of(tmp_path: Path) -> None:
    train = script(tmp_path, "raise SystemExit(5)")
    (tmp_path / "train.trace").write_text("another")
    told = f"ebbtide: {Path(train).stem}.trace is there already and will be replaced; -o names another file"
    done = forked("trace", train, "--output=x", cwd=tmp_path)
    assert told in done.stderr
    assert f"ebbtide: --output=x after {train}: passed on to it" in done.stderr


@pytest.mark.parametrize("option", ["-o", "--fake", "--lines", "--keep-running"])
def test_options_of_a_trace_that_stand_after_the_script_are_refused(option: str, tmp_path: Path) -> None:
    train = script(tmp_path, "import sys; print('has', sys.argv[1:])")
    (tmp_path / "train.trace").write_text("another")
    done = forked("trace", train, option, "late.trace", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{option} stands after {train} and so went to it" in done.stderr
    assert "will be replaced" not in done.stderr
    theirs = forked("trace", "--", train, option, "late.trace", cwd=tmp_path)
    assert theirs.stdout == f"has ['{option}', 'late.trace']\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "--fast"], "--fast has no value, and no script or -m MODULE follows"),
        (["run", "--fast", "train.py", "--epochs", "3"], "train.py as one: ebbtide run --fast VALUE train.py"),
        (["run", "--fast", "-m", "train"], "would take -m as one: ebbtide run --fast VALUE -m train"),
        (["verify", "--fast", "-h"], "--fast has no value of its own, and would take -h as one"),
        (["trace", "-o", "train.py"], "-o has no value of its own, and would take train.py as one"),
    ],
)
def test_an_option_without_a_value_is_named(words: list[str], complaint: str) -> None:
    done = CliRunner().invoke(cli, words, prog_name="ebbtide")
    assert done.exit_code == 2
    assert complaint in done.output


def test_an_output_that_is_full_and_a_directory_that_is_gone_are_one_error(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ebbtide", "machines"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "ebbtide: error: the output cannot be written: No space left on device\n",
    )
    gone, train = tmp_path / "gone", script(tmp_path, "print('it ran')")
    gone.mkdir()
    words = [sys.executable, "-m", "ebbtide", "trace", train]
    leave = f"import os, sys; os.rmdir({str(gone)!r}); os.execv(sys.executable, {words!r})"
    done = subprocess.run([sys.executable, "-c", leave], cwd=gone, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ebbtide: error: the current directory was deleted: change to another\n"


def test_two_outputs_of_a_run_are_two_files(tmp_path: Path) -> None:
    train = script(tmp_path, "print('it ran')")
    (tmp_path / "link.json").symlink_to("out.json")
    done = run("run", "--report", "out.json", "--save-plan", "link.json", train, cwd=tmp_path, **DISABLED)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"the report and the plan would both be {tmp_path}/link.json: name two files" in done.stderr
    done = run("run", "--save-plan", "./out.json", train, cwd=tmp_path, EBBTIDE_REPORT="out.json", **DISABLED)
    assert done.returncode == 2
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("words", [["run", "--report=link.py"], ["trace", "--output=./train.py"]])
def test_no_output_replaces_the_script(words: list[str], tmp_path: Path) -> None:
    train = script(tmp_path, "print('it ran')")
    (tmp_path / "link.py").symlink_to("train.py")
    before = (tmp_path / "train.py").read_bytes()
    done = run(*words, train, cwd=tmp_path, **DISABLED)
    assert (done.returncode, done.stdout, (tmp_path / "train.py").read_bytes()) == (2, "", before)
    assert "which is read: name another file" in done.stderr


STUCK = """
    import ctypes
    import sys

    from ebbtide.pipeline import trials
    from ebbtide.cli import main

    def stuck(*_, **__):
        print("stuck", flush=True)
        lock = ctypes.create_string_buffer(64)
        while True:
            ctypes.CDLL(None).pthread_mutex_lock(lock)  # the second time no signal ends it

    trials.try_policy = stuck
    main()
"""


@pytest.mark.parametrize("command", ["compare", "sweep", "simulate"])
def test_ctrl_c_ends_a_command_amid_a_call_that_hears_of_no_signal(command: str, tmp_path: Path) -> None:
    save(network(layers=3), tmp_path / "step.trace")
    words = [script(tmp_path, STUCK), command, str(tmp_path / "step.trace"), "--machine", "dram-cxl", "--fast", "50%"]
    child = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "stuck\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate()[1] == "ebbtide: interrupted\n"
    assert child.returncode == -signal.SIGINT


WAITS = """
    import os, pathlib, sys, time
    pathlib.Path("made.bin").write_bytes(bytes(1000))
    print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (["verify"], signal.SIGTERM),
        (["verify"], signal.SIGHUP),
        (["verify"], signal.SIGKILL),
        (["estimate", "--machine", "h100"], signal.SIGTERM),
        (["estimate", "--machine", "h100"], signal.SIGKILL),
    ],
)
def test_a_signal_ends_a_commands_child_and_removes_its_files(
    command: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    train, told, held = script(tmp_path / "project", WAITS), tmp_path / "told", tmp_path / "held"
    held.mkdir()
    os.mkfifo(told)
    words = [sys.executable, "-m", "ebbtide", *command, train, str(told)]
    env = os.environ | {"TMPDIR": str(held), "EBBTIDE_SPILL": "/var/tmp"}
    began = subprocess.Popen(words, cwd=tmp_path / "project", env=env, stderr=subprocess.DEVNULL)
    child = int(told.read_text())
    assert list(held.glob("ebbtide-*")) != []
    began.send_signal(number)
    killed = number == signal.SIGKILL
    assert began.wait(60) == (-number if killed else 128 + number)
    assert killed or list(held.glob("ebbtide-*")) == []
    for _ in range(600 if killed else 1):  # the kernel ends it, soon
        if not Path(f"/proc/{child}").exists():
            return
        sleep(0.1)
    pytest.fail("the child goes on")


def test_a_plan_alone_asks_for_all_that_its_page_takes(tmp_path: Path) -> None:
    trace = network(layers=3)
    save(trace, tmp_path / "step.trace")
    save(plan("resident", trace, find_machine("dram-cxl"), 1 << 40), tmp_path / "step.plan")
    alone = run("report", "step.plan", cwd=tmp_path)
    assert alone.returncode == 2
    assert "step.plan holds a plan: name its step's trace, too, and say with -o report.html" in alone.stderr
    both = run("report", "step.plan", "step.trace", cwd=tmp_path)
    assert "step.plan holds a plan: say with -o report.html" in both.stderr
