"""What is free is taken and followed; planning takes nothing of the budget."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch  # noqa: F401 (loads the libraries that native code needs)

import ebbtide
from ebbtide.budget.bounds import Need, arena_too_small, choose_bounds
from ebbtide.errors import EbbtideError, InfeasibleBudgetError
from ebbtide.host.free_memory import Follower, free_memory
from ebbtide.host.process import MemoryLimit
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Machine, Tier
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Storage, StorageKind, Trace
from ebbtide.planning import plan_child
from ebbtide.planning.plan_job import _made_for, planning_bytes
from ebbtide.units import GIB, MIB, parse_budget
from tests.helpers.command import EBBTIDE, TRAIN_MLP, environment, run
from tests.helpers.make_ir import R, trace_of
from tests.helpers.make_recording import recording
from tests.helpers.memory_cgroup import NotPermitted, memory_cgroup
from tests.helpers.training_script import training_script

# 384 MiB of state, 6 MiB of activations and some 220 MiB of Python with PyTorch: see test_bounds.py
LARGE = [TRAIN_MLP, "--width", "2048", "--depth", "6", "--rows", "64", "--steps", "4"]
LESS_THAN_PLAIN = 500 * MIB


# ---- where no size is named ----------------------------------------------------------------------------------------


@pytest.mark.alike
@pytest.mark.parametrize(("option", "said"), [([], "no size was named"), (["--fast", "60%"], "60% of what a step's")])
def test_without_a_size_a_run_stays_within_what_its_container_has(option: list[str], said: str, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    out = tmp_path / "report.json"
    try:
        with memory_cgroup(LESS_THAN_PLAIN) as cgroup:
            run(*cgroup.wrap([sys.executable, *LARGE]), status=-signal.SIGKILL)
            command = [EBBTIDE, "run", *option, "--report", str(out), *LARGE, "--result", str(result)]
            done = run(*cgroup.wrap(command), env={"EBBTIDE_PROGRESS": "plain"})
            assert cgroup.oom_kills() == 1
    except NotPermitted as why:
        pytest.skip(str(why))
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("ebbtide: ")]
    first = next(line for line in told if not line.startswith("ebbtide: measuring "))
    assert said in first
    assert "this container has for it" in first or "this container has for this process" in first
    assert sum(step["evicted_bytes"]["total"] for step in json.loads(out.read_text())["steps"]) > 100 * MIB
    assert len(json.loads(result.read_text())["losses"]) == 4


UNTIL_ITS_INPUT_ENDS = """
import os, threading
ended = threading.Event()
threading.Thread(target=lambda: (os.read(0, 1), ended.set()), daemon=True).start()
"""
SAYS_ITS_STEPS = "print('a step', flush=True)\nif ended.wait(0.1): break"


def test_a_limit_that_is_lowered_while_it_runs_is_followed(tmp_path: Path) -> None:
    """It begins with room for all, of which its container then loses a part."""
    script = tmp_path / "train.py"
    script.write_text(training_script(UNTIL_ITS_INPUT_ENDS, ends=SAYS_ITS_STEPS, steps=300))
    env, pipe, said = environment({"EBBTIDE_PROGRESS": "plain"}), subprocess.PIPE, ""
    try:
        with memory_cgroup(2 * GIB) as cgroup:
            command = cgroup.wrap([EBBTIDE, "run", str(script)])
            trains = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
            assert trains.stdout is not None
            assert trains.stderr is not None
            assert trains.stdout.readline() == "a step\n"
            limit = next(p for name in ("memory.max", "memory.limit_in_bytes") if (p := cgroup.path / name).exists())
            limit.write_text(str(GIB))
            while "free memory changed: the limit is now" not in said:
                said += (line := trains.stderr.readline())
                assert line, said
            trains.communicate(timeout=200)
            assert cgroup.oom_kills() == 0
    except NotPermitted as why:
        pytest.skip(str(why))
    assert trains.returncode == 0, said
    assert "no size was named, so this process takes 1.9" in said


def test_what_changes_is_told_and_what_hardly_does_is_not() -> None:
    seen: list[int] = []
    told = threading.Event()
    values = iter([1000, 1005, 995, 700])

    def changed(nbytes: int) -> None:
        seen.append(nbytes)
        told.set()

    follower = Follower(lambda: next(values, 700), changed, pytest.fail, every_s=0.001)
    follower.start()
    assert told.wait(60)
    follower.close()
    assert seen == [700]


def test_what_cannot_be_read_is_told_once_and_followed_again_when_it_can() -> None:
    seen: list[int] = []
    said: list[str] = []
    told = threading.Event()
    found: list[int | Exception] = [1000, OSError("gone"), ValueError("no MemTotal"), OSError("gone")]

    def look() -> int:
        one = found.pop(0) if found else 700
        if isinstance(one, Exception):
            raise one
        return one

    def changed(nbytes: int) -> None:
        seen.append(nbytes)
        told.set()

    follower = Follower(look, changed, said.append, every_s=0.001)
    follower.start()
    assert told.wait(60)
    follower.close()
    assert seen == [700]
    assert said == ["free memory cannot be read (gone), so the bound stays as it is until it can"]


def laid_out(root: Path, v1: bool) -> Path:
    """A container of 6 GiB, of which other processes have 1 GiB and files another; this process has 512 MiB."""
    proc, group = root / "proc", root / "cg/job"
    (proc / "self").mkdir(parents=True)
    group.mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {16 * MIB} kB\nMemAvailable: {12 * MIB} kB\n")
    (proc / "self/status").write_text(f"VmRSS: {600 * 1024} kB\nRssFile: {88 * 1024} kB\n")
    (proc / "self/cgroup").write_text("3:memory:/job\n" if v1 else "0::/job\n")
    kind = "cgroup cgroup rw,memory" if v1 else "cgroup2 cgroup rw"
    (proc / "self/mountinfo").write_text(f"30 1 0:26 / {root}/cg rw - {kind}\n")
    (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(f"{6 * GIB}\n")
    (group / ("memory.usage_in_bytes" if v1 else "memory.current")).write_text(f"{2 * GIB + 512 * MIB}\n")
    prefix = "total_" if v1 else ""
    (group / "memory.stat").write_text(f"{prefix}inactive_file {GIB // 2}\n{prefix}active_file {GIB // 2}\n")
    return proc


@pytest.mark.parametrize("v1", [True, False])
def test_what_a_container_has_for_a_process_is_what_others_do_not_hold(v1: bool, tmp_path: Path) -> None:
    assert free_memory(laid_out(tmp_path, v1)) == MemoryLimit(5 * GIB, "this container")


def test_where_nothing_limits_it_a_process_has_what_is_available_and_what_it_holds(tmp_path: Path) -> None:
    proc = laid_out(tmp_path, v1=False)
    (tmp_path / "cg/job/memory.max").write_text("max\n")
    assert free_memory(proc) == MemoryLimit(12 * GIB + 512 * MIB, "this machine")  # files' pages are available


@pytest.mark.parametrize(
    ("limited", "expected"), [(False, 6 * GIB + 512 * MIB), (True, 2 * GIB + 256 * MIB + 512 * MIB)]
)
def test_several_ranks_share_what_nobody_holds(limited: bool, expected: int, tmp_path: Path) -> None:
    proc = laid_out(tmp_path, v1=False)
    if not limited:
        (tmp_path / "cg/job/memory.max").write_text("max\n")
    assert free_memory(proc, ranks=2).nbytes == expected


def test_a_size_that_all_ranks_of_a_node_cannot_have_becomes_a_share() -> None:
    limit, free = MemoryLimit(8 * GIB, "this machine"), MemoryLimit(2 * GIB, "this machine")
    kept = choose_bounds(parse_budget("2GiB"), None, limit, free, ranks=4)
    assert (kept.process_bytes, kept.warning) == (2 * GIB, "")
    above = choose_bounds(parse_budget("3GiB"), None, limit, free, ranks=4)
    assert above.process_bytes == 2 * GIB - 2 * GIB * 2 // 100 - 32 * MIB
    assert "this machine allows (2.00 GiB, as its share: there are 4 ranks on this node)" in above.warning
    assert "its share: there are 4 ranks" in choose_bounds(None, None, limit, free, ranks=4).said


def test_bounds_come_from_what_is_free_unless_a_size_is_named() -> None:
    limit, free = MemoryLimit(8 * GIB, "this container"), MemoryLimit(5 * GIB, "this container")
    usable = 5 * GIB - 5 * GIB * 2 // 100 - 32 * MIB
    assert choose_bounds(None, None, limit, free).process_bytes == usable
    assert choose_bounds(parse_budget("25%"), None, limit, free).process_bytes == usable
    assert choose_bounds(parse_budget("8GiB"), None, limit, free).process_bytes == 8 * GIB
    above = choose_bounds(parse_budget("16GiB"), None, limit, free)
    assert (above.process_bytes, above.size) == (8 * GIB - 8 * GIB * 2 // 100 - 32 * MIB, 16 * GIB)


# ---- what an error says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("need", "word"),
    [
        (Need("aten::copy_", 2 * GIB, 8 * MIB, GIB, 2 * GIB), "Of that, the operation uses 8.00 MiB"),
        (Need("aten::index", 51 * MIB, 51 * MIB, 50 * MIB, 51 * MIB), "One tensor of 50.0 MiB is most of it"),
    ],
)
def test_an_operation_that_uses_little_of_its_tensors_is_told_so(need: Need, word: str) -> None:
    error = arena_too_small(10 * MIB, 4 * GIB, need)
    assert word in str(error)
    assert "NumPy or a file" in str(error)
    whole = Need("aten::addmm", 51 * MIB, 51 * MIB, 50 * MIB, 51 * MIB)  # it does not gather rows
    assert "NumPy or a file" not in str(arena_too_small(10 * MIB, 4 * GIB, whole))


# ---- the process that plans ----------------------------------------------------------------------------------------


class Room:
    """Stands for native code while a child plans."""

    def __init__(self, held: int) -> None:
        self.asides: list[tuple[int, ...]] = []
        self.level = {"arena_limit_bytes": 10, "reserved_bytes": held}

    def set_aside(self, *what: int) -> None:
        self.asides.append(what)

    def counters(self) -> dict[str, int]:
        return self.level


def ask(command: Sequence[str], room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_child, "_torch", room)
    monkeypatch.setattr(plan_child, "_START", command[-1])
    job = plan_child.Job(recording(3), {}, None, 0)  # type: ignore[arg-type]
    asked = plan_child.PlanningProcess(job, "ebbtide", None)
    assert asked.wait(None)
    asked.answer()


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit status -9: it said nothing"),
        ("raise MemoryError('on purpose')", "exit status 1: MemoryError: on purpose"),
        ("pass", "exit status 0: it said nothing"),
        ("import ebbtide.planning.plan_process as p; p.main()", "AttributeError: 'NoneType'"),
    ],
)
def test_a_planning_process_that_fails_is_an_error_and_its_room_is_given_back(
    program: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(held=0)
    with pytest.raises(EbbtideError, match=complaint):
        ask([program], room, monkeypatch)
    needed = planning_bytes(recording(3))
    assert [aside[0] for aside in room.asides] == [needed, needed, 0]
    assert room.asides[1][1] != os.getpid()


def test_where_the_budget_leaves_no_room_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_child, "_PATIENCE_S", 0.01)
    room = Room(held=11)
    with pytest.raises(EbbtideError, match="planning takes about 24 MiB"):
        ask(["raise SystemExit(1)"], room, monkeypatch)
    assert [aside[0] for aside in room.asides] == [planning_bytes(recording(3)), 0]


def test_what_is_printed_when_python_starts_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello', flush=True)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(ebbtide.__file__).parents[1])]))
    with pytest.raises(EbbtideError, match=r"KeyError|no step was recorded|Error: "):  # the planner's own complaint
        ask([plan_child._START], Room(held=0), monkeypatch)
    with pytest.raises(EbbtideError, match="exit status 0: it said nothing"):
        ask(["pass"], Room(held=0), monkeypatch)
    half = "import sys; from ebbtide.planning.plan_job import MARK; sys.stdout.buffer.write(MARK + b'half')"
    with pytest.raises(EbbtideError, match="exit status 0: it said nothing"):
        ask([half], Room(held=0), monkeypatch)


def test_the_planning_process_imports_as_its_parent_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "installed"  # comes first for every Python that starts here, but not in this process
    (other / "ebbtide").mkdir(parents=True)
    (other / "ebbtide/__init__.py").write_text("raise SystemExit('another Ebbtide')")
    monkeypatch.setenv("PYTHONPATH", str(other))
    monkeypatch.setattr(sys, "path", [str(Path(ebbtide.__file__).parents[1]), *sys.path])
    with pytest.raises(EbbtideError) as caught:
        ask([plan_child._START], Room(held=0), monkeypatch)
    assert "another Ebbtide" not in str(caught.value)
    assert "exit status" not in str(caught.value)


def test_ctrl_c_at_a_terminal_does_not_reach_the_planning_process(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, sys; sys.exit('in the group ' + str(os.getpgrp() - os.getpid()))"
    with pytest.raises(EbbtideError, match="in the group 0"):
        ask([program], Room(held=0), monkeypatch)


def test_a_planning_process_that_a_signal_ended_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(plan_child.PlanningKilledError):
        ask(["import os, signal; os.kill(os.getpid(), signal.SIGTERM)"], Room(held=0), monkeypatch)
    with pytest.raises(EbbtideError) as caught:
        ask(["raise SystemExit(1)"], Room(held=0), monkeypatch)
    assert not isinstance(caught.value, plan_child.PlanningKilledError)


def test_steps_go_on_beside_it_where_the_rest_holds_their_largest_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(held=0)
    monkeypatch.setattr(plan_child, "_torch", room)
    monkeypatch.setattr(plan_child, "_START", "import time; time.sleep(1000)")
    asked = plan_child.PlanningProcess(plan_child.Job(recording(3), {}, None, 0), "ebbtide", None)  # type: ignore[arg-type]
    assert asked._child is not None
    pid = asked._child.pid
    try:
        room.level |= {"largest_operator_bytes": 11}
        assert not asked.steps_go_on()
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)
        room.level |= {"largest_operator_bytes": 10}
        assert asked.steps_go_on()
        assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        asked.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert room.asides[-1] == (0,)
    with pytest.raises(plan_child.PlanningKilledError):
        asked.answer()


@pytest.mark.parametrize(("attribute", "value"), [("executable", ""), ("executable", None), ("frozen", True)])
def test_without_a_python_to_start_it_is_said(attribute: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, attribute, value, raising=False)
    room = Room(held=0)
    with pytest.raises(EbbtideError, match=r"no Python to plan with.*--policy demand"):
        ask(["pass"], room, monkeypatch)
    assert room.asides[-1] == (0,)


def test_the_planning_process_loads_no_torch() -> None:
    program = "import sys, ebbtide.planning.plan_process; print('torch' in sys.modules)"
    assert run(sys.executable, "-c", program).stdout == "False\n"


def test_a_step_that_needs_a_few_percent_more_than_there_is_is_planned_for_that() -> None:
    asked: list[int] = []
    a_trace = trace_of(2, [Storage(8192, StorageKind.PARAMETER, 0, 2, "", persistent=True)], [(0, 1, R)])

    def planner(trace: Trace, machine: object, budget_bytes: int) -> Plan:
        asked.append(budget_bytes)
        if budget_bytes < 1050:
            raise InfeasibleBudgetError(1050, "aten::mm", 3, budget_bytes, "aten::mm in h.3 (1.20 ms into the step)")
        return f"for {budget_bytes}"  # type: ignore[return-value]

    machine = Machine("assumed", Origin.ASSUMED, (Tier("dram", InPlace.ALL),))
    assert _made_for(a_trace, machine, 1000, planner) == "for 1050"  # type: ignore[comparison-overlap]
    assert asked == [1000 - 1000 // 48, 1050]
    with pytest.raises(EbbtideError, match=r"at once at aten::mm in h\.3 \(1\.20 ms into the step\), and"):
        _made_for(a_trace, machine, 900, planner)
