"""What goes wrong in a script that the command runs: it ends as in plain Python, and the command says why."""

import json
import signal
import sys
from pathlib import Path

import pytest

from ebbtide.host.free_memory import free_memory
from ebbtide.units import GIB
from tests.helpers.command import EBBTIDE, run
from tests.helpers.training_script import training_script

MCL_CURRENT, MCL_FUTURE = 1, 2


LIMITED = training_script(
    before="""
        import resource, sys
        which = getattr(resource, sys.argv[1])
        resource.setrlimit(which, (int(sys.argv[2]) << 30, resource.getrlimit(which)[1]))
    """,
    after="print('trained')",
)


@pytest.mark.parametrize(
    ("limit", "gibibytes", "said"), [("RLIMIT_AS", "8", "ulimit -v"), ("RLIMIT_DATA", "2", "ulimit -d")]
)
def test_a_script_that_limits_itself_is_told_which_limit_is_met(
    limit: str, gibibytes: str, said: str, tmp_path: Path
) -> None:
    """Plain PyTorch trains within them."""
    (tmp_path / "script.py").write_text(LIMITED)
    assert run(sys.executable, "script.py", limit, gibibytes, cwd=tmp_path).stdout == "trained\n"
    done = run(EBBTIDE, "run", "--quiet", "--fast", "60%", "script.py", limit, gibibytes, cwd=tmp_path)
    assert done.returncode == -signal.SIGABRT
    assert f"limited ({limit}, {said})" in done.stderr
    assert "lift that limit" in done.stderr
    assert "max_map_count" not in done.stderr


LOCKED = training_script(
    before="import ctypes, sys",
    begins="""
        if step == 3 and ctypes.CDLL(None).mlockall(int(sys.argv[1])) != 0:
            sys.exit("it may not lock memory")
    """,
)


@pytest.mark.parametrize("kind", [pytest.param(MCL_CURRENT, marks=pytest.mark.nightly), MCL_FUTURE])
def test_memory_that_is_locked_is_told_where_that_fills_tables(kind: int, tmp_path: Path) -> None:
    if free_memory().nbytes < 8 * GIB:
        pytest.skip("it fills 4 GiB")
    (tmp_path / "script.py").write_text(LOCKED)
    done = run(EBBTIDE, "run", "--fast", "60%", "--report", "report.json", "script.py", str(kind), cwd=tmp_path)
    if "it may not lock memory" in done.stderr:
        pytest.skip("it may not lock memory")
    assert done.returncode == 0, done.stderr
    fills = kind == MCL_CURRENT
    assert done.stderr.count("locked its memory (mlockall)") == fills
    assert (json.loads((tmp_path / "report.json").read_text())["process_peak_bytes"] > 2 * GIB) == fills


INTERRUPT = "signal.raise_signal(signal.SIGINT)"


def test_ctrl_c_ends_the_command_as_it_ends_python_and_the_report_is_written(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out.json"
    script.write_text(training_script("import signal", midway=f"if step == 4: {INTERRUPT}", rows=1024, steps=9))
    done = run(EBBTIDE, "run", "--fast", "40%", "--report", str(out), str(script), status=-signal.SIGINT)
    assert "KeyboardInterrupt" in done.stderr
    assert "trained for 4 steps in " in done.stderr
    report = json.loads(out.read_text())
    assert len(report["steps"]) == 4
    assert report["steps"][-1]["evicted_bytes"]["total"] > 0


def test_more_ctrl_c_while_the_first_is_told_shows_nothing_of_ours(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out.json"
    again = f"def tell(*error):\n    {INTERRUPT}\n    sys.__excepthook__(*error)\n\nsys.excepthook = tell\n{INTERRUPT}"
    script.write_text(training_script("import signal, sys", after=again, steps=9))
    done = run(EBBTIDE, "run", "--fast", "40%", "--report", str(out), str(script), status=-signal.SIGINT)
    assert "KeyboardInterrupt" in done.stderr
    assert "launch.py" not in done.stderr
    assert len(json.loads(out.read_text())["steps"]) == 9


CLOSES = training_script(
    before="""
        import os, sys
        from ebbtide.planning import plan_child
        from tests.helpers.own_threads import own_threads

        if sys.argv[2] == "while planning":
            held = "import ctypes, time; ctypes.CDLL(None).prctl(1, 9); time.sleep(1000)"  # ends with this process
            plan_child._START = held + "\\n" + plan_child._START
    """,
    begins="""
        if step == 5:
            if sys.argv[2] == "while planning":
                assert "ebbtide-planning" in own_threads()
            os.closerange(3, 1000)
            mine = [open(f"{sys.argv[1]}/{number}", "w+b", buffering=0) for number in range(64)]
    """,
    layers=8,
    rows=512,
    steps=8,
)


@pytest.mark.parametrize("moment", ["after planning", "while planning"])
def test_a_script_that_closes_the_spill_file_is_told_and_its_own_files_are_left_alone(
    moment: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(CLOSES)
    wait = "1" if moment == "after planning" else "0"
    done = run(EBBTIDE, "run", "--fast", "40%", str(script), str(tmp_path), moment, env={"EBBTIDE_WAIT_FOR_PLAN": wait})
    assert done.returncode != 0
    assert "the script closed a file that it had not opened" in done.stderr
    assert {(tmp_path / str(number)).stat().st_size for number in range(64)} == {0}
